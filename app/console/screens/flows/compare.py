"""Two moments of screen 3 side by side: the changes of each flow, or of groups."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.owners import NO_OWNERS, OwnerView
from app.console.live.paths import PathView
from app.console.screens.flows.columns import CHANGES, SHARED
from app.console.screens.flows.flow import Change
from app.console.screens.flows.group_columns import GROUP_CHANGES
from app.console.screens.flows.group_rows import GroupRows
from app.console.screens.flows.grouped import GroupedFlows
from app.console.screens.flows.rows import FlowRows
from app.console.screens.flows.table import live_table
from app.console.tables.columns import Cells, tone
from probes.flow.filter import FlowFilter
from probes.flow.records import Array
from widgets.table.rows import Tones, Value
from widgets.tones import Tone

_STATES = ("", "new", "gone")
_BOTH, _NEW, _GONE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class FlowChanges:
    """A ValueSource over the flows of two views; arrays are (n,), as the rows of its view."""

    spec = CHANGES

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
        names: Names | None = None, owners: OwnerView = NO_OWNERS,
    ) -> FlowChanges:  # fmt: skip
        """Compare the flows that `shown` passes; terms on RTTs look at `paths`."""
        old, new = before.rows, after.rows
        gone = np.flatnonzero(~np.isin(old["id"], new["id"], assume_unique=True))
        rows = np.concatenate((new, old.take(gone)))
        order = np.argsort(rows["id"])
        rows = rows.take(order)
        view = replace(after, rows=rows)
        if after.node_of is not None and before.node_of is not None:
            # Hosts may have been lost, or come, between the moments.
            nodes = tuple(dict.fromkeys((*after.nodes, *before.nodes)))
            to = np.array([nodes.index(node) for node in before.nodes], "u2")
            node_of = np.concatenate((after.node_of, to[before.node_of[gone]]))[order]
            view = replace(view, nodes=nodes, node_of=node_of)
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
            FlowRows(view, shown, table=live_table(view, paths, names, owners=owners)),
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

    def cells(self, index: int) -> Cells[Change]:
        return Cells(CHANGES, self._flow(index))

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


_SUMS = ("change", "rate", "before", "more")


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group at two moments, for the cells of its row."""

    text: str
    change: float
    rate: float
    before: float
    more: float
    state: str


@dataclass(frozen=True, slots=True, eq=False)
class GroupChanges:
    """A ValueSource over the groups of compared flows."""

    spec = GROUP_CHANGES

    shown: GroupRows
    numbers: Mapping[str, Array]
    """Sums of the flows' changes, and places in _STATES, by column, (m,) by place of the group."""
    total: int
    """Flows of both moments, also those that the filter hides."""

    @classmethod
    def of(cls, changes: FlowChanges, by: Grouping, names: Names | None) -> GroupChanges:
        """Group compared flows. A group is new, or gone, if all its flows are."""
        flows, places = changes.flows, changes.flows.places
        groups = GroupedFlows(flows.view, places, by, flows.table)
        numbers = {name: groups.sums(getattr(changes, name)[places]) for name in _SUMS}
        size, state = groups.sums(np.ones(len(places))), changes.state[places]
        found = np.full(len(size), _BOTH)
        for one in (_NEW, _GONE):
            found[groups.sums(state == one) == size] = one
        return cls(GroupRows.of(groups, names), numbers | {"state": found}, flows.total)

    @property
    def rows(self) -> int:
        return self.shown.rows

    def key(self, index: int) -> Hashable:
        return self.shown.key(index)

    def index(self, key: Hashable) -> int | None:
        return self.shown.index(key)

    def _change(self, index: int) -> GroupChange:
        group = self.shown.group(index)
        change, rate, before, more = (float(self.numbers[name][group.at]) for name in _SUMS)
        state = _STATES[self.numbers["state"][group.at]]
        return GroupChange(group.text, change, rate, before, more, state)

    def cells(self, index: int) -> Cells[GroupChange]:
        return Cells(GROUP_CHANGES, self._change(index))

    def tones(self, index: int) -> Tones:
        change = self._change(index)
        if change.state == _STATES[_GONE] or not (change.change or change.more):
            return Tone.MUTED
        return [tone(column, change) for column in GROUP_CHANGES.columns]

    def values(self, position: int) -> Sequence[Value]:
        name = GROUP_CHANGES.columns[position].id
        if name == "group":
            return self.shown.texts(lambda group: group.text)
        found = self.numbers[name][self.shown.order]
        if name == "state":
            return [_STATES[number] for number in found.tolist()]
        return found.round(1).tolist()  # type: ignore[no-any-return]

    def ordered(self, position: int, *, descending: bool) -> GroupChanges:
        """The same groups by a column; the size of a change orders, not its sign."""
        name, order = GROUP_CHANGES.columns[position].id, self.shown.order
        if name == "group":
            texts = self.shown.texts(lambda group: group.text)
            found = order[sorted(range(len(texts)), key=texts.__getitem__)]
        else:
            more, sizes = (np.abs(self.numbers[each][order]) for each in ("more", name))
            found = order[np.lexsort((more, sizes))]
        return replace(self, shown=self.shown.at(found[::-1] if descending else found))
