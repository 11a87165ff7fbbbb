"""The known content of the terminal, and drawing of the difference to a new content.

Widgets draw with any characters. For an ASCII terminal each cell is translated on its way out,
including Textual's own borders and the names of hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from rich.cells import split_graphemes
from rich.segment import Segment
from textual.geometry import Size

from widgets.terminal.diff_writer import CellLine, DiffWriter, narrow

_SCROLLED = 4
"""Least number of moved lines for which the terminal scrolls."""
_TOP = 2
"""Lines at the top that are drawn first: the status, and the title or the table's header."""


class TerminalState:
    """The content of a terminal."""

    def __init__(self) -> None:
        self.size = Size(0, 0)
        self.lines: list[CellLine | None] = []
        """Segments of each line; None if its content is unknown."""
        self.owed: dict[int, CellLine] = {}
        """Lines by number that wait for room on the link."""
        self.at = (-1, -1)
        """Line and column of the cursor, -1: unknown."""

    def reset(self, size: Size | None = None) -> None:
        self.size = self.size if size is None else size
        self.lines = [None] * self.size.height
        self.owed = {}
        self.at = (-1, -1)

    @property
    def stale(self) -> bool:
        """Whether a line is unknown and has no wanted content either."""
        return any(line is None and y not in self.owed for y, line in enumerate(self.lines))

    def wanted(self, y: int) -> CellLine:
        """Return the wanted content of line `y`, as far as known."""
        return self.owed.get(y) or self.lines[y] or []

    def draw(
        self, pen: DiffWriter, lines: Mapping[int, CellLine], room: int, near: int = 0
    ) -> None:
        """Write `lines` and waiting lines, up to about `room` bytes: those at the top, which name
        the screen, then those near `near`.
        """
        self._scroll(pen, lines)
        self.owed |= lines
        for y in sorted(self.owed, key=lambda y: (y >= _TOP, abs(y - near))):
            old, line = self.lines[y], self.owed[y]
            if old != line and pen.written >= room:
                break
            del self.owed[y]
            if old == line:
                continue
            self.lines[y] = line
            if old is None or not (narrow(old) and narrow(line)):
                pen.whole_line(y, line)
            else:
                pen.changes(y, old, line)

    def _scroll(self, pen: DiffWriter, lines: Mapping[int, CellLine]) -> None:
        """Scroll the terminal if it has most lines at another place."""
        changed = {y: line for y, line in lines.items() if self.lines[y] != line}
        # A moved line leaves its place.
        places = {text_of(self.lines[y] or []): y for y in changed}
        moves = {
            y: places[text] - y
            for y, line in changed.items()
            if (text := text_of(line)) in places and not text.isspace()
        }
        found = Counter(moves.values()).most_common(1)
        if not found or found[0][1] < _SCROLLED or not found[0][0]:
            return
        by = found[0][0]
        moved = [y for y, move in moves.items() if move == by]
        top, bottom = min(moved), max(moved)
        top, bottom = min(top, top + by), max(bottom, bottom + by)
        if bottom - top + 1 > 2 * len(moved) or None in self.lines[top : bottom + 1]:
            return
        for y in range(top, bottom + 1):
            if y not in lines:
                self.owed[y] = self.wanted(y)
        pen.scroll(top, bottom, by)
        blank = [Segment(" " * self.size.width)]
        kept = self.lines[top : bottom + 1]
        new: list[CellLine | None] = [blank] * abs(by)
        self.lines[top : bottom + 1] = [*kept[by:], *new] if by > 0 else [*new, *kept[:by]]


def text_of(line: CellLine) -> str:
    return "".join(segment.text for segment in line)


# ruff: noqa: RUF001
_ASCII = {
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*%#", strict=True)),
    **dict(zip("▏▎▍▋▊▉", ".:-+*%", strict=True)),
    **dict(zip("▓▒░▀▔", "&o'--", strict=True)),
    **dict(zip("◆●○•·…×✕✓", "**oo.~xx+", strict=True)),
    **dict(zip("▲▼▶◀▸▾◄►←↑→↓≤≥≈−–—", "^v><>v<><^>v<>~---", strict=True)),
    **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)),
    **dict(zip("‘’“”«»‹›⏎↵µ±√", "''\"\"<><><<u++", strict=True)),
}
_ASCII |= dict.fromkeys("─━═╌╍┄┅┈┉╴╶╸╺", "-") | dict.fromkeys("│┃║▌▐▕╵╷", "|")
_BRAILLE = " ..:::###"
"""Braille signs by their number of dots."""


@lru_cache(maxsize=4096)
def ascii_of(text: str) -> str:
    """Return `text` in ASCII, in as many cells; `?` replaces characters without likeness."""
    if text.isascii():
        return text
    parts = ((text[start:end], cells) for start, end, cells in split_graphemes(text)[0])
    return "".join(_likeness(part, cells) for part, cells in parts)


def _likeness(grapheme: str, cells: int) -> str:
    if grapheme.isascii():
        return grapheme
    if grapheme in _ASCII:
        return _ASCII[grapheme]
    code = ord(grapheme[0])
    if 0x2800 <= code <= 0x28FF:
        return _BRAILLE[(code - 0x2800).bit_count()]
    if 0x2500 <= code <= 0x259F:  # corners and crossings
        return "+"
    return "?" * cells
