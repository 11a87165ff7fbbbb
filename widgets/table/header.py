"""The header of a table, and the text of an empty one, as strips.

The header has the titles of the columns on a rule. The first title is the table's name,
after the number of the key that leads to it. While the table has the focus, name and rule are
bright.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from bpf.errors import printable
from bpf.quantities import ELLIPSIS, REPLACED, zone
from widgets.table.columns import GAP, MARGIN, ColumnLayout, cell
from widgets.table.rows import Column

_SKETCHED = 2
"""Rows in the sketch of an empty table."""
_DOT = "·"


class EmptyStyles(NamedTuple):
    """Styles of an empty table."""

    text: Style
    sketch: Style


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
