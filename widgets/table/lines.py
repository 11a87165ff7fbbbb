"""Lines of a table as strips: a row, and the text of an empty table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from widgets.table.columns import GAP, MARGIN, Align, ColumnLayout, cell, placed_pieces
from widgets.table.rows import Pieces, Tones
from widgets.tones import Tone


class RowLine(NamedTuple):
    """Content of a row's line."""

    columns: tuple[ColumnLayout, ...]
    cells: tuple[str | Pieces, ...]
    """Of the columns."""
    tones: Tones
    cursor: bool
    """Whether the row is under the cursor."""


def draw_row(
    line: RowLine, width: int, styles: Mapping[Tone, Style], over: Style | None, focused: bool
) -> Strip:
    """Draw a row; `over` is the style of the cursor if the row is under it."""
    normal = base = styles[Tone.NORMAL]
    # Without a background the cursor is a mark, which takes few bytes to move.
    marked = over is not None and over.bgcolor == base.bgcolor
    over = None if marked else over
    base = base if over is None else base + over
    segments = [Segment((">" if marked else "").ljust(MARGIN), base)]
    for place, content in zip(line.columns, line.cells, strict=True):
        if not isinstance(content, str):
            for text, tone in placed_pieces(content, place.width):
                style = styles[tone]
                # The background of a tone keeps its meaning under the cursor.
                if over is not None and style.bgcolor == normal.bgcolor:
                    style += over.background_style
                segments.append(Segment(text, style))
            segments.append(Segment(" " * GAP, base))
            continue
        tones = line.tones
        style = styles[tones if isinstance(tones, Tone) else tones[place.position]]
        if over is not None:
            style = base if focused else style + over.background_style
        segments.append(_segment(content, place.width, place.column.align, style))
    last = line.columns[-1]
    strip = Strip(segments, last.x + last.width + GAP)
    # The cursor is as wide as the table.
    return strip if over is None else strip.adjust_cell_length(width, base)


def draw_text(text: str, y: int, size: tuple[int, int], style: Style) -> Strip:
    """Draw line `y` of a text in the middle of an empty table of `size` (width, height)."""
    lines = text.splitlines()
    number = y - max(0, (size[1] - len(lines)) // 3)
    room = size[0] - 2 * MARGIN
    line = lines[number] if 0 <= number < len(lines) else ""
    centred = cell(line.center(room), room, "left")
    return Strip([Segment(f" {centred} ", style)]).adjust_cell_length(size[0], style)


@lru_cache(maxsize=8192)
def _segment(text: str, width: int, align: Align, style: Style) -> Segment:
    """A cell and the gap after it."""
    # Each cell apart: the terminal gets only those that changed.
    return Segment(cell(text, width, align) + " " * GAP, style)
