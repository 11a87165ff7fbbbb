"""Columns of a table: the columns that fit a width, their places, and text in cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from bpf.errors import printable
from bpf.quantities import ELLIPSIS, REPLACED, shortened
from widgets.table.rows import Align, Column, Pieces
from widgets.tones import Tone

MARGIN = 1
"""Empty cells left and right of the table."""
GAP = 2
"""Empty cells between two columns."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A shown column, with its place."""

    position: int
    """Index of the column among all columns, and of its cell in a row."""
    column: Column[Any]
    x: int
    """First cell."""
    width: int
    """Width in cells, after growing or cutting."""


def wanted(
    columns: Sequence[Column[Any]], chosen: Sequence[str] = (), sorted_by: str = ""
) -> list[int]:
    """Return the positions of the columns that a table of any width shows, from the left.

    `chosen` (ids) gives columns and order; by default all columns that are not hidden, in their own
    order. The column `sorted_by` is always one of them.
    """
    positions = {column.id: position for position, column in enumerate(columns)}
    if chosen:
        shown = [positions[name] for name in chosen if name in positions]
    else:
        shown = [n for n, column in enumerate(columns) if not column.hidden]
    if sorted_by in positions and positions[sorted_by] not in shown:
        shown.append(positions[sorted_by])
    return shown


def fit(
    columns: Sequence[Column[Any]], width: int, chosen: Sequence[str] = (), sorted_by: str = "",
    skipped: int = 0,
) -> tuple[ColumnLayout, ...]:  # fmt: skip
    """Return the `wanted` columns that fit in `width` cells, from the left.

    Of `chosen` columns the first is the most important. More important columns get their room
    first; the most important one may be cut. A table that is scrolled sideways has `skipped`
    columns between the first ones, which stay, and the next ones, in their order.
    """
    shown = wanted(columns, chosen, sorted_by)
    if skipped:
        stays = _staying([columns[position] for position in shown], width)
        shown = shown[:stays] + shown[stays + skipped :]

    def importance(place: int) -> tuple[int, int]:
        column = columns[shown[place]]
        if skipped:
            return 0, place
        if column.id == sorted_by:
            return -1, 0
        return 0 if chosen else column.priority, place

    room = width - 2 * MARGIN
    fitting: list[int] = []
    used = -GAP
    for place in sorted(range(len(shown)), key=importance):
        need = columns[shown[place]].width + GAP
        if fitting and used + need > room:
            if skipped:
                break
            continue
        fitting.append(place)
        used += need
    slack = room - used
    growing = sum(columns[shown[place]].grows for place in fitting)
    placed: list[ColumnLayout] = []
    x = MARGIN
    for place in sorted(fitting):
        column = columns[shown[place]]
        cells = column.width
        if slack < 0:
            cells = max(0, cells + slack)
            slack = 0
        elif column.grows:
            share = slack // growing
            cells += share
            slack -= share
            growing -= 1
        placed.append(ColumnLayout(shown[place], column, x, cells))
        x += cells + GAP
    return tuple(placed)


def _staying(shown: Sequence[Column[Any]], width: int) -> int:
    """Return how many columns stay as the others scroll: those that name the row."""
    used = 0
    for number, column in enumerate(shown, 1):
        used += column.width + GAP
        if used > width // 2:
            break
        if column.grows:
            return number
    return 1


def cell(text: str, width: int, align: Align) -> str:
    """Fit `text` into exactly `width` cells: printable, cut with an ellipsis, or padded.

    At the right a number loses digits, and keeps its unit.
    """
    text = printable(text, REPLACED)
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        number = shortened(text, width) if align == "right" else ""
        if not (width and number):
            return set_cell_size(text, width - 1) + ELLIPSIS if width else ""
        text, length = number, len(number)
    padding = " " * (width - length)
    return padding + text if align == "right" else text + padding


def placed_pieces(pieces: Pieces, width: int) -> Pieces:
    """Fit `pieces` into exactly `width` cells: printable, and cut or padded at the left."""
    placed: list[tuple[str, Tone]] = []
    room = width
    for text, tone in reversed(pieces):
        shown = printable(text, REPLACED)[-room:] if room else ""
        placed.append((shown, tone))
        room -= len(shown)
    placed.append((" " * room, Tone.NORMAL))
    return tuple(piece for piece in reversed(placed) if piece[0])
