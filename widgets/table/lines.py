"""Lines of a table as strips: its header, a row, and the text of an empty table.

The header has the titles of the columns on a rule. The first title is the table's name,
after the number of the key that leads to it. While the table has the focus, name and rule are
bright.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from bpf.errors import printable
from bpf.quantities import ELLIPSIS, REPLACED, zone
from widgets.table.columns import GAP, MARGIN, ColumnLayout, cell, placed_pieces
from widgets.table.rows import Align, Column, Pieces, Tones
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


# ruff: noqa: RUF001


_RULE = "─"
_RAISED = dict(zip("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True))
_LEAST = 4
"""Least cells of a rule between two titles: shorter ones look like signs."""


class Title(NamedTuple):
    """A text on the rule."""

    x: int
    """First cell."""
    text: str
    style: Style


class HeaderStyles(NamedTuple):
    """Styles of a header."""

    name: Style
    plain: Style
    """Of other titles."""
    sorted: Style
    """Of the title of the sorted column."""
    rule: Style


def header_styles(component_style: Callable[[str], Style]) -> HeaderStyles:
    """Return the styles by a table's `get_component_rich_style`."""
    names = ("name", "header", "sorted", "rule")
    return HeaderStyles(*(component_style(f"table--{name}") for name in names))


def more_sign(hidden: int, right: bool, *, skipped: int) -> str:
    """Return the sign for columns that do not fit, with an arrow to each side that has some."""
    return f"{' ‹' * bool(skipped)} +{hidden}{' ›' * right}" if hidden else ""


def title_of(column: Column[Any]) -> str:
    """Return the title of a column, with the present time zone."""
    return printable(column.title, REPLACED).replace("(UTC)", f"({zone()})")


def titles(
    columns: Iterable[ColumnLayout], order: tuple[str, bool], styles: HeaderStyles, *, apart: bool
) -> list[Title]:
    """Return the titles of columns; `order` is the id of the sorted one, and whether it descends.

    `apart` puts a blank before the mark of the order, if the column has room.
    """
    made = []
    for number, place in enumerate(columns):
        column, room = place.column, place.width
        text = title_of(column)
        style = styles.plain if number else styles.name
        mark = ""
        if column.id == order[0]:
            # The mark may stand in the gap, so that a title is never cut for it.
            blank = " " if apart and cell_len(text) < room else ""
            mark = blank + "▲▼"[order[1]]
            style = styles.sorted if number else styles.name
            room -= len(blank)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1) + ELLIPSIS if room else ""
        text += mark
        end = place.x + place.width + bool(mark)
        made.append(
            Title(end - cell_len(text) if column.align == "right" else place.x, text, style)
        )
    return made


def draw_header(
    shown: Sequence[Title], width: int, styles: HeaderStyles, key: str = "", more: str = ""
) -> Strip:
    """Draw titles, a `key` of one digit before the first one, and `more` at the right end.

    Titles that would touch the next one move to the left, or lose their beginning.
    """
    limit = width - cell_len(more)
    placed: list[Title] = []
    for title in reversed(shown):
        x = min(title.x, limit - cell_len(title.text) - bool(placed or more))
        placed.insert(0, title._replace(x=max(0, x)))
        limit = x
    segments: list[Segment] = []
    used = 0
    for number, (x, text, style) in enumerate(placed):
        lost = max(0, used + 1 - x) if number else 0
        text = text[lost:]
        if not text:
            continue
        rule = _ruled(x + lost - used)
        if not number and rule and key in _RAISED:
            # In the margin, so that no title gives way.
            segments.append(Segment(_RAISED[key], styles.sorted))
            rule = rule[1:]
        segments += [Segment(rule, styles.rule), Segment(text, style)]
        used = x + lost + cell_len(text)
    rest = width - cell_len(more) - used
    if rest > 0:
        segments.append(Segment(_ruled(rest + (not more))[:rest], styles.rule))
    if more:
        segments.append(Segment(more, styles.sorted))
    return Strip(segments).adjust_cell_length(width, styles.rule)


def _ruled(cells: int) -> str:
    """Return a rule with a blank at both ends, or blanks if it would be too short."""
    return f" {_RULE * (cells - 2)} " if cells - 2 >= _LEAST else " " * cells
