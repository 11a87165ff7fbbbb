"""Screen 3: the flows of the interface, sorted and filtered, with a detail of one."""

from __future__ import annotations

import numpy as np
from textual import on
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from app.commands import REGISTRY
from app.commands.registry import FLOW_COLUMNS
from app.console.commands import bindings
from app.console.flow_detail import FlowDetail
from app.console.flow_rows import COLUMNS, FlowRows, path_of
from app.console.prompt import Prompt
from app.console.screens.base import DeckScreen, counted
from bpf.errors import UsageError
from probes.flow.filter import FlowFilter
from widgets.format import si
from widgets.status import StatusItem
from widgets.table import VirtualTable
from widgets.tones import Tone

_WAITING = "waiting for packets"
_FILTERED = "no flow passes the filter; escape clears it"


class FlowTable(VirtualTable):
    """The flows."""

    BINDINGS = [Binding("enter", "select", "Trace", id="table.select")]


class FlowsScreen(DeckScreen):
    """Flows in a table; `/` filters what is shown, `C` chooses what is counted."""

    BINDINGS = bindings("flows")
    CSS = """
    FlowsScreen.-wide FlowDetail > Static { width: 62; }
    FlowsScreen.-wide FlowDetail > HistoryChart { display: block; }
    FlowsScreen.-tall.-wide FlowDetail { height: 12; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._sort = FLOW_COLUMNS[0]
        self._descending = True
        self._filter = FlowFilter()

    def compose_body(self) -> list[Widget]:
        return [FlowTable(COLUMNS, empty=_WAITING, id="flows"), FlowDetail(), Prompt()]

    @property
    def filter(self) -> FlowFilter:
        """Which flows are shown."""
        return self._filter

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    @property
    def detail(self) -> FlowDetail:
        return self.query_one(FlowDetail)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    def show(self) -> None:
        self._show_rows()
        self._show_detail()

    def _show_detail(self) -> None:
        if self.detail.is_open:
            self.detail.show(self.deck.frame.flows, self.deck.history)

    def _show_rows(self) -> None:
        """Show the flows of the frame, in the order and with the filter of now."""
        view = self.deck.frame.flows
        rows = FlowRows(view, self._filter, self._sort, descending=self._descending)
        self.table.empty = _FILTERED if rows.total else _WAITING
        self.table.show(rows)
        self.table.show_sort(self._sort, descending=self._descending)
        count = f"{rows.rows} of " if self._filter.terms else ""
        notes = [StatusItem(count + counted(rows.total, "flow"), Tone.MUTED, priority=4)]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        if view.left_out:
            notes.append(StatusItem(f"{si(view.left_out)} more not shown", Tone.WARN, 3))
        self.deck.show_notes(*notes)

    def sort_by(self, column: str, *, descending: bool) -> None:
        """Order the table; the cursor stays on a flow whose detail is open, or goes to the top."""
        self._sort, self._descending = column, descending
        self._show_rows()
        if not self.detail.is_open:
            self.table.unpin()

    def do_flow_sort(self, column: str = "") -> None:
        following = FLOW_COLUMNS[(FLOW_COLUMNS.index(self._sort) + 1) % len(FLOW_COLUMNS)]
        wanted = column or following
        self.sort_by(wanted, descending=_largest_first(wanted))

    def do_flow_reverse(self) -> None:
        self.sort_by(self._sort, descending=not self._descending)

    def do_flow_top(self) -> None:
        self.table.unpin()

    def do_flow_detail(self) -> None:
        if self.table.cursor_key is not None:
            self.detail.follow(self.table.cursor_key)
            self.detail.add_class("open")
            self._show_detail()

    def do_flow_trace(self) -> None:
        view = self.deck.frame.flows
        found = np.flatnonzero(view.rows["id"] == self.table.cursor_key)
        if not len(found):
            return
        try:
            self.trace(path_of(view.rows[found[0]]))
        except UsageError as error:
            self.deck.complain(error)

    def do_flow_filter(self, text: str | None = None) -> None:
        if text is None:
            example = "tcp port:443 net:10.0.0.0/8"
            self.prompt.ask("flow.filter", "Show only", example, self._filter.text)
            return
        self._filter = FlowFilter.parse(text)
        self._show_rows()

    def do_flow_capture(self, text: str | None = None) -> None:
        if text is None:
            self.prompt.ask("flow.capture", "Count only", "tcp port:443", self.deck.capture.text)
            return
        capture = FlowFilter.parse(text)
        capture.to_c()
        self.deck.reconfigure(capture)

    def do_flow_clear(self) -> None:
        if self.prompt.is_open:
            self._close_prompt()
        elif self.detail.is_open:
            self.detail.remove_class("open")
        else:
            self._filter = FlowFilter()
            self._show_rows()

    def _close_prompt(self) -> None:
        self.prompt.close()
        self.set_focus(self.table)

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        try:
            getattr(self, REGISTRY[self.prompt.command].method)(event.value)
        except UsageError as error:
            self.deck.complain(error)
        else:
            self._close_prompt()

    @on(VirtualTable.HeaderSelected)
    def _header_selected(self, event: VirtualTable.HeaderSelected) -> None:
        if event.column in FLOW_COLUMNS:
            again = event.column == self._sort
            descending = not self._descending if again else _largest_first(event.column)
            self.sort_by(event.column, descending=descending)

    @on(VirtualTable.RowSelected)
    async def _row_selected(self) -> None:
        await self.deck.action_command("flow.trace")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        if self.detail.is_open:
            self.detail.follow(event.key)
            self._show_detail()


def _largest_first(column: str) -> bool:
    """Numbers begin with the largest, words with the first, idle time with the shortest."""
    return column in ("rate", "packet_rate", "packets", "bytes", "age")
