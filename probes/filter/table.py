"""Input of filters: rows, derived columns, and names of addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bpf.arrays import Array


class AddressNames(Protocol):
    """Known names of addresses."""

    @property
    def version(self) -> int:
        """Changes whenever the names change."""

    def name(self, address: str) -> str:
        """The name, or empty if it is unknown; never waits for a name server."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A column of texts that many rows share."""

    codes: Array
    """Place of each row's text in `texts`, (n,)."""
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Rows by column."""

    rows: Array
    """A structured array (n,)."""
    made: Mapping[str, Callable[[], Array]] = field(default_factory=dict)
    """Derived columns (n,), computed on use."""
    names: AddressNames | None = None
    coded: Mapping[str, Callable[[], Coded]] = field(default_factory=dict)
    """Columns of shared texts, computed on use."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> Array:
        made = self.made.get(column)
        return made() if made is not None else self.rows[column]
