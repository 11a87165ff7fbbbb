"""Specs of tables: their names in settings, their columns, and their first order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bpf.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from widgets.table.rows import Column

_RowT = TypeVar("_RowT", contravariant=True)
_T = TypeVar("_T")


class TableSpec(Generic[_RowT]):
    """Name of a table in settings, its columns, and its first order."""

    def __init__(self, name: str, columns: Iterable[Column[_RowT]], sort: str = "") -> None:
        """`sort` is the column of the first order; empty: rows stay in the order of the source."""
        self.name, self.sort = name, sort
        self.columns = tuple(columns)
        """In their usual order."""

    def add(self, column: Column[_RowT]) -> None:
        """Add a column at the right end."""
        self.columns = (*self.columns, column)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column's id."""
        return tuple(column.id for column in self.columns)

    @property
    def sortable(self) -> tuple[str, ...]:
        """Columns (ids) that the table can be sorted by."""
        return tuple(column.id for column in self.columns if not column.drawn)

    def begins_with_largest(self, name: str) -> bool:
        """Return whether the usual order by this column begins with the largest value."""
        return any(column.larger_first for column in self.columns if column.id == name)

    def check(self, names: Sequence[str]) -> None:
        """Raise UsageError if one of `names` is no column of the table, or stands there twice."""
        for place, name in enumerate(names):
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                raise UsageError(f"{self.name} have no column {name!r}", hint=hint)
            if name in names[:place]:
                raise UsageError(f"column {name!r} is there twice")


def columns(spec: TableSpec[_T], **changes: Mapping[str, Any]) -> tuple[Column[_T], ...]:
    """Return the columns of a table; `changes` are other titles, widths and so on, by column."""
    return tuple(
        replace(column, **changes[column.id]) if column.id in changes else column
        for column in spec.columns
    )


def either(mask: Any, yes: Any, no: Any) -> list[Any]:
    """Return `yes` for each row of a mask (n,), or else `no`, which may be a list (n,)."""
    others = no if isinstance(no, list) else repeat(no)
    return [yes if one else other for one, other in zip(mask.tolist(), others, strict=False)]
