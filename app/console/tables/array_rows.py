"""Rows of a table that are arrays: blocks of rows are formatted when one of them is seen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from app.console.tables.spec import TableSpec
from bpf.arrays import Array
from widgets.table.rows import Column, Pieces, Tones, Value, nested_order
from widgets.tones import Tone

_BLOCK = 8
"""Rows that are formatted at a time: a call of numpy costs more than a row."""


class ArrayPart(Protocol):
    """Some rows of a table in an order, by column."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str) -> Array:
        """Return a column of numbers (n,)."""

    def at(self, places: Array) -> Self:
        """Return the rows at places (m,), in their order."""

    @property
    def muted(self) -> Array:
        """Rows (n,) that are muted whatever the tones of their columns, as bools."""

    @property
    def has_tones(self) -> bool:
        """Whether columns have tones of their own."""

    @property
    def depths(self) -> Sequence[int] | None:
        """Depth of each row: a row belongs to the nearest earlier row of less depth, and stays
        below it. None: the order of equal rows means nothing."""

    @property
    def each(self) -> bool:
        """Whether functions of columns take one of `rows`, and not the part."""

    @property
    def rows(self) -> Sequence[Any]: ...


class FewRows:
    """Rows of a small table: a structured array (n,) with their keys in `id`, and perhaps their
    depths in `depth`."""

    has_tones, each = True, False

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Array:
        found: Array = self.rows[name]
        return found

    def at(self, places: Array) -> Self:
        return type(self)(self.rows[places])

    @property
    def muted(self) -> Array:
        return np.zeros(len(self), bool)

    @property
    def depths(self) -> Sequence[int]:
        known = "depth" in (self.rows.dtype.names or ())
        return self.rows["depth"].tolist() if known else [0] * len(self)


class ItemRows(FewRows):
    """Rows of a small table: any objects (n,), their keys and their depths."""

    each = True

    def __init__(self, rows: Sequence[Any], keys: Array, depths: Sequence[int] = ()) -> None:
        super().__init__(rows)
        self._keys, self._depths = keys, depths or [0] * len(rows)

    def __getitem__(self, name: str) -> Array:
        """Return the keys: there are no other columns."""
        return self._keys

    def at(self, places: Array) -> Self:
        rows, depths = ([of[at] for at in places.tolist()] for of in (self.rows, self._depths))
        return type(self)(rows, self._keys[places], depths)

    @property
    def depths(self) -> Sequence[int]:
        return self._depths


_PartT = TypeVar("_PartT", bound=ArrayPart)


def _of(function: Any, part: ArrayPart) -> Any:
    """Return the results (n,) of a column's function."""
    return [function(row) for row in part.rows] if part.each else function(part)


def column_values(column: Column[_PartT], part: _PartT) -> Any:
    """Return the values (n,) of a column: an array of numbers, or texts."""
    if part.each:
        return _of(column.written or column.cells or str, part)
    return part[column.id] if column.values is None else column.values(part)


def column_cells(column: Column[_PartT], part: _PartT) -> list[str | Pieces]:
    """Return the texts (n,) of a column's cells."""
    if part.each or column.cells is not None:
        return list(_of(column.cells or str, part))
    values = column_values(column, part)
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    found: list[str | Pieces] = list(map(column.text, listed))
    if column.bounded and (bound := part["at_least"]).any():
        found = [f"≥{text}" if one else text for text, one in zip(found, bound, strict=True)]
    return found


class ArrayRows(Generic[_PartT]):
    """A ValueSource over a part of a table."""

    def __init__(self, spec: TableSpec[_PartT], part: _PartT) -> None:
        self.spec, self.part = spec, part
        self._blocks: dict[int, _Block[_PartT]] = {}

    @cached_property
    def _ids(self) -> Array:
        return self.part["id"]

    @property
    def rows(self) -> int:
        return len(self.part)

    def key(self, index: int) -> Hashable:
        key: Hashable = self._ids.item(index)
        return key

    def index(self, key: Hashable) -> int | None:
        if self._ids.dtype == object:
            return next((at for at, one in enumerate(self._ids) if one == key), None)
        places = (
            np.flatnonzero(self._ids == np.uint64(key)) if isinstance(key, int) else self._ids[:0]
        )
        return int(places[0]) if len(places) else None

    def at(self, places: Array) -> ArrayRows[_PartT]:
        """Return the rows at places (m,), in their order."""
        return ArrayRows(self.spec, self.part.at(places))

    def cells(self, index: int) -> Sequence[str | Pieces]:
        return _Cells(self._block(index), index % _BLOCK)

    def tones(self, index: int) -> Tones:
        return self._block(index).tones[index % _BLOCK]

    def values(self, position: int) -> Sequence[Value]:
        column = self.spec.columns[position]
        if column.written is not None:
            return list(_of(column.written, self.part))
        found = column_values(column, self.part)
        if not isinstance(found, np.ndarray):
            return list(found)
        listed: list[Value] = (found.round(1) if found.dtype.kind == "f" else found).tolist()
        return listed

    def ordered(self, position: int, *, descending: bool) -> ArrayRows[_PartT]:
        column = self.spec.columns[position]
        by = _of(column.order, self.part) if column.order else column_values(column, self.part)
        if (depths := self.part.depths) is not None:
            few = by.tolist() if isinstance(by, np.ndarray) else list(by)
            return self.at(np.array(nested_order(few, depths, descending=descending), int))
        if descending and by.dtype.kind == "f":
            by = np.where(np.isnan(by), -np.inf, by)
        order = np.argsort(by, kind="stable")
        return self.at(order[::-1] if descending else order)

    def _block(self, index: int) -> _Block[_PartT]:
        number = index // _BLOCK
        if number not in self._blocks:
            stop = min((number + 1) * _BLOCK, self.rows)
            part = self.part.at(np.arange(number * _BLOCK, stop))
            self._blocks[number] = _Block(self.spec, part)
        return self._blocks[number]


def item_rows(
    spec: TableSpec[Any], items: Iterable[tuple[Hashable, Any]], depths: Sequence[int] = ()
) -> ArrayRows[ItemRows]:
    """Return a row for each item with its key."""
    found = list(items)
    keys = np.empty(len(found), object)
    for at, (key, _) in enumerate(found):
        keys[at] = key
    return ArrayRows(spec, ItemRows([item for _, item in found], keys, depths))


class _Block(Generic[_PartT]):
    """Some neighbouring rows, as text; columns out of sight cost nothing."""

    def __init__(self, spec: TableSpec[_PartT], part: _PartT) -> None:
        self.spec, self._part = spec, part
        self._cells: dict[int, list[str | Pieces]] = {}

    def cells(self, position: int) -> list[str | Pieces]:
        """Return the texts of a column."""
        if position not in self._cells:
            self._cells[position] = column_cells(self.spec.columns[position], self._part)
        return self._cells[position]

    @cached_property
    def tones(self) -> list[Tones]:
        """The tones of each row."""
        rows: Any = [Tone.NORMAL] * len(self._part)
        if self._part.has_tones:
            columns = (
                map(Tone, _of(column.tone, self._part)) if callable(column.tone)
                else [Tone(column.tone)] * len(self._part)
                for column in self.spec.columns
            )  # fmt: skip
            rows = map(list, zip(*columns, strict=True))
        muted = self._part.muted.tolist()
        return [Tone.MUTED if is_muted else row for is_muted, row in zip(muted, rows, strict=True)]


class _Cells(Sequence[str | Pieces]):
    """A row of a block."""

    def __init__(self, block: _Block[Any], row: int) -> None:
        self._block, self._row = block, row

    def __len__(self) -> int:
        return len(self._block.spec.columns)

    def __getitem__(self, position: Any) -> Any:
        return self._block.cells(position)[self._row]
