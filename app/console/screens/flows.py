"""Screen 3: the flows of the interface, sorted and filtered, with a detail of one."""

from __future__ import annotations

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from app.console.commands import bindings
from app.console.flow_detail import FlowDetail
from app.console.flow_rows import COLUMNS, SORTS, FlowRows
from app.console.screens.base import DeckScreen
from bpf.errors import UsageError
from probes.flow.filter import FlowFilter
from probes.flow.live import LiveView
from widgets.format import si
from widgets.status import StatusItem
from widgets.table import VirtualTable
from widgets.tones import Tone

_WAITING = "waiting for packets"
_FILTERED = "no flow passes the filter; escape clears it"


class FlowsScreen(DeckScreen):
    """Flows in a table; `/` filters what is shown, `C` chooses what is counted."""

    BINDINGS = bindings("flows")
    CSS = """
    #prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    #prompt.open { display: block; }
    FlowDetail { display: none; }
    FlowDetail.open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._sort = SORTS[0]
        self._descending = True
        self._filter = FlowFilter()
        self._view: LiveView | None = None
        self._answering = ""
        """The command that the prompt is open for."""

    def compose_body(self) -> list[Widget]:
        prompt = Input(id="prompt", select_on_focus=False)
        prompt.cursor_blink = False
        return [VirtualTable(COLUMNS, empty=_WAITING, id="flows"), FlowDetail(), prompt]

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    @property
    def detail(self) -> FlowDetail:
        return self.query_one(FlowDetail)

    def show(self) -> None:
        self._view = self.deck.state.flows.view()
        self._show_rows()
        if self.detail.has_class("open"):
            self.detail.show(self._view, self.deck.history)

    def _show_rows(self) -> None:
        """Show the same flows, in the order and with the filter of now."""
        if self._view is None:
            return
        rows = FlowRows(self._view, self._filter, self._sort, descending=self._descending)
        self.table.empty = _FILTERED if rows.total else _WAITING
        self.table.show(rows)
        self.table.show_sort(self._sort, descending=self._descending)
        count = f"{rows.rows} of {rows.total}" if self._filter.terms else str(rows.rows)
        notes = [StatusItem(f"{count} flows", Tone.MUTED, priority=4)]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        if self._view.left_out:
            notes.append(
                StatusItem(f"{si(self._view.left_out)} more are only in files", Tone.WARN, 3)
            )
        self.deck.show_notes(*notes)

    def sort_by(self, column: str, *, descending: bool) -> None:
        self._sort, self._descending = column, descending
        self._show_rows()

    def do_flow_sort(self) -> None:
        following = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self.sort_by(following, descending=_largest_first(following))

    def do_flow_reverse(self) -> None:
        self.sort_by(self._sort, descending=not self._descending)

    def do_flow_top(self) -> None:
        self.table.unpin()

    def do_flow_detail(self) -> None:
        self.table.action_select()

    def do_flow_filter(self) -> None:
        self._ask("flow.filter", "show only: proto:tcp port:443 net:10.0.0.0/8", self._filter.text)

    def do_flow_capture(self) -> None:
        self._ask("flow.capture", "count only: proto:tcp port:443", self.deck.capture.text)

    def do_flow_clear(self) -> None:
        if self.query_one("#prompt").has_class("open"):
            self._close_prompt()
        elif self.detail.has_class("open"):
            self.detail.remove_class("open")
        else:
            self._filter = FlowFilter()
            self._show_rows()

    def _ask(self, command: str, placeholder: str, text: str) -> None:
        prompt = self.query_one("#prompt", Input)
        self._answering = command
        prompt.placeholder, prompt.value = placeholder, text
        prompt.add_class("open")
        prompt.focus()
        prompt.cursor_position = len(text)

    def _close_prompt(self) -> None:
        self.query_one("#prompt").remove_class("open")
        self.table.focus()

    @on(Input.Submitted, "#prompt")
    def _answered(self, event: Input.Submitted) -> None:
        try:
            parsed = FlowFilter.parse(event.value)
            if self._answering == "flow.capture":
                parsed.to_c()
        except UsageError as error:
            self.deck.complain(error)
            return
        self._close_prompt()
        if self._answering == "flow.capture":
            self.deck.reconfigure(parsed)
        else:
            self._filter = parsed
            self._show_rows()

    @on(VirtualTable.HeaderSelected)
    def _header_selected(self, event: VirtualTable.HeaderSelected) -> None:
        if event.column in SORTS:
            again = event.column == self._sort
            descending = not self._descending if again else _largest_first(event.column)
            self.sort_by(event.column, descending=descending)

    @on(VirtualTable.RowSelected)
    def _row_selected(self, event: VirtualTable.RowSelected) -> None:
        self.detail.follow(event.key)
        self.detail.add_class("open")
        if self._view is not None:
            self.detail.show(self._view, self.deck.history)

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        if self.detail.has_class("open") and self._view is not None:
            self.detail.follow(event.key)
            self.detail.show(self._view, self.deck.history)


def _largest_first(column: str) -> bool:
    """Numbers begin with the largest, words with the first, idle time with the shortest."""
    return column in ("rate", "packet_rate", "packets", "bytes", "age")
