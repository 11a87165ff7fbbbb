"""Text of a table for the clipboard, as spreadsheets and editors take it."""

from __future__ import annotations

from widgets.format import REPLACED, safe
from widgets.table.rows import RowSource
from widgets.table.table import VirtualTable

MOST = 74_000
"""Bytes that are copied at most: terminals cut what is more than 100 kB in base64."""
SEPARATOR = "\t"


def cell_text(source: RowSource, index: int, position: int) -> str:
    """A cell's whole text, however much of it there is room for; without control characters."""
    content = source.cells(index)[position]
    text = content if isinstance(content, str) else "".join(part for part, _ in content)
    return safe(text, REPLACED)


def row_text(table: VirtualTable, index: int) -> str:
    """The cells of the columns that are shown, with a tab between two."""
    return SEPARATOR.join(cell_text(table.source, index, p.position) for p in table.shown)


def rows_text(table: VirtualTable, most: int = MOST) -> tuple[str, int]:
    """The header and the rows from the first one, a line each, and how many `most` bytes hold."""
    header = SEPARATOR.join(safe(place.column.title, REPLACED) for place in table.shown)
    lines = [header]
    room = most - len(header.encode())
    for line in (row_text(table, index) for index in range(table.source.rows)):
        room -= 1 + len(line.encode())
        if room < 0:
            break
        lines.append(line)
    return "\n".join(lines), len(lines) - 1
