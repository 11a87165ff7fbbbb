"""Lines above the prompt with answers to choose, each with its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.widgets import Static

from widgets.format import REPLACED, safe

_ROWS = 10
"""The most lines; a low screen has fewer."""


class Menu(Static):
    """Names with their meanings, one a line; hidden without any."""

    DEFAULT_CSS = """
    Menu { display: none; height: auto; padding: 0 1; background: $panel; color: $text-muted; }
    Menu.open { display: block; }
    """

    def show(self, names: Sequence[str], meanings: Mapping[str, str], chosen: int) -> None:
        """Show a part of `names` with the chosen one; -1: none is chosen."""
        self.set_class(bool(names), "open")
        if not names:
            return
        rows = max(3, min(_ROWS, self.screen.size.height // 3))
        first = max(0, min(chosen - rows // 2, len(names) - rows))
        width = max(map(len, meanings))
        room = self.screen.size.width - 2
        text = Text(no_wrap=True, overflow="ellipsis")
        for place in range(first, min(first + rows, len(names))):
            line = f"{names[place]:<{width}}  {safe(meanings[names[place]], REPLACED)}"
            if len(line) > room:
                line = f"{line[: room - 1]}…"
            text.append(line, "reverse" if place == chosen else "")
            text.append("\n")
        rest = len(names) - rows
        text.append("↓ chooses, or type your own" + (f"; {len(names)} in all" if rest > 0 else ""))
        self.update(text)
