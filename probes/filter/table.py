"""What filters look at: rows, what can be made of them, and names of addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class AddressNames(Protocol):
    """Names of addresses, as far as they are known."""

    @property
    def version(self) -> int:
        """Another number whenever there are other names."""

    def name(self, address: str) -> str:
        """Empty where none is known; asks no one who could be waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Rows by their columns."""

    rows: Array
    """A structured array (n,)."""
    made: Mapping[str, Callable[[], Array]] = field(default_factory=dict)
    """Further columns (n,), made when they are asked for."""
    names: AddressNames | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> Array:
        made = self.made.get(column)
        return made() if made is not None else self.rows[column]
