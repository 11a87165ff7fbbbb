"""Two moments of screen 3 side by side: the changes of each flow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.paths import PathView
from app.console.screens.flows.columns import CHANGES, SHARED
from app.console.screens.flows.flow import Change
from app.console.screens.flows.rows import FlowRows
from app.console.screens.flows.table import live_table
from app.console.tables.columns import tone
from probes.flow.filter import FlowFilter
from widgets.table.rows import Pieces, Tones, Value
from widgets.tones import Tone

_STATES = ("", "new", "gone")
_BOTH, _NEW, _GONE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class FlowChanges:
    """A ValueSource over the flows of two views; arrays are (n,), as the rows of its view."""

    flows: FlowRows
    rate: NDArray[np.float64]
    """Bits per second at the later moment."""
    before: NDArray[np.float64]
    """Bits per second at the earlier moment."""
    change: NDArray[np.float64]
    """Difference of the two rates."""
    more: NDArray[np.int64]
    """Packets between the two moments; 0 for a flow that is gone."""
    state: NDArray[np.int64]

    @classmethod
    def of(
        cls, before: LiveView, after: LiveView, shown: FlowFilter, paths: PathView | None = None,
        names: Names | None = None,
    ) -> FlowChanges:  # fmt: skip
        """Compare the flows that `shown` passes; terms on RTTs look at `paths`."""
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
        return self.flows.rows

    @property
    def total(self) -> int:
        return self.flows.total

    def key(self, index: int) -> Hashable:
        return self.flows.key(index)

    def index(self, key: Hashable) -> int | None:
        return self.flows.index(key)

    def _flow(self, index: int) -> Change:
        at = int(self.flows.places[index])
        numbers = [array[at] for array in (self.rate, self.before, self.change, self.more)]
        return Change(self.flows.view, self.flows.table, at, _STATES[self.state[at]], numbers)

    def cells(self, index: int) -> Sequence[str | Pieces]:
        flow = self._flow(index)
        return [column.cell(flow) for column in CHANGES.columns]

    def tones(self, index: int) -> Tones:
        flow = self._flow(index)
        if flow.state == _STATES[_GONE] or not (flow.change or flow.more):
            return Tone.MUTED
        return [tone(column, flow) for column in CHANGES.columns]

    def values(self, position: int) -> Sequence[Value]:
        if position < SHARED:
            return self.flows.values(position)
        places, name = self.flows.places, CHANGES.columns[position].id
        if name == "state":
            return [_STATES[number] for number in self.state[places].tolist()]
        found = getattr(self, name)[places]
        return found.round(1).tolist() if name != "more" else found.tolist()  # type: ignore[no-any-return]

    def ordered(self, position: int, *, descending: bool) -> FlowChanges:
        """The same flows by a column; the size of a change orders, not its sign."""
        if position < SHARED:
            return replace(self, flows=self.flows.ordered(position, descending=descending))
        places, name = self.flows.places, CHANGES.columns[position].id
        sizes = np.abs(getattr(self, name)[places])
        order = places[np.lexsort((np.abs(self.more[places]), sizes))]
        return replace(self, flows=self.flows.at(order[::-1] if descending else order))
