"""Columns of a table's spec, as the widgets draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from app.console.tables.spec import TableSpec
from widgets.table.rows import Column

_RowT = TypeVar("_RowT")


def columns(spec: TableSpec[_RowT], **changes: Mapping[str, Any]) -> tuple[Column[_RowT], ...]:
    """Return the columns of a table; `changes` are other titles, widths and so on, by column."""
    return tuple(
        replace(column, **changes[column.id]) if column.id in changes else column
        for column in spec.columns
    )
