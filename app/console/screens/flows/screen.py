"""Screen 3: the flows of the interface, sorted and filtered, with a detail of one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import partial

import numpy as np
from textual import on
from textual.widget import Widget

from app.console.live.flows import Focus, LiveView
from app.console.own_probes import OwnProbesLine
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, counted
from app.console.screens.flows.columns import CHANGES, FLOWS
from app.console.screens.flows.compare import FlowChanges
from app.console.screens.flows.detail import FlowDetail
from app.console.screens.flows.flow import endpoint
from app.console.screens.flows.rows import FlowRows, flow_columns, path_of
from app.console.screens.flows.table import Rtts, live_table
from app.console.tables.sorted_table import OPEN, SortedTable
from app.console.tasks import Task
from app.tape.named_state import StateValues
from bpf.errors import ProbedeckError, UsageError
from probes.control_plane import Replacement
from probes.filter import Domain, RowTable
from probes.filter.network import protocol_name
from probes.flow.filter import LIVE_FLOWS, FlowFilter
from probes.flow.records import Array
from probes.snapshot import Event
from widgets.format import duration, si
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
    }  # fmt: skip


class FlowsScreen(ConsoleScreen):
    """Flows in a table; `/` filters what is shown, `C` chooses what is counted."""

    MODE = "flows"
    CSS = """
    FlowsScreen.-wide FlowDetail > Static { width: 62; }
    FlowsScreen.-wide FlowDetail > HistoryChart { display: block; }
    FlowsScreen.-tall.-wide FlowDetail { height: 12; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._filter = FlowFilter()
        self._rtts = Rtts()

    def compose_body(self) -> list[Widget]:
        changes = SortedTable(CHANGES, empty=_FILTERED)
        changes.display = False
        return [SortedTable(FLOWS, empty=_WAITING), changes, OwnProbesLine(), FlowDetail()]

    def filtered(self) -> tuple[tuple[Domain, RowTable], ...]:
        return ((LIVE_FLOWS, live_table(self.console.frame.flows)),)

    @property
    def table(self) -> SortedTable:
        """The table of flows, or of their changes between two moments."""
        return next(t for t in self.tables if t.display)

    @property
    def detail(self) -> FlowDetail:
        return self.query_one(FlowDetail)

    def keep(self) -> dict[str, str]:
        detail = OPEN if self.detail.is_open else ""
        return super().keep() | {"filter": self._filter.text, "detail": detail}

    def restore(self, kept: Mapping[str, str]) -> None:
        with suppress(UsageError):
            self._filter = FlowFilter.parse(kept.get("filter", ""), self.console.settings.filters)
        self.detail.set_class(kept.get("detail") == OPEN, "open")
        self.detail.follow(self.table.cursor_key)
        super().restore(kept)

    def show(self) -> None:
        self.query_one(OwnProbesLine).follow(self.console.frame.paths)
        self._show_rows()
        self._show_detail()

    def point_at(self, key: Hashable) -> None:
        """Put the cursor on the flow of this LIVE id; a filter that hides it is given up."""
        self.show()
        if self._filter and self.table.source.index(key) is None:
            self._filter = FlowFilter()
            self.show()
        self.table.want(key)
        self.set_focus(self.table)

    def _show_detail(self) -> None:
        if self.detail.is_open:
            self.detail.show(
                self.console.frame.flows, self.console.plane.history, self.console.time.span
            )

    def states(self) -> StateValues:
        table, view = self.table, self.console.frame.flows
        values: StateValues = {
            "flow.count": self._flow_rows().rows,
            "flow.filter": self._filter.text,
            "flow.sort": table.sort,
            "flow.order": "descending" if table.descending else "ascending",
            "flow.detail": self.detail.is_open,
        }
        for row in view.rows[view.rows["id"] == table.cursor_key]:
            values |= {
                "flow.source": endpoint(row, "source"),
                "flow.destination": endpoint(row, "destination"),
                "flow.protocol": protocol_name(int(row["protocol"])),
                "flow.rate": float(row["bit_rate"]),
            }
        return values

    def _flow_rows(self) -> FlowRows:
        frame = self.console.frame
        table = live_table(frame.flows, frame.paths, self.console.names, self._rtts.medians)
        return FlowRows(frame.flows, self._filter, table=table)

    def _show_rows(self) -> None:
        view = self.console.frame.flows
        rows: FlowRows | FlowChanges
        if (frames := self.console.time.compared) is not None:
            flows = frames[0].flows, frames[1].flows
            rows = FlowChanges.of(*flows, self._filter, frames[1].paths, self.console.names)
        else:
            rows = self._flow_rows()
        tables = "flows", "changes"
        self.turn_to(*(tables if frames is None else reversed(tables)))
        if frames is None:
            traced = len(self.console.frame.paths.series) > 0
            self.table.columns = flow_columns(view.rows, traced=traced)
        filtered = _FILTERED_SOME if view.left_out else _FILTERED
        self.table.empty = filtered if rows.total else _WAITING
        self.table.fill(rows)
        self._focus()
        count = f"{rows.rows} of " if self._filter else ""
        notes = [StatusItem(count + counted(rows.total, "flow"), Tone.MUTED, priority=3)]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        if self.table.sort == "rtt" and not len(self.console.frame.paths.series):
            notes.append(StatusItem("no RTT is known yet: Enter traces a flow", Tone.WARN, 3))
        if view.left_out:
            notes.append(StatusItem(f"{si(view.left_out)} more not shown", Tone.WARN, 2))
        self.show_notes(*notes)

    def _focus(self) -> None:
        """Have the flows that pass the filter, and those in view, come first in a flood."""
        shown = self._filter

        def passes(rows: Array, now_ns: int) -> Array:
            # Without names: looking them up would hold up the probe's thread.
            return shown.mask(live_table(LiveView(rows, now_ns, 0)))

        source = self.table.source
        ids = np.array([source.key(index) for index in self.table.in_view], "u8")
        self.console.time.state.focus_flows(Focus(passes, ids) if shown else Focus(ids=ids))

    do_flow_sort = ConsoleScreen.sort_rows
    do_flow_reverse = ConsoleScreen.reverse_rows

    def do_flow_top(self) -> None:
        self.table.action_top()

    def do_flow_detail(self) -> None:
        if self.table.cursor_key is not None:
            self.detail.follow(self.table.cursor_key)
            self.detail.add_class("open")
            self._show_detail()

    def do_flow_trace(self) -> None:
        rows = self.console.frame.flows.rows
        try:
            for row in rows[rows["id"] == self.table.cursor_key]:
                self.trace(path_of(row))
        except UsageError as error:
            self.console.complain(error)

    def do_flow_filter(self, text: str | None = None) -> None:
        if text is None:
            example = "tcp port:443 rate>1M host:/^www/"
            self.prompt.ask("flow.filter", "Show only", example, self._filter.text)
            return
        self._filter = FlowFilter.parse(text, self.console.settings.filters)
        self._show_rows()

    def do_flow_capture(self, text: str | None = None) -> None:
        if text is None:
            self.prompt.ask(
                "flow.capture", "Count only", "tcp port:443", self.console.plane.capture
            )
            return
        capture = FlowFilter.parse(text, self.console.settings.filters)
        capture.to_c()
        # Whoever captures may be another host, which knows no names of ours.
        capture = capture.expanded if "@" in text else capture
        what, plane = capture.text or "every flow", self.console.plane

        def done(made: Replacement) -> None:
            text = f"generation {made.generation} counts {what}; it took {duration(made.seconds)}"
            self.notify(text, markup=False)

        def failed(error: ProbedeckError) -> None:
            plane.publish(Event.now("error", "flow", str(error)))
            self.console.complain(error)

        ask = partial(plane.reconfigure, capture)
        self.run_in_worker(ask, done, failed, task=Task(f"counting {what}"))

    do_flow_clear = ConsoleScreen.leave

    def close_detail(self) -> bool:
        was_open = self.detail.is_open
        self.detail.remove_class("open")
        return was_open

    def clear_filter(self) -> bool:
        if was_set := bool(self._filter.text):
            self._filter = FlowFilter()
            self._show_rows()
        return was_set

    @on(VirtualTable.RowSelected)
    async def _row_selected(self) -> None:
        await self.console.action_command("flow.trace")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        if self.detail.is_open:
            self.detail.follow(event.key)
            self._show_detail()
