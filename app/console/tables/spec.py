"""Specs of tables: one entry a column has its names, its layout, its help and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from bpf.errors import UsageError, did_you_mean

_RowT = TypeVar("_RowT", contravariant=True)


@dataclass(frozen=True, slots=True)
class ColumnSpec(Generic[_RowT]):
    """One column. It needs neither numpy nor a screen, so that settings and tapes are checked fast.

    The first fields have the meanings of the widgets' columns. `cell`, `tone`, `value` and `rank`
    take an object that describes a row; `numbers` and `values` take a source of many rows.
    """

    id: str
    """Stable name, used in messages and settings."""
    title: str
    width: int
    align: Literal["left", "right"] = "left"
    priority: int = 0
    grows: bool = False
    hidden: bool = False
    unit: str = ""
    help: str = ""
    larger_first: bool = False
    """Whether the usual order by this column begins with the largest value."""
    drawn: bool = False
    """Whether the cells are pictures, which have no values and no order."""
    cell: Callable[[_RowT], Any] = str
    """Text of the cell: a string, or pieces with tones."""
    tone: Callable[[_RowT], str] | str = "normal"
    """Tone of the cell (widgets.tones.Tone), or a function that returns it."""
    value: Callable[[_RowT], Any] | None = None
    """Value for files and for the order; None for the text of the cell."""
    rank: Callable[[_RowT], float] | None = None
    """Number that orders rows in place of the value; NaN is no number."""
    numbers: Callable[[Any], Any] | None = None
    """Array (n,) that orders all rows of the source; None for the field named like the column."""
    values: Callable[[Any], Sequence[Any]] | None = None
    """Values (n,) of the rows shown, for files; None for `numbers`."""


class TableSpec(Generic[_RowT]):
    """Name of a table in settings, its columns, and its first order."""

    def __init__(self, name: str, columns: Iterable[ColumnSpec[_RowT]], sort: str = "") -> None:
        """`sort` is the column of the first order; empty: rows stay in the order of the source."""
        self.name, self.sort = name, sort
        self.columns = tuple(columns)
        """In their usual order."""

    def add(self, column: ColumnSpec[_RowT]) -> None:
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
