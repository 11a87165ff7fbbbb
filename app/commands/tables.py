"""Names of columns as the user types them."""

from __future__ import annotations

from app.console.screens import TABLES
from bpf.errors import UsageError, did_you_mean

USUAL = "usual"
"""In place of columns: those that a table usually has."""


def columns_of(text: str) -> tuple[str, ...]:
    """Split typed columns at spaces and commas."""
    return tuple(text.replace(",", " ").split())


def check_columns(text: str) -> None:
    """Raise UsageError if the columns are not of one table, each once."""
    names = columns_of(text)
    if names == (USUAL,):
        return
    fitting = [table for table in TABLES.values() if set(names) <= set(table.names)]
    if not fitting:
        known = {name for table in TABLES.values() for name in table.names}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, sorted(known), "")
                raise UsageError(f"no table has a column {name!r}", hint=hint)
        raise UsageError(f"no table has all of {', '.join(names)}")
    fitting[0].check(names)


def sortable(*tables: str) -> tuple[str, ...]:
    """Return the columns that one of these tables can be sorted by, each once."""
    return tuple(dict.fromkeys(name for table in tables for name in TABLES[table].sortable))
