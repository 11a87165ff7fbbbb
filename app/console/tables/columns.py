"""Columns and rows of a table's spec, as the widgets draw them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, overload

from app.console.tables.spec import ColumnSpec, TableSpec
from widgets.table.columns import Column
from widgets.table.rows import Pieces, Row
from widgets.tones import Tone

_RowT = TypeVar("_RowT")
_LAYOUT = tuple(field.name for field in fields(Column))


def columns(spec: TableSpec[Any], **changes: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a table; `changes` are other titles, widths and so on, by column."""
    return tuple(
        Column(
            **{name: getattr(column, name) for name in _LAYOUT} | dict(changes.get(column.id, {}))
        )
        for column in spec.columns
    )


def tone(column: ColumnSpec[_RowT], item: _RowT) -> Tone:
    return Tone(column.tone(item) if callable(column.tone) else column.tone)


class Cells(Sequence[str | Pieces], Generic[_RowT]):
    """Cells of a row, each formatted when it is read: hidden columns cost nothing."""

    __slots__ = ("_item", "_spec")

    def __init__(self, spec: TableSpec[_RowT], item: _RowT) -> None:
        self._spec, self._item = spec, item

    def __len__(self) -> int:
        return len(self._spec.columns)

    @overload
    def __getitem__(self, at: int) -> str | Pieces: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str | Pieces]: ...
    def __getitem__(self, at: int | slice) -> str | Pieces | Sequence[str | Pieces]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        found: str | Pieces = self._spec.columns[at].cell(self._item)
        return found


def row(spec: TableSpec[_RowT], key: Hashable, item: _RowT, *, below: bool = False) -> Row:
    """Return the row that `item` describes; `below` is as in `Row`."""
    cells, tones, values, ranks = [], [], [], {}
    for place, column in enumerate(spec.columns):
        cells.append(column.cell(item))
        tones.append(tone(column, item))
        values.append(column.value(item) if column.value else None if column.drawn else cells[-1])
        if column.rank is not None:
            ranks[place] = column.rank(item)
    return Row(key, tuple(cells), tuple(tones), tuple(values), ranks, below)
