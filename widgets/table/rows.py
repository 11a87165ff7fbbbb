"""Columns of a table, and sources of its rows: the protocol, and a plain source for a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from widgets.tones import Tone

Pieces = tuple[tuple[str, Tone], ...]
"""A text in pieces, each with its tone, in characters of one cell."""
Tones = Tone | Sequence[Tone]
"""One tone for a whole row, or one for each column."""
Value = str | int | float | bool | None
"""A cell's value for programs: a number without its unit, or words. None and non-finite numbers are
missing values."""


Align = Literal["left", "right"]
_RowT = TypeVar("_RowT", contravariant=True)


@dataclass(frozen=True, slots=True)
class Column(Generic[_RowT]):
    """One column: layout, names, help, and how rows fill it.

    The rows of a table are arrays: `values`, `order`, `cells`, `written` and `tone` take a part of
    them, and return something for each of its rows. If a small table has objects as its rows,
    the functions take one of them; without `written` the cells are the values.
    """

    id: str
    """Stable name, for messages and settings."""
    title: str
    width: int
    """Width in cells; the least width of a growing column."""
    align: Align = "left"
    """Numbers go to the right."""
    priority: int = 0
    """0 is the most important; a narrow table drops the highest numbers first."""
    grows: bool = False
    """Growing columns share the width that is left."""
    hidden: bool = False
    """A hidden column is shown only if the user chooses it."""
    unit: str = ""
    """Unit of its values, as a part of a name: `bps`; empty without one."""
    help: str = ""
    """Meaning of its values, in a sentence."""
    larger_first: bool = False
    """Whether the usual order by this column begins with the largest value."""
    drawn: bool = False
    """Whether the cells are pictures, which have no values and no order."""
    tone: Callable[[_RowT], Any] | str = "normal"
    """Tone of the cells, or a function that returns it."""
    values: Callable[[_RowT], Any] | None = None
    """Numbers or texts (n,) of the rows; None for the field named like the column."""
    text: Callable[[Any], Any] = str
    """Text of one of them, for its cell."""
    order: Callable[[_RowT], Any] | None = None
    """Numbers (n,) that order the rows in place of the values: texts need them."""
    cells: Callable[[_RowT], Any] | None = None
    """Texts of the cells (n,) that need more than the value: strings, or pieces with tones."""
    written: Callable[[_RowT], Any] | None = None
    """Values (n,) for files in place of the values."""
    bounded: bool = False
    """Whether the value may be a lower bound: the cell then has a sign for it."""

    @property
    def field(self) -> str:
        """Name of its values in files: `rate_bps`."""
        return f"{self.id}_{self.unit}" if self.unit else self.id


class RowSource(Protocol):
    """An immutable, sorted and filtered set of rows; a table formats only visible ones."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def key(self, index: int) -> Hashable:
        """Return the row's identity from one source to the next; never None."""

    def index(self, key: Hashable) -> int | None:
        """Return the index of `key`, or None if the row is gone; asked once a source."""

    def cells(self, index: int) -> Sequence[str | Pieces]:
        """Return the row's texts, one for each column, shown or hidden."""

    def tones(self, index: int) -> Tones:
        """Return the row's tones."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plain source."""

    key: Hashable
    cells: tuple[str | Pieces, ...]
    tones: Tones = Tone.NORMAL


@dataclass(frozen=True, slots=True)
class Rows:
    """A RowSource over rows that were formatted beforehand."""

    content: Sequence[Row] = ()
    _places: dict[Hashable, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {row.key: place for place, row in enumerate(self.content)}
        object.__setattr__(self, "_places", places)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Rows:
        return cls(tuple(rows))

    @property
    def rows(self) -> int:
        return len(self.content)

    def key(self, index: int) -> Hashable:
        return self.content[index].key

    def index(self, key: Hashable) -> int | None:
        return self._places.get(key)

    def cells(self, index: int) -> Sequence[str | Pieces]:
        return self.content[index].cells

    def tones(self, index: int) -> Tones:
        return self.content[index].tones


def nested_order(values: Sequence[Any], depths: Sequence[int], *, descending: bool) -> list[int]:
    """Return the indices that sort `values` (n,) as `order` does; a row stays below the nearest
    earlier row of less depth."""

    def arranged(places: Iterable[int]) -> list[int]:
        groups: list[list[int]] = []
        for place in places:
            if groups and depths[place] > depths[groups[-1][0]]:
                groups[-1].append(place)
            else:
                groups.append([place])
        found = order([values[head] for head, *_ in groups], descending=descending)
        return [one for at in found for one in (groups[at][0], *arranged(groups[at][1:]))]

    return arranged(range(len(values)))


def order(values: Sequence[Any], *, descending: bool) -> list[int]:
    """Return the indices that sort `values` (n,): stable, missing values last."""
    known: list[int] = []
    missing: list[int] = []
    for place, value in enumerate(values):
        is_none = value is None or (isinstance(value, float) and math.isnan(value))
        (missing if is_none else known).append(place)
    known.sort(key=values.__getitem__, reverse=descending)
    return known + missing
