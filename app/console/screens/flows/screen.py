"""Screen 3: flows in conversations, hosts, services or networks, with a detail of one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from textual import on
from textual.widget import Widget

from app.commands.flow_view import Grouping
from app.console.live.flows import LIVE, MAX_FLOWS
from app.console.live.owners import owned
from app.console.live.state import Frame
from app.console.own_probes import OwnProbesLine
from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens.flows.capture import CaptureCommand
from app.console.screens.flows.columns import CHANGES, FLOWS
from app.console.screens.flows.commands import TraceCommands, ViewCommands
from app.console.screens.flows.compare import flow_changes, group_changes
from app.console.screens.flows.detail import FlowDetail, flow_subject, group_subject, past_of
from app.console.screens.flows.group_columns import GROUP_CHANGES, GROUPS
from app.console.screens.flows.group_part import ShownGroups
from app.console.screens.flows.grouped import GroupedFlows, GroupKey
from app.console.screens.flows.owners.cells import RowOwner
from app.console.screens.flows.part import ShownFlows, endpoint
from app.console.screens.flows.rows import (
    OWNED_FROM,
    flow_columns,
    flow_rows,
    group_columns,
    group_rows,
)
from app.console.screens.flows.selection import Selection
from app.console.screens.flows.table import live_table
from app.console.screens.flows.totals import TotalsLine
from app.console.tables.array_rows import ArrayRows
from app.console.tables.sorted_table import OPEN, SortedTable
from app.tape.named_state import StateValues
from bpf.arrays import Array, Row, Rows
from bpf.errors import UsageError
from bpf.quantities import counted, si
from probes.filter import Domain, RowTable
from probes.filter.hosts import protocol_name
from probes.filter.owners import needs_owners
from probes.flow.filter import LIVE_FLOWS, FlowFilter
from probes.sockets.filter import Owned
from widgets.status import StatusItem
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_WAITING = "waiting for packets"
_FILTERED = "no flow passes the filter; escape clears it"
_FILTERED_SOME = "no flow with a row passes the filter yet: the next window is searched whole"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    total = len(console.frame.flows.rows)
    return {
        "flow.total": total, "flow.count": total, "flow.filter": "", "flow.sort": "rate",
        "flow.order": "descending", "flow.capture": console.plane.capture, "flow.detail": False,
        "flow.view": str(Grouping()), "flow.opened": "", "flow.owned": console.frame.owners.share,
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
        self._trace = TraceCommands(self, self.flows_under_cursor)
        views = ViewCommands(self, self.shown, self.group_under_cursor)
        capture = CaptureCommand(
            self, "flow.capture",
            lambda: self.console.frame.flows.node(*self.flows_under_cursor()["id"].tolist()),
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
        frame = self.console.frame
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
        self.query_one(OwnProbesLine).follow(self.console.frame.paths)
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
        if isinstance(key, int) and self.shown.by.is_grouped:
            groups = self._grouped()
            found = np.flatnonzero(groups.flows["id"] == key)
            row = int(groups.rows["id"][groups.of[found[0]]]) if len(found) else None
        return None if row is None or self.table.source.index(row) is None else row

    def group_under_cursor(self) -> ShownGroups | None:
        """The group of the row under the cursor; None in the view of directions."""
        key = self.table.cursor_key
        if not (self.shown.by.is_grouped and isinstance(key, int)):
            return None
        rows = group_rows(self._grouped(), self.console.names)
        at = rows.index(key)
        return None if at is None else rows.part.at(np.array([at]))

    def flows_under_cursor(self) -> Rows[LIVE]:
        """Flows of the row under the cursor, dtype LIVE (n,)."""
        rows, key = self.console.frame.flows.rows, self.table.cursor_key
        group = self.group_under_cursor()
        of_row = rows["id"] == key if group is None else group.opened.mask(rows, self._owned)
        return rows[of_row]

    @property
    def _owned(self) -> Owned:
        frame = self.console.frame
        return owned(frame.flows, frame.owners)

    def _owner_of(self, row: Row[LIVE]) -> RowOwner:
        """Return the owner of a row of dtype LIVE."""
        at = int(np.searchsorted(self.console.frame.flows.rows["id"], row["id"]))
        return RowOwner(self._owned, int(self._owned.at[at]))

    def _grouped(self) -> GroupedFlows:
        return self.shown.grouped(self.console.frame, self.console.names)

    def _show_detail(self) -> None:
        if not self.detail.is_open:
            return
        view, subject = self.console.frame.flows, None
        history, now_ns = self.console.plane.history, view.now_ns
        if (group := self.group_under_cursor()) is not None:
            if self.console.frame.parts:
                history, now_ns = past_of(self.console, group.node)
            subject = group_subject(group, history)
        elif not self.shown.by.is_grouped:
            rows = self.flows_under_cursor()
            subject = next((flow_subject(view, row, self._owner_of(row)) for row in rows), None)
            if len(rows) and (node := view.node(int(rows[0]["id"]))):
                history, now_ns = past_of(self.console, node)
        self.detail.follow(self.table.cursor_key)
        self.detail.show(subject, now_ns, history, self.console.time.span)

    def states(self) -> StateValues:
        table, shown = self.table, self.shown
        values: StateValues = {
            "flow.count": len(self._places()),
            "flow.filter": shown.filter.text,
            "flow.view": str(shown.by),
            "flow.opened": shown.opened.text if shown.opened is not None else "",
            "flow.sort": table.sort,
            "flow.order": "descending" if table.descending else "ascending",
            "flow.detail": self.detail.is_open,
            "flow.owned": self.console.frame.owners.share,
            "flow.explanation": self._trace.explanation,
        }
        if (group := self.group_under_cursor()) is not None:
            values |= {"flow.group": group.texts()[0], "flow.rate": float(group["rate"][0])}
            if group.kind == "conversations":
                values |= {
                    "flow.source": group.endpoints("near")[0],
                    "flow.destination": group.endpoints("far")[0],
                    "flow.protocol": group.protocols()[0],
                    **group.owners[0].states,
                }
            return values
        for row in self.flows_under_cursor():
            values |= self._owner_of(row).states | {
                "flow.source": endpoint(row, "source"),
                "flow.destination": endpoint(row, "destination"),
                "flow.protocol": protocol_name(int(row["protocol"])),
                "flow.rate": float(row["bit_rate"]),
            }
        return values

    def _show_rows(self) -> None:
        frame, frames = self.console.frame, self.console.time.compared
        rows = self._rows() if frames is None else self._changes(*frames)
        name = rows.spec.name
        self.turn_to(name, *(table.spec.name for table in self.tables if table.spec.name != name))
        traced = len(frame.paths.series) > 0
        if rows.spec is FLOWS:
            has_owners = bool(frame.owners) and self.size.width >= OWNED_FROM
            self.table.columns = flow_columns(frame.flows, traced=traced, owned=has_owners)
        elif rows.spec in GROUPS:
            groups = self._grouped()
            self.table.columns = group_columns(groups, self.size.width, traced=traced)
        filtered = _FILTERED_SOME if frame.flows.left_out else _FILTERED
        self.table.empty = filtered if len(frame.flows.rows) else _WAITING
        self.table.fill(rows)
        places = self._places()
        self.console.time.state.focus_flows(self.shown.focus(self._ids(), frame.owners))
        self.query_one(TotalsLine).follow(frame, places, rows.rows, self.shown.by)
        self._note(len(places))

    def _rows(self) -> ArrayRows[Any]:
        frame, names = self.console.frame, self.console.names
        if self.shown.by.is_grouped:
            return group_rows(self._grouped(), names, self.size.width)
        table = self.shown.table(frame, names)
        return flow_rows(frame.flows, self.shown.places(table), table)

    def _changes(self, before: Frame, after: Frame) -> ArrayRows[Any]:
        shown, names = self.shown, self.console.names
        changes: ArrayRows[ShownFlows] = flow_changes(
            before.flows, after.flows, shown.filter, after.paths, names, after.owners
        )
        if shown.opened is not None:
            part = changes.part
            kept = shown.opened.mask(part.view.rows, part.table.owned)[part.places]
            changes = changes.at(np.flatnonzero(kept))
        return group_changes(changes.part, shown.by, names) if shown.by.is_grouped else changes

    def _places(self) -> Array:
        """Places of the shown flows in the frame."""
        if self.shown.by.is_grouped:
            return self._grouped().places
        return self.shown.places(self.shown.table(self.console.frame, self.console.names))

    def _ids(self) -> Array:
        """Ids of the flows in view, if flows may have to leave for others."""
        if len(self.console.frame.flows.rows) < MAX_FLOWS // 2:
            return np.empty(0, "u8")
        source = self.table.source
        ids = np.array([source.key(index) for index in self.table.in_view], "u8")
        if self.shown.by.is_grouped:
            groups = self._grouped()
            ids = groups.flows["id"][np.isin(groups.rows["id"], ids)[groups.of]]
        return ids

    def _note(self, count: int) -> None:
        """Show the number of flows, the filter and the losses in the status strip."""
        frame, shown = self.console.frame, self.shown
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
        if self.table.sort == "rtt" and not len(self.console.frame.paths.series):
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
