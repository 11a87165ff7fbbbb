"""Columns of a table: which of them fit a width, where they stand, how text fills a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size

from widgets.format import REPLACED, safe
from widgets.rows import Pieces
from widgets.tones import Tone

Align = Literal["left", "right"]
MARGIN = 1
"""Empty cells left and right of the table."""
GAP = 2
"""Empty cells between two columns."""
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, by what an operator calls it."""

    id: str
    """Stable name, used in messages and settings."""
    title: str
    """Header text."""
    width: int
    """Width in cells; of a growing column, the least."""
    align: Align = "left"
    """Numbers are aligned right."""
    priority: int = 0
    """0 is the most important; the highest numbers are the first to go when the table is narrow."""
    grows: bool = False
    """Whether it takes up width that is left over; such columns share it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A column that is shown."""

    position: int
    """Index of the column among all columns, and of its cell in a row."""
    column: Column
    x: int
    """First cell."""
    width: int
    """Width in cells, after growing or cutting."""


def fit(columns: Sequence[Column], width: int) -> tuple[Placed, ...]:
    """The columns that `width` cells have room for, in their own order.

    A column is shown only when each more important one is; the most important is always shown, cut
    if it must be.
    """
    room = width - 2 * MARGIN
    chosen: list[int] = []
    used = -GAP
    for position in sorted(range(len(columns)), key=lambda i: (columns[i].priority, i)):
        need = columns[position].width + GAP
        if chosen and used + need > room:
            break
        chosen.append(position)
        used += need
    slack = room - used
    growing = sum(columns[position].grows for position in chosen)
    placed: list[Placed] = []
    x = MARGIN
    for position in sorted(chosen):
        column = columns[position]
        cells = column.width
        if slack < 0:
            cells = max(0, cells + slack)
            slack = 0
        elif column.grows:
            share = slack // growing
            cells += share
            slack -= share
            growing -= 1
        placed.append(Placed(position, column, x, cells))
        x += cells + GAP
    return tuple(placed)


def cell(text: str, width: int, align: Align) -> str:
    """`text` in exactly `width` cells: harmless, cut with an ellipsis, or padded."""
    text = safe(text, REPLACED)
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + ELLIPSIS if width else ""
    padding = " " * (width - length)
    return padding + text if align == "right" else text + padding


def placed_pieces(pieces: Pieces, width: int) -> Pieces:
    """`pieces` in exactly `width` cells: harmless, and cut or padded at the left."""
    placed: list[tuple[str, Tone]] = []
    room = width
    for text, tone in reversed(pieces):
        shown = safe(text, REPLACED)[-room:] if room else ""
        placed.append((shown, tone))
        room -= len(shown)
    placed.append((" " * room, Tone.NORMAL))
    return tuple(piece for piece in reversed(placed) if piece[0])
