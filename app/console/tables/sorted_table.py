"""Tables whose order and columns the user chooses, and their rows.

Rows are arrays. The order takes the values of all rows; blocks of rows are formatted when one of
them is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

import numpy as np

from app.console.protocol import console_of
from app.console.tables.spec import TableSpec, columns
from bpf.arrays import Array
from bpf.errors import UsageError
from widgets.table.rows import Column, Pieces, Tones, Value, nested_order
from widgets.table.table import VirtualTable
from widgets.tones import Tone

OPEN = "open"
"""Value of an open pane in a layout."""
_BLOCK = 8
"""Rows that are formatted at a time: a call of numpy costs more than a row."""


class ArrayRows:
    """Some rows of a table in an order, column by column: a RowSource.

    A subclass has its rows as arrays, and returns some of them by `at`.
    """

    has_tones: bool = True
    """Whether columns choose their tones."""
    depths: Sequence[int] | None = None
    """Depth of each row: a row belongs to the nearest earlier row of less depth, and stays below
    it. None: the order of equal rows means nothing."""

    def __init__(self, spec: TableSpec[Any]) -> None:
        self.spec = spec
        self._blocks: dict[int, Self] = {}
        self._cells: dict[int, list[str | Pieces]] = {}

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, name: str) -> Array:
        """Return a column of numbers (n,)."""
        raise NotImplementedError

    def at(self, places: Array) -> Self:
        """Return the rows at places (m,), in their order."""
        raise NotImplementedError

    @property
    def muted(self) -> Array:
        """Rows (n,) that are muted whatever the tones of their columns, as bools."""
        return np.zeros(len(self), bool)

    def call(self, function: Any) -> Any:
        """Return the results (n,) of a column's function."""
        return function(self)

    def column_values(self, column: Column[Any]) -> Any:
        """Return the values (n,) of a column: an array of numbers, or texts."""
        return self[column.id] if column.values is None else column.values(self)

    def column_cells(self, position: int) -> list[str | Pieces]:
        """Return the texts (n,) of a column's cells; columns out of sight cost nothing."""
        if position not in self._cells:
            self._cells[position] = self._made_cells(self.spec.columns[position])
        return self._cells[position]

    def _made_cells(self, column: Column[Any]) -> list[str | Pieces]:
        if column.cells is not None:
            return list(self.call(column.cells))
        values = self.column_values(column)
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        found: list[str | Pieces] = list(map(column.text, listed))
        if column.bounded and (bound := self["at_least"]).any():
            found = [f"≥{text}" if one else text for text, one in zip(found, bound, strict=True)]
        return found

    @cached_property
    def row_tones(self) -> list[Tones]:
        """The tones of each row."""
        rows: Any = [Tone.NORMAL] * len(self)
        if self.has_tones:
            columns = (
                map(Tone, self.call(column.tone)) if callable(column.tone)
                else [Tone(column.tone)] * len(self)
                for column in self.spec.columns
            )  # fmt: skip
            rows = map(list, zip(*columns, strict=True))
        muted = self.muted.tolist()
        return [Tone.MUTED if is_muted else row for is_muted, row in zip(muted, rows, strict=True)]

    # As the table takes them

    @cached_property
    def _ids(self) -> Array:
        return self["id"]

    @property
    def rows(self) -> int:
        return len(self)

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

    def cells(self, index: int) -> Sequence[str | Pieces]:
        return _Cells(self._block(index), index % _BLOCK)

    def tones(self, index: int) -> Tones:
        return self._block(index).row_tones[index % _BLOCK]

    def values(self, position: int) -> Sequence[Value]:
        """Return the values (n,) of the column at a position, for files."""
        column = self.spec.columns[position]
        if column.written is not None:
            return list(self.call(column.written))
        found = self.column_values(column)
        if not isinstance(found, np.ndarray):
            return list(found)
        listed: list[Value] = (found.round(1) if found.dtype.kind == "f" else found).tolist()
        return listed

    def ordered(self, position: int, *, descending: bool) -> Self:
        """Return the rows sorted by a column; missing values come last in both directions."""
        column = self.spec.columns[position]
        by = self.call(column.order) if column.order else self.column_values(column)
        if (depths := self.depths) is not None:
            few = by.tolist() if isinstance(by, np.ndarray) else list(by)
            return self.at(np.array(nested_order(few, depths, descending=descending), int))
        if descending and by.dtype.kind == "f":
            by = np.where(np.isnan(by), -np.inf, by)
        order = np.argsort(by, kind="stable")
        return self.at(order[::-1] if descending else order)

    def _block(self, index: int) -> Self:
        number = index // _BLOCK
        if number not in self._blocks:
            stop = min((number + 1) * _BLOCK, self.rows)
            self._blocks[number] = self.at(np.arange(number * _BLOCK, stop))
        return self._blocks[number]


class FewRows(ArrayRows):
    """Rows of a small table: a structured array (n,) with their keys in `id`, and perhaps their
    depths in `depth`."""

    def __init__(self, spec: TableSpec[Any], content: Array) -> None:
        super().__init__(spec)
        self.content = content
        known = "depth" in (content.dtype.names or ())
        self.depths = content["depth"].tolist() if known else [0] * len(content)

    def __len__(self) -> int:
        return len(self.content)

    def __getitem__(self, name: str) -> Array:
        column: Array = self.content[name]
        return column

    def at(self, places: Array) -> Self:
        return type(self)(self.spec, self.content[places])


_ITEM = np.dtype([("id", "O"), ("item", "O"), ("depth", "i8")])


class EachRow(FewRows):
    """Rows of a small table whose columns' functions take one row."""

    @property
    def items(self) -> Any:
        return self.content

    def call(self, function: Any) -> Any:
        return list(map(function, self.items))

    def column_values(self, column: Column[Any]) -> Any:
        return self.call(column.written or column.cells or str)

    def _made_cells(self, column: Column[Any]) -> list[str | Pieces]:
        return list(self.call(column.cells or str))


class ItemRows(EachRow):
    """Rows of a small table, of dtype _ITEM: the functions of its columns take one item."""

    @classmethod
    def of(
        cls, spec: TableSpec[Any], items: Iterable[tuple[Hashable, Any]], depths: Iterable[int] = ()
    ) -> Self:
        """Return a row for each item with its key."""
        found = list(items)
        rows = np.zeros(len(found), _ITEM)
        row: Any
        for row, one in zip(rows, found, strict=True):
            row["id"], row["item"] = one
        rows["depth"][:] = list(depths) or 0
        return cls(spec, rows)

    @property
    def items(self) -> Any:
        return self.content["item"]


class _Cells(Sequence[str | Pieces]):
    """A row of a block."""

    def __init__(self, block: ArrayRows, row: int) -> None:
        self._block, self._row = block, row

    def __len__(self) -> int:
        return len(self._block.spec.columns)

    def __getitem__(self, position: Any) -> Any:
        return self._block.column_cells(position)[self._row]


class SortedTable(VirtualTable):
    """A table whose order and columns the user chooses."""

    def __init__(
        self,
        spec: TableSpec[Any],
        *,
        empty: str = "",
        id: str | None = None,  # noqa: A002
    ) -> None:
        """The name of `spec` is the usual `id`."""
        super().__init__(columns(spec), empty=empty, id=id or spec.name)
        self.spec = spec
        self.sort = spec.sort
        """The column (by id) that orders the rows; empty: the order of the source."""
        self.descending = spec.begins_with_largest(spec.sort)
        self._rows: ArrayRows = ItemRows.of(spec, ())
        self.arranged: ArrayRows = self._rows
        """The rows in their present order."""
        self.whole: Callable[[], ArrayRows] | None = None
        """Returns the rows that files get, if the table does not show all of them."""

    def on_mount(self) -> None:
        self.chosen = console_of(self.app).settings.columns.get(self.spec.name, ())

    def fill(self, rows: ArrayRows | None) -> None:
        """Show `rows` in the chosen order; None: no rows."""
        rows = ItemRows.of(self.spec, ()) if rows is None else rows
        self._rows = rows
        self.arranged = self.in_order(rows)
        self.show(self.arranged)
        self.show_sort(self.sort, descending=self.descending)

    def in_order(self, rows: ArrayRows) -> ArrayRows:
        """Return `rows` in the chosen order."""
        place = next((n for n, c in enumerate(self.columns) if c.id == self.sort), None)
        return rows if place is None else rows.ordered(place, descending=self.descending)

    def order_by(self, column: str, *, descending: bool) -> None:
        """Change the order; the cursor stays on its row."""
        key = self.cursor_key if self._pinned else None
        self.sort, self.descending = column, descending
        self.fill(self._rows)
        if key is not None:
            self.want(key)

    def order_by_next(self) -> None:
        """Sort by the next of the chosen columns."""
        names = self.chosen or [column.id for column in self.columns if not column.hidden]
        cycle = [name for name in names if name in self.spec.sortable]
        if not self.spec.sort:
            cycle.insert(0, "")
        at = cycle.index(self.sort) if self.sort in cycle else -1
        self.order_first(cycle[(at + 1) % len(cycle)])

    def order_first(self, column: str) -> None:
        """Sort by a column in its usual order."""
        self.order_by(column, descending=self.spec.begins_with_largest(column))

    def choose(self, columns: Sequence[str]) -> None:
        """Show these columns, or the usual ones for none. Raises UsageError for other names."""
        self.spec.check(tuple(columns))
        self.chosen = tuple(columns)

    def keep(self) -> dict[str, str]:
        """Return order and columns for a layout."""
        name, descending = self.spec.name, str(self.descending).lower()
        return {
            f"{name}.sort": self.sort,
            f"{name}.descending": descending,
            f"{name}.columns": " ".join(self.chosen),
        }

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore unknown columns."""
        now = {**self.keep(), **kept}
        sort, descending, columns = (now[key] for key in self.keep())
        if sort in ("", *self.spec.sortable):
            self.order_by(sort, descending=descending == "true")
        with suppress(UsageError):
            self.choose(columns.split())
