"""Types of the columns of tables, for formats that have types."""

from __future__ import annotations

from enum import StrEnum

import numpy as np


class ColumnType(StrEnum):
    """Type of a column's values in formats that have types, by its name in SQL."""

    INTEGER = "BIGINT"
    UNSIGNED = "UBIGINT"
    """For numbers of 64 bits without a sign."""
    FLOAT = "DOUBLE"
    TEXT = "VARCHAR"
    TRUTH = "BOOLEAN"
    TIME = "TIMESTAMP"
    """UTC."""


_NUMBERS = {
    "i": ColumnType.INTEGER, "u": ColumnType.UNSIGNED, "f": ColumnType.FLOAT, "b": ColumnType.TRUTH,
}  # fmt: skip
"""Types by the kind of a dtype."""


def plain_type(dtype: np.dtype[np.generic]) -> ColumnType:
    """Return the type of numbers as C has them; integers of 128 bits are texts."""
    return _NUMBERS.get(dtype.kind, ColumnType.TEXT)


def fitting(wanted: ColumnType, dtype: np.dtype[np.generic]) -> ColumnType:
    """Return a type that holds the numbers of a dtype."""
    is_integer = wanted in (ColumnType.INTEGER, ColumnType.UNSIGNED)
    return ColumnType.TEXT if is_integer and dtype.kind == "V" else wanted
