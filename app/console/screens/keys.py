"""`?`: the keys of the screen that it was asked on."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from app.console.commands import REGISTRY, Command
from widgets.screen import DiffModalScreen

_MOVING = (
    ("j k, arrows", "Next and previous row"),
    ("pgup pgdn", "A page up or down"),
    ("g G, end", "First and last row"),
    ("enter", "Detail of the row"),
)
_SPOKEN = {"question_mark": "?", "slash": "/", "space": "space", "escape": "esc"}


class KeysScreen(DiffModalScreen[None]):
    """A list of keys over the screen."""

    BINDINGS = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]
    CSS = """
    KeysScreen { align: center middle; }
    KeysScreen > VerticalScroll {
        width: 64; max-width: 100%; height: auto; max-height: 100%;
        padding: 1 2; background: $panel; border: round $primary;
    }
    """

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._of = screen

    def compose(self) -> ComposeResult:
        text = Text()
        own = [entry for entry in REGISTRY.values() if entry.screen == self._of and entry.keys]
        if own:
            _section(text, self._of.capitalize(), [_line(entry) for entry in own])
        _section(text, "In a table", _MOVING)
        everywhere = [e for e in REGISTRY.values() if not e.screen and e.keys]
        _section(text, "Everywhere", [_line(entry) for entry in everywhere])
        text.append("esc", "bold")
        text.append(" closes this")
        with VerticalScroll():
            yield Static(text)


def _line(entry: Command) -> tuple[str, str]:
    keys = (_SPOKEN.get(key, key) for key in entry.keys.split(","))
    return ", ".join(keys), entry.title


def _section(
    text: Text, title: str, lines: list[tuple[str, str]] | tuple[tuple[str, str], ...]
) -> None:
    text.append(f"{title}\n", "bold")
    for keys, what in lines:
        text.append(f"  {keys:<13}", "bold")
        text.append(f"{what}\n")
    text.append("\n")
