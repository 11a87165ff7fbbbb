"""Two moments side by side: what became of each flow, and of each hop, between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.paths import PathView
from app.console.screens.flows.rows import FlowRows
from app.console.screens.flows.table import live_table
from app.console.screens.paths.model import Hop
from app.console.screens.paths.numbers import NONE
from app.console.screens.paths.rows import host_text, in_ms
from probes.flow.filter import FlowFilter
from widgets.format import bit_rate, milliseconds, percent, si
from widgets.table.columns import Column
from widgets.table.rows import Pieces, Row, Rows, Tones, Value
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
    Column("state", "Flow", 4, priority=1),
)
"""In the order of the cells of FlowChanges; the first ones are those of flows."""
HOP_CHANGES = (
    Column("hop", "Hop", 3, "right"),
    Column("host", "Host", 15, grows=True),
    Column("change", "Change ms", 9, "right", unit="ms"),
    Column("median", "Median", 7, "right", priority=1, unit="ms"),
    Column("before", "Before", 7, "right", priority=1, unit="ms"),
    Column("loss", "Loss", 6, "right", priority=2),
    Column("was_loss", "Before", 6, "right", priority=2),
    Column("was_host", "Host before", 15, priority=3, grows=True),
)
_CHANGE = 2
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
    def of(
        cls, before: LiveView, after: LiveView, shown: FlowFilter, paths: PathView | None = None,
        names: Names | None = None,
    ) -> FlowChanges:  # fmt: skip
        """What changed, of the flows that `shown` passes; it may ask for RTTs on `paths`."""
        old, new = before.rows, after.rows
        gone = np.flatnonzero(~np.isin(old["id"], new["id"], assume_unique=True))
        rows = np.concatenate((new, old.take(gone)))
        order = np.argsort(rows["id"])
        rows = rows.take(order)
        view = replace(after, rows=rows)
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
            FlowRows(view, shown, table=live_table(view, paths, names)),
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
            signed(self.change[at], bit_rate),
            bit_rate(self.rate[at]),
            bit_rate(self.before[at]),
            signed(self.more[at], si),
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


def hop_changes(before: Sequence[Hop], after: Sequence[Hop], names: Names) -> Rows:
    """A row for each hop of a path at one of two moments, whose key is its number."""
    old, new = ({hop.number: hop for hop in hops} for hops in (before, after))
    return Rows.of(_hop_row(old.get(n), new.get(n), names) for n in sorted(old.keys() | new.keys()))


def _hop_row(before: Hop | None, after: Hop | None, names: Names) -> Row:
    was, now = (hop.numbers if hop is not None else NONE for hop in (before, after))
    hosts = [host_text(hop, names) if hop is not None else "" for hop in (before, after)]
    number = next(hop.number for hop in (after, before) if hop is not None)
    change = now.median - was.median
    moved = hosts[0] != hosts[1]
    cells = (
        str(number),
        hosts[1] or "gone",
        signed(change, milliseconds),
        milliseconds(now.median),
        milliseconds(was.median),
        percent(now.loss),
        percent(was.loss),
        (hosts[0] or "new") if moved else "",
    )
    muted, normal = Tone.MUTED, Tone.NORMAL
    lossy = Tone.BAD if now.loss > was.loss else normal
    tones = (
        muted, Tone.WARN if moved else normal, Tone.ACCENT, normal, muted, lossy, muted, muted,
    )  # fmt: skip
    times = [in_ms(seconds) for seconds in (change, now.median, was.median)]
    values = (number, cells[1], *times, now.loss, was.loss, cells[7])
    ranks = {_CHANGE: abs(change)} if math.isfinite(change) else {}
    return Row(number, cells, tones, values, ranks)


def signed(value: float, text: Callable[[float], str]) -> str:
    """A difference, as `text` puts it into words."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + text(abs(value))
