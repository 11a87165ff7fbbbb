"""Where a table's rows come from: the protocol, and the plain source for tables of a few rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from widgets.tones import Tone

Pieces = tuple[tuple[str, Tone], ...]
"""A text whose parts have tones of their own, in characters of one cell."""
Tones = Tone | Sequence[Tone]
"""One tone for a whole row, or one for each column."""


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
