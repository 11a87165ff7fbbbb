"""A box with a list of rows over the screen."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ScreenResultType
from textual.widgets import Static

from app.console.dialogs.help_box import BoxScreen
from widgets.table.rows import Column, Rows
from widgets.table.table import VirtualTable

_OTHER_LINES = 3
"""Lines of the box without the list and the help: two borders, and a gap."""


class ListBox(BoxScreen[ScreenResultType]):
    """A box in the middle, as high as its list; the keys of tables move in it."""

    BINDINGS = [
        Binding("escape,q", "dismiss", "Cancel"),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,g,pageup", "move(-100)", show=False),
        Binding("end,G,pagedown", "move(100)", show=False),
    ]
    DEFAULT_CSS = """
    ListBox { align: center middle; }
    ListBox > .box { padding: 0 1; }
    ListBox VirtualTable { background: $panel; }
    ListBox Static { height: auto; color: $text-muted; margin-top: 1; }
    """
    help_text: ClassVar[str]
    """Keys and their actions."""
    columns: ClassVar[tuple[Column[Any], ...]]

    @property
    def title_text(self) -> str:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(self.title_text)
            yield VirtualTable(self.columns)
            yield Static(self.help_text, markup=False)

    @property
    def listed(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def rows(self) -> Rows:
        """Return the rows of the list."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self._fit()

    def show(self) -> None:
        """Show the present rows."""
        self.listed.show(self.rows())
        self._fit()

    def _fit(self) -> None:
        help_lines = self.help_text.count("\n") + 1
        room = max(2, self.size.height - _OTHER_LINES - help_lines)
        self.listed.styles.height = min(1 + self.listed.source.rows, room)

    def action_move(self, rows: int) -> None:
        self.listed.action_move(rows)
