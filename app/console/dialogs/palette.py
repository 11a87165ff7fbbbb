"""`ctrl+p`: a list of the commands, with keys and usage."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.widgets import Input

from app.commands.keys import spoken
from app.commands.model import Command
from app.commands.registry import REGISTRY
from app.console.dialogs.boxes import BoxScreen
from app.console.protocol import console_of
from app.console.screens import SCREENS
from widgets.table.rows import Column, Row, Rows
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_COLUMNS: tuple[Column[Any], ...] = (
    Column("title", "Command", 31),
    Column("screen", "Screen", 8),
    Column("keys", "Keys", 12),
    Column("usage", "As it is typed", 10, priority=1, grows=True),
)
_TONES = (Tone.NORMAL, Tone.MUTED, Tone.ACCENT, Tone.MUTED)
_OTHER_LINES = 4
"""Lines of the box and below it, without the rows."""


class Palette(BoxScreen[None]):
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
    Palette > .box { width: 96; }
    Palette Input, Palette Input:focus {
        height: 1; border: none; padding: 0 1; background: $panel;
    }
    """

    _most = 0
    """The most lines of the table until now."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, Command] = {}
        """Commands by name, and own commands by their lines."""
        self._places: Counter[tuple[str, str]] = Counter()
        """Number of commands of each deed that matches."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            typed = Input(placeholder="a command, by its title or name")
            typed.cursor_blink = False
            yield typed
            table = VirtualTable(_COLUMNS, empty="no command is called so")
            table.can_focus = False
            yield table

    def on_mount(self) -> None:
        keymap, mode = console_of(self.app).keymap, self.app.current_mode
        own = (
            Command("\n".join(each.lines), each.title, each.key)
            for each in (*keymap.of(mode), *keymap.of(""))
            if each.runs_program
        )
        of_fleet = () if console_of(self.app).has_fleet else ("host.", "view.hosts")
        known = {n: entry for n, entry in REGISTRY.items() if not n.startswith(of_fleet)}
        self._entries = {**known, **{entry.name: entry for entry in own}}
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
        """Return the commands that contain a text, or else those that look like it: first those
        with its whole words, then commands of this screen and common ones, then likely ones. An
        empty text has no commands of other screens."""
        mode = self.app.current_mode
        self._places.clear()
        found = sorted(self._entries.values(), key=lambda entry: not entry.screen)
        if not text:
            return [entry for entry in found if entry.screen in (mode, "")]
        match, words = Matcher(text).match, _words(text)
        ranks = {}
        typed = text.lower()
        for entry in found:
            if score := max(match(entry.title), match(entry.name)):
                whole = f"{entry.name} {entry.title}".lower()
                named = typed in (entry.name, entry.alias)
                misses = len(words - _words(whole)), not all(word in whole for word in words)
                ranks[entry.name] = not named, *misses, entry.screen not in (mode, ""), -score
        found = sorted((e for e in found if e.name in ranks), key=lambda e: ranks[e.name])
        if any(not ranks[entry.name][2] for entry in found):
            found = [entry for entry in found if not ranks[entry.name][2]]
        # The same deed on several screens is one row: its best command.
        best: dict[tuple[str, str], Command] = {}
        for entry in found:
            best.setdefault(_deed(entry), entry)
            self._places[_deed(entry)] += 1
        return list(best.values())

    def _row(self, entry: Command) -> Row:
        keymap = console_of(self.app).keymap
        known = entry.name in REGISTRY
        mode = self.app.current_mode
        keys = spoken(keymap.keys(entry.name, mode) if known else entry.keys)
        others = self._places[_deed(entry)] - 1
        screen = SCREENS[entry.screen].title if entry.screen else ""
        where = f"{screen} +{others}" if others > 0 else screen
        return Row(entry.name, (entry.title, where, keys, entry.usage), _TONES)

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
        entry = self._entries[str(name)]
        self.dismiss()
        # The user types the values behind its name.
        needs = any(parameter.needed for parameter in entry.parameters)
        line = f"app.prompt {entry.name}" if needs else entry.name
        self.app.call_later(console_of(self.app).action_command, line)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower().replace("_", " ")))


def _deed(command: Command) -> tuple[str, str]:
    """Return what commands of several screens have in common."""
    return command.name.partition(".")[2], command.title
