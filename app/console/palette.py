"""`ctrl+p`: every command that can be used here, one a line, with its keys and how it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.widgets import Input

from app.commands import REGISTRY, Command
from app.commands.keys import spoken
from widgets.columns import Column
from widgets.rows import Row, Rows
from widgets.screen import DiffModalScreen
from widgets.table import VirtualTable
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.app import ConsoleApp

_COLUMNS = (
    Column("title", "Command", 35),
    Column("keys", "Keys", 9),
    Column("usage", "As it is typed", 10, priority=1, grows=True),
)
_TONES = (Tone.NORMAL, Tone.ACCENT, Tone.MUTED)
_OTHER_LINES = 4
"""Of the box and below it, beside the rows."""


class Palette(DiffModalScreen[None]):
    """A line to type into, and the commands that are meant, the likeliest first."""

    BINDINGS = [
        Binding("escape", "dismiss", "Close"),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]
    CSS = """
    Palette { align: center top; }
    Palette > Vertical {
        width: 80; max-width: 100%; height: auto; background: $panel; border: round $primary;
    }
    Palette Input, Palette Input:focus {
        height: 1; border: none; padding: 0 1; background: $panel;
    }
    """

    def compose(self) -> ComposeResult:
        with Vertical():
            typed = Input(placeholder="a command, by what it does or by its name")
            typed.cursor_blink = False
            yield typed
            table = VirtualTable(_COLUMNS, empty="no command is called so")
            table.can_focus = False
            yield table

    def on_mount(self) -> None:
        super().on_mount()
        self._show("")

    def on_resize(self) -> None:
        self._fit()

    @property
    def _table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    @property
    def _deck(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    def _show(self, text: str) -> None:
        self._table.show(Rows.of(map(self._row, self._meant(text.strip()))))
        self._table.unpin()
        self._fit()

    def _fit(self) -> None:
        room = max(2, self.app.size.height - _OTHER_LINES)
        self._table.styles.height = min(1 + max(1, self._table.source.rows), room)

    def _meant(self, text: str) -> list[Command]:
        """This screen's own first, then those that are everywhere; by likelihood, if any was
        typed."""
        mode = self.app.current_mode
        found = [entry for entry in REGISTRY.values() if entry.screen in (mode, "")]
        found.sort(key=lambda entry: not entry.screen)
        if not text:
            return found
        match = Matcher(text).match
        scores = {entry.name: max(match(entry.title), match(entry.name)) for entry in found}
        found = [entry for entry in found if scores[entry.name] > 0]
        return sorted(found, key=lambda entry: -scores[entry.name])

    def _row(self, entry: Command) -> Row:
        keys = spoken(self._deck.keymap.keys(entry.name, self.app.current_mode))
        return Row(entry.name, (entry.title, keys, entry.usage), _TONES)

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._table.action_move(rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by what is visible."""
        self._table.action_page(pages)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    @on(VirtualTable.RowSelected)
    def _choose(self) -> None:
        """Do what is under the cursor."""
        name = self._table.cursor_key
        if name is None or not self.is_active:
            return
        entry = REGISTRY[str(name)]
        self.dismiss()
        # What it needs is typed behind its name.
        needs = any(parameter.needed for parameter in entry.parameters)
        line = f"app.prompt {entry.name}" if needs else entry.name
        self.app.call_later(self._deck.action_command, line)
