"""Screen 3: flows in conversations, hosts, services or networks, with a detail of one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from textual import on
from textual.widget import Widget

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LIVE, MAX_FLOWS, LiveView
from app.console.live.frames import Frame
from app.console.live.owners import owned
from app.console.own_probes import OwnProbesLine
from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens.flows.columns import CHANGES, FLOWS, STATES
from app.console.screens.flows.commands import CaptureCommand, TraceCommands, ViewCommands
from app.console.screens.flows.detail import FlowDetail, TotalsLine, past_of, subject_of
from app.console.screens.flows.group_columns import (
    GROUP_CHANGES,
    GROUPS,
    SPECS,
    shown_columns,
    widths_of,
)
from app.console.screens.flows.paths import Rtts
from app.console.screens.flows.rows import (
    ENDS,
    GONE,
    GroupedFlows,
    ShownFlows,
    live_table,
)
from app.console.screens.flows.selection import GroupKey, Opened, Selection
from app.console.tables.sorted_table import OPEN, SortedTable
from app.tape.named_state import StateValues
from bpf.arrays import Array, Rows
from bpf.errors import UsageError
from bpf.quantities import counted, si
from probes.filter import Domain, RowTable
from probes.filter.owners import needs_owners
from probes.flow.filter import LIVE_FLOWS, FlowFilter
from widgets.status import StatusItem
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_WAITING = "waiting for packets"
_FILTERED = "no flow passes the filter; escape clears it"
_FILTERED_SOME = "no flow with a row passes the filter yet: the next window is searched whole"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    frame = console.time.frame
    total = len(frame.flows.rows)
    return {
        "flow.total": total, "flow.count": total, "flow.filter": "", "flow.sort": "rate",
        "flow.order": "descending", "flow.capture": console.plane.capture, "flow.detail": False,
        "flow.view": str(Grouping()), "flow.opened": "", "flow.owned": frame.owners.share,
    }  # fmt: skip


class FlowsScreen(ConsoleScreen):
    """Flows in a table; `/` filters what is shown, `v` groups it, `C` chooses what is counted."""

    MODE = "flows"
    filter_example = "tcp port:443 rate>1M host:/^www/"
    CSS = """
    FlowsScreen.-wide FlowDetail > Static { width: 68; }
    FlowsScreen.-wide FlowDetail > HistoryChart { display: block; }
    FlowsScreen.-tall.-wide FlowDetail { height: 12; }
    FlowsScreen.-tall.-wide FlowDetail.-owned { height: 14; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = Selection()
        """The flows of the table."""
        self._rtts = Rtts()
        self._found: tuple[object, GroupedFlows | None] = (None, None)
        """The values that the last groups were made of, and these groups."""
        self._trace = TraceCommands(self, self.flows_under_cursor)
        views = ViewCommands(self, self.shown, self.row_under_cursor)
        capture = CaptureCommand(
            self, "flow.capture",
            lambda: self.console.time.frame.flows.node(*self.flows_under_cursor()["id"].tolist()),
            lambda host: self.console.hosts.plane(host).capture,
        )  # fmt: skip
        self.parts = views, self._trace, capture

    def compose_body(self) -> list[Widget]:
        specs = (*GROUPS, FLOWS, CHANGES, GROUP_CHANGES)
        tables = [SortedTable(spec, empty=_WAITING) for spec in specs]
        for table in tables:
            table.display = table is tables[0]
            table.holds = lambda: self.detail.is_open
        return [*tables, TotalsLine(), OwnProbesLine(), FlowDetail()]

    def filtered(self) -> tuple[tuple[Domain, RowTable], ...]:
        frame = self.console.time.frame
        return ((LIVE_FLOWS, live_table(frame.flows, owners=frame.owners)),)

    @property
    def table(self) -> SortedTable:
        """The table in front."""
        return next(t for t in self.tables if t.display)

    @property
    def detail(self) -> FlowDetail:
        return self.query_one(FlowDetail)

    def keep(self) -> dict[str, str]:
        detail = OPEN if self.detail.is_open else ""
        return super().keep() | {"detail": detail, "view": str(self.shown.by)}

    def restore(self, kept: Mapping[str, str]) -> None:
        with suppress(UsageError):
            self.shown.turn_to(Grouping.parse(kept.get("view", str(Grouping()))))
        self.detail.set_class(kept.get("detail") == OPEN, "open")
        self.detail.follow(self.table.cursor_key)
        super().restore(kept)

    def show(self) -> None:
        self.query_one(OwnProbesLine).follow(self.console.time.frame.paths)
        self._show_rows()
        self._show_detail()

    def on_resize(self) -> None:
        # Bars are wider on a wider screen.
        self.call_after_refresh(self.show)

    def point_at(self, key: Hashable) -> None:
        """Put the cursor on a group (GroupKey), or on the flow of a LIVE id or its conversation.

        A filter that hides it is given up.
        """
        if isinstance(key, GroupKey):
            self.shown.turn_to(key.by)
            self.shown.opened = None
        elif not self.shown.by.is_finest:
            self.shown.turn_to(Grouping())
        self.show()
        if self.shown and self._row_of(key) is None:
            self.shown.filter, self.shown.opened = FlowFilter(), None
            self.show()
        row = self._row_of(key)
        self.table.want(key if row is None else row)
        self.set_focus(self.table)

    def _row_of(self, key: Hashable) -> Hashable | None:
        """Return the key of a group or flow in the table; None if the table lacks it."""
        row = key.id if isinstance(key, GroupKey) else key
        if isinstance(key, int):
            groups = self._grouped()
            found = np.flatnonzero(groups.flows["id"] == key)
            row = int(groups.rows["id"][groups.of[found[0]]]) if len(found) else None
        return None if row is None or self.table.source.index(row) is None else row

    def row_under_cursor(self) -> ShownFlows | None:
        """The row under the cursor; None if its flows have left."""
        rows = shown_rows(self._grouped(), self.console.names)
        at = rows.index(self.table.cursor_key)
        return None if at is None else rows.at(np.array([at]))

    def flows_under_cursor(self) -> Rows[LIVE]:
        """Flows of the row under the cursor, dtype LIVE (n,)."""
        frame, row = self.console.time.frame, self.row_under_cursor()
        rows = frame.flows.rows
        if row is None:
            return rows[:0]
        found: Array = rows[Opened.of(row).mask(rows, owned(frame.flows, frame.owners))]
        return found

    def _grouped(self) -> GroupedFlows:
        """Return the shown flows in groups: a frame is grouped once."""
        frame, shown, names = self.console.time.frame, self.shown, self.console.names
        paths = frame.paths.generation, frame.paths.second
        asked = (
            frame.flows, frame.owners, shown.filter, shown.opened, shown.by, paths, names.version,
        )  # fmt: skip
        known, groups = self._found
        if groups is None or known != asked:
            table = live_table(frame.flows, frame.paths, names, self._rtts.medians, frame.owners)
            groups = GroupedFlows(frame.flows, shown.places(table), shown.by, table)
            self._found = asked, groups
        return groups

    def _show_detail(self) -> None:
        if not self.detail.is_open:
            return
        subject, row = None, self.row_under_cursor()
        history, now_ns = self.console.plane.history, self.console.time.frame.flows.now_ns
        if row is not None:
            if self.console.time.frame.parts:
                history, now_ns = past_of(self.console, row.shared("node")[0])
            subject = subject_of(row, history)
        self.detail.follow(self.table.cursor_key)
        self.detail.show(subject, now_ns, history, self.console.time.span)

    def states(self) -> StateValues:
        table, shown = self.table, self.shown
        values: StateValues = {
            "flow.count": len(self._grouped().places),
            "flow.filter": shown.filter.text,
            "flow.view": str(shown.by),
            "flow.opened": shown.opened.text if shown.opened is not None else "",
            "flow.sort": table.sort,
            "flow.order": "descending" if table.descending else "ascending",
            "flow.detail": self.detail.is_open,
            "flow.owned": self.console.time.frame.owners.share,
            "flow.explanation": self._trace.explanation,
        }
        if (row := self.row_under_cursor()) is not None:
            values["flow.rate"] = float(row["rate"][0])
            if shown.by.is_grouped:
                values["flow.group"] = row.texts()[0]
            if shown.by.is_finest:
                near, far = ENDS[row.kind]
                values |= row.owners[0].states | {
                    "flow.source": row.endpoints(near)[0],
                    "flow.destination": row.endpoints(far)[0],
                    "flow.protocol": row.protocols()[0],
                }
        return values

    def _show_rows(self) -> None:
        time, names = self.console.time, self.console.names
        frame, frames = time.frame, time.compared
        groups = self._grouped()
        if frames is None:
            rows = shown_rows(groups, names, self.size.width)
        else:
            rows = changed_rows(*frames, self.shown, names)
        name = rows.spec.name
        self.turn_to(name, *(table.spec.name for table in self.tables if table.spec.name != name))
        if frames is None:
            traced = len(frame.paths.series) > 0
            self.table.columns = shown_columns(groups, self.size.width, traced=traced)
        filtered = _FILTERED_SOME if frame.flows.left_out else _FILTERED
        self.table.empty = filtered if len(frame.flows.rows) else _WAITING
        self.table.fill(rows)
        places = groups.places
        time.state.focus_flows(self.shown.focus(self._ids(), frame.owners))
        self.query_one(TotalsLine).follow(frame, places, rows.rows, self.shown.by)
        self._note(len(places))

    def _ids(self) -> Array:
        """Ids of the flows in view, if flows may have to leave for others."""
        if len(self.console.time.frame.flows.rows) < MAX_FLOWS // 2:
            return np.empty(0, "u8")
        source = self.table.source
        ids = np.array([source.key(index) for index in self.table.in_view], "u8")
        groups = self._grouped()
        found: Array = groups.flows["id"][np.isin(groups.rows["id"], ids)[groups.of]]
        return found

    def _note(self, count: int) -> None:
        """Show the number of flows, the filter and the losses in the status strip."""
        frame, shown = self.console.time.frame, self.shown
        view = frame.flows
        total = counted(len(view.rows), "flow")
        text = f"{count} of {total}" if shown else total
        notes = [StatusItem(text, Tone.MUTED, priority=3)]
        if shown.opened is not None:
            label = shown.opened.by.noun
            notes.append(StatusItem(shown.opened.text, Tone.ACCENT, 2, label=label))
        if shown.filter.text:
            notes.append(StatusItem(shown.filter.text, Tone.ACCENT, 3, label="filter"))
        if not frame.owners and (term := needs_owners(shown.filter.root)):
            notes.append(StatusItem(f"{term} needs owners: :owners.look on", Tone.WARN, 3))
        if self.table.sort == "rtt" and not len(self.console.time.frame.paths.series):
            notes.append(StatusItem("no RTT is known yet: Enter traces a flow", Tone.WARN, 3))
        if view.left_out:
            notes.append(StatusItem(f"{si(view.left_out)} more not shown", Tone.WARN, 2))
        self.show_notes(*notes)

    def do_flow_detail(self) -> None:
        if self.table.cursor_key is not None:
            self.detail.add_class("open")
            self._show_detail()

    @property
    def filter(self) -> FlowFilter:
        return self.shown.filter

    def set_filter(self, text: str) -> None:
        self.shown.filter = FlowFilter.parse(text, self.console.settings.filters)

    do_flow_clear = ConsoleScreen.do_leave

    def close_detail(self) -> bool:
        """Close the detail, else the opened group."""
        was_open = self.detail.is_open
        self.detail.remove_class("open")
        if not was_open and (was_open := self.shown.close()):
            self.show()
        return was_open

    @on(VirtualTable.RowSelected)
    async def _row_selected(self, event: VirtualTable.RowSelected) -> None:
        traces = self.shown.by.is_finest
        if not (traces and event.clicked) or self._trace.is_wanted(event.key):
            await self.console.action_command("flow.explain" if traces else "flow.open")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_detail()


_BAR = 8
"""Usual width of a rate with a bar."""
_BOTH, _NEW, _CUT = map(STATES.index, ("", "new", "cut"))


def shown_rows(groups: GroupedFlows, names: Names | None = None, width: int = 80) -> ShownFlows:
    """Return all groups, for a table of `width` cells."""
    spec, places = SPECS[groups.by.kind], np.arange(len(groups.rows))
    return ShownFlows(spec, groups, places, names, widths_of(width).get("in", _BAR))


def changed_rows(
    before: Frame, after: Frame, shown: Selection, names: Names | None = None
) -> ShownFlows:
    """Compare the shown flows of two frames, or their groups.

    Columns: bits per second at the later moment (`rate`), at the earlier one (`before`), and the
    difference (`change`); packets between the two, 0 for a flow that is gone (`more`); and `state`,
    the places in STATES. A group is new, or gone, if all its flows are, and cut if one is.
    """
    view, changes = _changes(before.flows, after.flows)
    table = live_table(view, after.paths, names, owners=after.owners)
    groups = GroupedFlows(view, shown.places(table), shown.by, table)
    of_flows = {name: values[groups.places] for name, values in changes.items()}
    state, sums = of_flows.pop("state"), {n: groups.sums(of) for n, of in of_flows.items()}
    size, found = groups.sums(np.ones(len(state))), np.full(len(groups.rows), _BOTH)
    for one in (_NEW, GONE):
        found[groups.sums(state == one) == size] = one
    found[groups.sums(state == _CUT) > 0] = _CUT
    spec = GROUP_CHANGES if shown.by.is_grouped else CHANGES
    return ShownFlows(spec, groups, np.arange(len(found)), names, _BAR, sums | {"state": found})


def _changes(before: LiveView, after: LiveView) -> tuple[LiveView, dict[str, Any]]:
    """Return the flows of either view (n,), and the columns (n,) of their changes."""
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
    state = np.where(order < len(new), _BOTH, GONE)
    at = np.searchsorted(old["id"], rows["id"])
    at[at == len(old)] = 0
    then = old.take(at) if len(old) else np.zeros(len(rows), old.dtype)
    # A flow that left and came again begins from nothing.
    again = (then["id"] != rows["id"]) | (then["first_ns"] != rows["first_ns"])
    state[again] = _NEW
    counted = rows["packets"].astype("i8")
    rate = np.where(state == GONE, 0.0, rows["bit_rate"])
    earlier = np.where(again, 0.0, then["bit_rate"])
    # A flow that a cut window lacks is neither new nor gone, and has no rate.
    unknown = (state == GONE) & (rows["last_ns"] <= after.cut_ns) | again & (rows["at_least"] > 0)
    unknown |= after.cut_rates & (rate == 0) | before.cut_rates & (earlier == 0)
    state[unknown] = _CUT
    return view, {
        "rate": rate,
        "before": earlier,
        "change": rate - earlier,
        "more": np.where(again, counted, counted - then["packets"].astype("i8")),
        "state": state,
    }
