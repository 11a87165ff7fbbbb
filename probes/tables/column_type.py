"""Types of the columns of tables, for formats that have types."""

from __future__ import annotations

from enum import StrEnum


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
