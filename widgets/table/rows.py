"""Where a table's rows come from: the protocol, and the plain source for tables of a few rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from widgets.tones import Tone

Pieces = tuple[tuple[str, Tone], ...]
"""A text whose parts have tones of their own, in characters of one cell."""
Tones = Tone | Sequence[Tone]
"""One tone for a whole row, or one for each column."""
Value = str | int | float | bool | None
"""What a cell says, as a program would have it: a number without its unit, or words. None, and what
is not finite, is no value."""


class RowSource(Protocol):
    """An immutable, sorted and filtered set of rows; only rows on the screen are asked for."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def key(self, index: int) -> Hashable:
        """What identifies the row from one source to the next; never None."""

    def index(self, key: Hashable) -> int | None:
        """The row of `key`, or None where it is gone; asked once for each new source."""

    def cells(self, index: int) -> Sequence[str | Pieces]:
        """The row's text, one for each column of the table, shown or not."""

    def tones(self, index: int) -> Tones:
        """The row's tones."""


class ValueSource(RowSource, Protocol):
    """Rows that can be put in another order, and written as values."""

    def values(self, position: int) -> Sequence[Value]:
        """The values of a column, those of `cells` at this position, (rows,) in their order."""

    def ordered(self, position: int, *, descending: bool) -> ValueSource:
        """The same rows by a column; what has no value there comes last either way."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plain source."""

    key: Hashable
    cells: tuple[str | Pieces, ...]
    tones: Tones = Tone.NORMAL
    values: tuple[Value, ...] = ()
    """One for each of `cells`; empty in tables that are neither sorted nor written."""
    ranks: Mapping[int, float] = field(default_factory=dict)
    """What it is ordered by in place of its values, by their positions."""
    below: bool = False
    """Whether it belongs to the last row before it that does not, and stays below that."""


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
        """A source of `rows`, in their order."""
        return cls(tuple(rows))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.content)

    def key(self, index: int) -> Hashable:
        """The key of row `index`."""
        return self.content[index].key

    def index(self, key: Hashable) -> int | None:
        """The row of `key`, or None."""
        return self._places.get(key)

    def cells(self, index: int) -> Sequence[str | Pieces]:
        """The text of row `index`."""
        return self.content[index].cells

    def tones(self, index: int) -> Tones:
        """The tones of row `index`."""
        return self.content[index].tones

    def values(self, position: int) -> Sequence[Value]:
        """The values of a column."""
        return [row.values[position] for row in self.content]

    def ordered(self, position: int, *, descending: bool) -> Rows:
        """The same rows by a column."""
        groups: list[list[Row]] = []
        for row in self.content:
            if row.below and groups:
                groups[-1].append(row)
            else:
                groups.append([row])

        def sort(rows: Sequence[Row]) -> list[int]:
            of = [row.ranks.get(position, row.values[position]) for row in rows]
            return order(of, descending=descending)

        found: list[Row] = []
        for place in sort([group[0] for group in groups]):
            head, *rest = groups[place]
            found += (head, *(rest[at] for at in sort(rest)))
        return Rows(found)


def order(values: Sequence[Any], *, descending: bool) -> list[int]:
    """Places of `values` (n,) by size, equal ones as they were, those that are no value last."""
    known: list[int] = []
    missing: list[int] = []
    for place, value in enumerate(values):
        is_none = value is None or (isinstance(value, float) and math.isnan(value))
        (missing if is_none else known).append(place)
    known.sort(key=values.__getitem__, reverse=descending)
    return known + missing
