"""Columns and rows of a table's spec, as the widgets draw them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from app.console.tables.spec import TableSpec
from widgets.table.rows import Column, Pieces, Row
from widgets.tones import Tone

_RowT = TypeVar("_RowT")


def columns(spec: TableSpec[_RowT], **changes: Mapping[str, Any]) -> tuple[Column[_RowT], ...]:
    """Return the columns of a table; `changes` are other titles, widths and so on, by column."""
    return tuple(
        replace(column, **changes[column.id]) if column.id in changes else column
        for column in spec.columns
    )


def tone(column: Column[_RowT], item: _RowT) -> Tone:
    found = column.tone(item) if callable(column.tone) else column.tone
    return found if isinstance(found, Tone) else Tone(found)


class _Values(Sequence[Any], Generic[_RowT]):
    """Values of a row for sorting and exports, each computed when it is read: few are."""

    __slots__ = ("_cells", "_item", "_spec")

    def __init__(self, spec: TableSpec[_RowT], item: _RowT, cells: Sequence[str | Pieces]) -> None:
        self._spec, self._item, self._cells = spec, item, cells

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        column = self._spec.columns[at]
        if column.value:
            return column.value(self._item)
        return None if column.drawn else self._cells[at]


def row(spec: TableSpec[_RowT], key: Hashable, item: _RowT, *, below: int = 0) -> Row:
    """Return the row that `item` describes; `below` is as in `Row`."""
    cells = tuple(column.cell(item) for column in spec.columns)
    tones = tuple(tone(column, item) for column in spec.columns)
    ranks = {
        place: column.rank(item)
        for place, column in enumerate(spec.columns)
        if column.rank is not None
    }
    return Row(key, cells, tones, _Values(spec, item, cells), ranks, below)
