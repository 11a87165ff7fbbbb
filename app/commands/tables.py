"""The tables of screens: names of their columns, and how they can be sorted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bpf.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Table:
    """What an operator can say of a table."""

    name: str
    columns: tuple[str, ...]
    """All that there are, in their usual order."""
    sort: str = ""
    """What it is sorted by at first; empty: it stays as it comes."""
    largest: frozenset[str] = frozenset()
    """Columns by which the largest comes first; by others it is the smallest, or the first word."""
    pictures: frozenset[str] = frozenset()
    """Columns that are drawn: there is no order by them."""
    hidden: frozenset[str] = frozenset()
    """Columns that are shown only where they are chosen."""

    @property
    def sortable(self) -> tuple[str, ...]:
        """What it can be sorted by."""
        return tuple(name for name in self.columns if name not in self.pictures)

    def check(self, columns: tuple[str, ...]) -> None:
        """UsageError where one of `columns` is none of this table, or stands there twice."""
        for place, name in enumerate(columns):
            if name not in self.columns:
                hint = did_you_mean(name, self.columns)
                raise UsageError(f"{self.name} have no column {name!r}", hint=hint)
            if name in columns[:place]:
                raise UsageError(f"column {name!r} is there twice")


_TABLES = (
    Table(
        "flows",
        (
            "direction", "protocol", "source", "destination", "rate", "packet_rate", "packets",
            "bytes", "age", "rtt", "idle", "flags", "version", "source_port", "destination_port",
            "size", "first", "last", "totals",
        ),
        "rate",
        frozenset({
            "rate", "packet_rate", "packets", "bytes", "age", "rtt", "version", "size", "first",
            "last", "totals",
        }),
        hidden=frozenset({
            "rtt", "version", "source_port", "destination_port", "size", "first", "last", "totals",
        }),
    ),
    Table(
        "changes",
        (
            "direction", "protocol", "source", "destination", "change", "rate", "before", "more",
            "state",
        ),
        "change",
        frozenset({"change", "rate", "before", "more", "state"}),
    ),
    Table(
        "hops",
        (
            "hop", "host", "loss", "last", "median", "p95", "jitter", "count", "address", "sent",
            "line",
        ),
        "hop",
        frozenset({"loss", "last", "median", "p95", "jitter", "count", "sent"}),
        frozenset({"line"}),
        frozenset({"address", "sent"}),
    ),
    Table(
        "hop_changes",
        ("hop", "host", "change", "median", "before", "loss", "was_loss", "was_host"),
        "hop",
        frozenset({"change", "median", "before", "loss", "was_loss"}),
    ),
    Table(
        "destinations",
        ("path", "hops", "rtt", "loss", "state"),
        "",
        frozenset({"hops", "rtt", "loss"}),
    ),
    Table(
        "policies",
        (
            "policy", "state", "condition", "value", "band", "threshold", "line", "runs",
            "selected",
        ),
        "",
        frozenset({"value", "band", "threshold", "selected"}),
        frozenset({"line"}),
    ),
    Table(
        "applications",
        ("application", "active", "packets", "ns", "policies", "summary"),
        "",
        frozenset({"packets", "ns"}),
    ),
    Table(
        "programs",
        (
            "probe", "side", "state", "interface", "hook", "generation", "cost", "memory",
            "metrics",
        ),
        "",
        frozenset({"generation", "cost", "memory"}),
    ),
    Table(
        "events",
        ("time", "severity", "source", "text"),
        "time",
        frozenset({"time", "severity"}),
    ),
)  # fmt: skip
TABLES: Mapping[str, Table] = {table.name: table for table in _TABLES}
"""By their names in settings."""

USUAL = "usual"
"""In the place of columns: those that a table usually has."""


def columns_of(text: str) -> tuple[str, ...]:
    """Columns as they are typed, by spaces or commas."""
    return tuple(text.replace(",", " ").split())


def check_columns(text: str) -> None:
    """UsageError for columns that are not those of one table, each once."""
    names = columns_of(text)
    if names == (USUAL,):
        return
    fitting = [table for table in _TABLES if set(names) <= set(table.columns)]
    if not fitting:
        known = {name for table in _TABLES for name in table.columns}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, sorted(known))
                # What there is would be a long list.
                hint = hint if hint.startswith("did you") else ""
                raise UsageError(f"no table has a column {name!r}", hint=hint)
        raise UsageError(f"no table has all of {', '.join(names)}")
    fitting[0].check(names)


def known_columns() -> Mapping[str, tuple[str, ...]]:
    """The columns of each table, by the tables' names in settings."""
    return {table.name: table.columns for table in _TABLES}


def sortable(*tables: str) -> tuple[str, ...]:
    """What one of these tables can be sorted by, each once."""
    return tuple(dict.fromkeys(name for table in tables for name in TABLES[table].sortable))
