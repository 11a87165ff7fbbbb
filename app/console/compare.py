"""Two moments side by side: what became of each flow between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.console.flow_rows import FlowRows
from probes.flow.filter import FlowFilter
from probes.flow.live import LiveView
from widgets.columns import Column
from widgets.format import bit_rate, si
from widgets.rows import Pieces, Tones, Value
from widgets.tones import Tone

CHANGES = (
    Column("direction", "Dir", 3, priority=2),
    Column("protocol", "Proto", 5, priority=2),
    Column("source", "Source", 21, grows=True),
    Column("destination", "Destination", 21, grows=True),
    Column("change", "Change", 12, "right", unit="bps"),
    Column("rate", "Rate", 11, "right", priority=1, unit="bps"),
    Column("before", "Before", 11, "right", priority=3, unit="bps"),
    Column("more", "Packets", 8, "right", priority=4, unit="packets"),
    Column("state", "State", 5, priority=1),
)
"""In the order of the cells of FlowChanges; the first ones are those of flows."""
_OF_FLOW = 4
_STATES = ("", "new", "gone")
_BOTH, _NEW, _GONE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class FlowChanges:
    """A ValueSource over the flows of two views; arrays are (n,), as the rows of its view."""

    flows: FlowRows
    rate: NDArray[np.float64]
    """Bits per second at the later moment."""
    before: NDArray[np.float64]
    """At the earlier one."""
    change: NDArray[np.float64]
    """Between the two."""
    more: NDArray[np.int64]
    """Packets between the two; those of a flow that is gone are not known, and 0."""
    state: NDArray[np.int64]

    @classmethod
    def of(cls, before: LiveView, after: LiveView, shown: FlowFilter) -> FlowChanges:
        """What changed, of the flows that `shown` passes."""
        old, new = before.rows, after.rows
        gone = np.flatnonzero(~np.isin(old["id"], new["id"], assume_unique=True))
        rows = np.concatenate((new, old.take(gone)))
        order = np.argsort(rows["id"])
        rows = rows.take(order)
        state = np.where(order < len(new), _BOTH, _GONE)
        at = np.searchsorted(old["id"], rows["id"])
        at[at == len(old)] = 0
        then = old.take(at) if len(old) else np.zeros(len(rows), old.dtype)
        # A flow that left and came again begins from nothing.
        again = (then["id"] != rows["id"]) | (then["first_ns"] != rows["first_ns"])
        state[again] = _NEW
        counted = rows["packets"].astype("i8")
        rate = np.where(state == _GONE, 0.0, rows["bit_rate"])
        earlier = np.where(again, 0.0, then["bit_rate"])
        return cls(
            FlowRows(replace(after, rows=rows), shown),
            rate,
            earlier,
            rate - earlier,
            np.where(again, counted, counted - then["packets"].astype("i8")),
            state,
        )

    @property
    def rows(self) -> int:
        """Number of flows."""
        return self.flows.rows

    @property
    def total(self) -> int:
        """Number of flows before the filter."""
        return self.flows.total

    def key(self, index: int) -> Hashable:
        """The flow's LIVE id."""
        return self.flows.key(index)

    def index(self, key: Hashable) -> int | None:
        """The row of a LIVE id, or None."""
        return self.flows.index(key)

    def cells(self, index: int) -> Sequence[str | Pieces]:
        """The row's text."""
        at = self.flows.places[index]
        return (
            *self.flows.cells(index)[:_OF_FLOW],
            signed(self.change[at], bit_rate(self.change[at])),
            bit_rate(self.rate[at]),
            bit_rate(self.before[at]),
            signed(self.more[at], si(self.more[at])),
            _STATES[self.state[at]],
        )

    def tones(self, index: int) -> Tones:
        """The row's tones."""
        at = self.flows.places[index]
        if self.state[at] == _GONE or not (self.change[at] or self.more[at]):
            return Tone.MUTED
        state = Tone.GOOD if self.state[at] == _NEW else Tone.NORMAL
        return *[Tone.NORMAL] * _OF_FLOW, Tone.ACCENT, Tone.NORMAL, Tone.MUTED, Tone.NORMAL, state

    def values(self, position: int) -> Sequence[Value]:
        """The values of a column."""
        if position < _OF_FLOW:
            return self.flows.values(position)
        places, name = self.flows.places, CHANGES[position].id
        if name == "state":
            return [_STATES[number] for number in self.state[places].tolist()]
        found = getattr(self, name)[places]
        return found.round(1).tolist() if name != "more" else found.tolist()  # type: ignore[no-any-return]

    def ordered(self, position: int, *, descending: bool) -> FlowChanges:
        """The same flows by a column; of changes it is their size that counts."""
        if position < _OF_FLOW:
            return replace(self, flows=self.flows.ordered(position, descending=descending))
        places, name = self.flows.places, CHANGES[position].id
        sizes = np.abs(getattr(self, name)[places])
        order = places[np.lexsort((np.abs(self.more[places]), sizes))]
        return replace(self, flows=self.flows.at(order[::-1] if descending else order))


def signed(value: float, text: str) -> str:
    """`text`, with a plus where `value` is above zero."""
    return f"+{text}" if value > 0 else text
