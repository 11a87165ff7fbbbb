"""`?`: the keys of the screen that it was asked on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Static

from app.commands import REGISTRY
from app.commands.keys import spoken
from widgets.screen import DiffModalScreen

_MOVING = (
    ("j k, arrows", "Next, previous row"),
    ("pgup pgdn", "A page up, down"),
    ("g G, end", "First, last row"),
    ("home", "Top, and stay there"),
)
_ENTER = {
    "flows": "flow.trace", "paths": "path.detail", "triggers": "trigger.detail",
    "programs": "program.edit",
}  # fmt: skip
"""The command that Enter is, by screen."""
_TIME_LINE = (
    ("◆", "Another way was taken"),
    ("\N{MULTIPLICATION SIGN}", "Every probe was lost"),
    ("a hanging bar", "Some were lost"),
    ("host +1", "Another router answers too"),
)
_POLICIES = (
    ("▄", "As high as the threshold"),
    ("a ground", "It was active then"),
    ("12 k ?", "The verdict is not sure"),
    ("-3 s", "So long it stays so"),
    ("forced", "By an operator"),
)
_FILTER = (
    ("tcp 443", "Protocol, port, host"),
    ("net:10.0.0.0/8", "Also src: dst:"),
    ("port:80,443", "Also sport: dport:"),
    ("proto:udp", "ip:6  dir:in"),
    ("!tcp", "All but these"),
)


class KeysScreen(DiffModalScreen[None]):
    """A list of keys over the screen."""

    BINDINGS = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]
    CSS = """
    KeysScreen { align: center middle; }
    KeysScreen > VerticalScroll {
        width: 80; max-width: 100%; height: auto; max-height: 100%; scrollbar-size-vertical: 1;
        padding: 0 1; background: $panel; border: round $primary;
    }
    KeysScreen Horizontal { height: auto; }
    KeysScreen Static { width: 1fr; }
    """

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._of = screen

    def compose(self) -> ComposeResult:
        own, everywhere = (
            [(spoken(e.keys), e.title) for e in REGISTRY.values() if e.screen == screen and e.keys]
            for screen in (self._of, "")
        )
        left, right = Text(), Text()
        if own:
            _section(left, self._of.capitalize(), own)
        moving = list(_MOVING)
        if self._of in _ENTER:
            moving.append(("enter", REGISTRY[_ENTER[self._of]].title))
        _section(right if len(own) > len(everywhere) else left, "In a table", moving)
        _section(right, "Everywhere", everywhere)
        if self._of == "flows":
            _section(right, "Filter: terms that must all hold", _FILTER)
        if self._of == "paths":
            _section(right, "On the time line", _TIME_LINE)
        if self._of == "triggers":
            _section(right, "Of policies", _POLICIES)
        left.rstrip()
        right.append("esc", "bold")
        right.append(" closes this")
        with VerticalScroll(), Horizontal():
            yield Static(left)
            yield Static(right)


def _section(text: Text, title: str, lines: Sequence[tuple[str, str]]) -> None:
    text.append(f"{title}\n", "bold underline")
    wide = max(len(keys) for keys, _ in lines) + 2
    for keys, what in lines:
        text.append(keys.ljust(wide), "bold")
        text.append(f"{what}\n")
    text.append("\n")
