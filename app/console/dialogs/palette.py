"""`ctrl+p`: a list of the commands, with keys and usage."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.widgets import Input

from app.commands import REGISTRY, Command
from app.commands.keys import spoken
from app.console.dialogs.help_box import BoxScreen
from app.console.protocol import console_of
from widgets.table.columns import Column
from widgets.table.rows import Row, Rows
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_COLUMNS = (
    Column("title", "Command", 35),
    Column("keys", "Keys", 9),
    Column("usage", "As it is typed", 10, priority=1, grows=True),
)
_TONES = (Tone.NORMAL, Tone.ACCENT, Tone.MUTED)
_OTHER_LINES = 4
"""Lines of the box and below it, without the rows."""


class Palette(BoxScreen):
    """A line to type into, and the commands that match, the likeliest first."""

    BINDINGS = [
        Binding("escape", "dismiss", "Close"),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]
    CSS = """
    Palette { align: center top; }
    Palette Input, Palette Input:focus {
        height: 1; border: none; padding: 0 1; background: $panel;
    }
    """

    _most = 0
    """The most lines of the table until now."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            typed = Input(placeholder="a command, by its title or name")
            typed.cursor_blink = False
            yield typed
            table = VirtualTable(_COLUMNS, empty="no command is called so")
            table.can_focus = False
            yield table

    def on_mount(self) -> None:
        self._show("")

    def on_resize(self) -> None:
        self._fit()

    @property
    def _table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def _show(self, text: str) -> None:
        self._table.show(Rows.of(map(self._row, self._meant(text.strip()))))
        self._table.action_top()
        self._fit()

    def _fit(self) -> None:
        # The box does not shrink: each letter would redraw the screen below.
        self._most = max(self._most, 1 + self._table.source.rows)
        height = self.app.size.height
        slow = console_of(self.app).terminal.slow
        room = height // 2 if slow else height - _OTHER_LINES
        self._table.styles.height = max(2, min(self._most, room))

    def _meant(self, text: str) -> list[Command]:
        """Return the commands that match a text: commands of this screen and common ones by
        likelihood, then commands of other screens, which an empty text leaves out."""
        mode = self.app.current_mode
        found = sorted(REGISTRY.values(), key=lambda entry: not entry.screen)
        if not text:
            return [entry for entry in found if entry.screen in (mode, "")]
        match = Matcher(text).match
        scores = {entry.name: max(match(entry.title), match(entry.name)) for entry in found}
        found = [entry for entry in found if scores[entry.name] > 0]
        return sorted(found, key=lambda e: (e.screen not in (mode, ""), -scores[e.name]))

    def _row(self, entry: Command) -> Row:
        keys = spoken(console_of(self.app).keymap.keys(entry.name, self.app.current_mode))
        return Row(entry.name, (entry.title, keys, entry.usage), _TONES)

    def action_move(self, rows: int) -> None:
        self._table.action_move(rows)

    def action_page(self, pages: int) -> None:
        self._table.action_page(pages)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    @on(VirtualTable.RowSelected)
    def _choose(self) -> None:
        name = self._table.cursor_key
        if name is None or not self.is_active:
            return
        entry = REGISTRY[str(name)]
        self.dismiss()
        # The user types the values behind its name.
        needs = any(parameter.needed for parameter in entry.parameters)
        line = f"app.prompt {entry.name}" if needs else entry.name
        self.app.call_later(console_of(self.app).action_command, line)
