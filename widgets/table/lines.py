"""Lines of a table as strips: a row, and the text of an empty table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from widgets.table.columns import GAP, MARGIN, ColumnLayout, cell, placed_pieces
from widgets.table.rows import Align, Pieces, Tones
from widgets.tones import Tone

_SKETCHED = 2
"""Rows in the sketch of an empty table."""
_DOT = "·"


class EmptyStyles(NamedTuple):
    """Styles of an empty table."""

    text: Style
    sketch: Style


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


def draw_empty(
    text: str, y: int, columns: Sequence[ColumnLayout], size: tuple[int, int], styles: EmptyStyles
) -> Strip:
    """Draw line `y` of an empty table of `size` (width, height): a text, and a sketch of rows."""
    lines = text.splitlines()
    above = int(size[1] > len(lines) + 1)
    number = y - above
    if 0 <= number < len(lines):
        segments = [
            Segment(" " * MARGIN + cell(lines[number], size[0] - MARGIN, "left"), styles.text)
        ]
    elif lines and len(lines) < number <= len(lines) + _SKETCHED:
        segments = [Segment(" " * MARGIN, styles.sketch)]
        for place in columns:
            dots = cell(_DOT * max(1, place.width // 2), place.width, place.column.align)
            segments.append(Segment(dots + " " * GAP, styles.sketch))
    else:
        segments = []
    return Strip(segments).adjust_cell_length(size[0], styles.text)


@lru_cache(maxsize=8192)
def _segment(text: str, width: int, align: Align, style: Style) -> Segment:
    """A cell and the gap after it."""
    # Each cell apart: the terminal gets only those that changed.
    return Segment(cell(text, width, align) + " " * GAP, style)
