"""The metrics of a probe's last window, a row an entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probes.snapshot import Snapshot
from probes.tables.conversion import columns, flat_rows

MOST = 200
"""Entries of a metric that are shown; files and the API have all."""
_VALUES = ("value", "count")


def metric_cells(tables: Iterable[Snapshot]) -> Iterator[tuple[str, str, str]]:
    """Metric, key and value of each entry; before them a line that names the table and its key.

    Entries are in the order in which the map gave them.
    """
    for table in tables:
        assert table.schema is not None
        names = [name.partition(".") for name in columns(table.schema, table.rows.dtype)]
        is_value = [part in _VALUES for part, _, _ in names]
        heading = (field or part for part, _, field in names if part not in _VALUES)
        yield table.metric, " ".join(heading), _about(table)
        for row in flat_rows(table.schema, table.rows[:MOST]):
            key: list[str] = []
            value: list[str] = []
            for (_, _, field), cell, valued in zip(names, row, is_value, strict=True):
                if valued:
                    value.append(f"{field}={cell}" if field else str(cell))
                else:
                    key.append(str(cell))
            yield "", " ".join(key), " ".join(value)
        if len(table.rows) > MOST:
            yield "", "", f"{len(table.rows) - MOST} more entries"


def _about(table: Snapshot) -> str:
    entries = len(table.rows)
    count = "1 entry" if entries == 1 else f"{entries} entries"
    full = ", and its map is full" if table.occupancy >= 1 else ""
    help_text = f": {table.schema.help}" if table.schema and table.schema.help else ""
    return f"window {table.window}, {table.seconds:.1f} s, {count}{full}{help_text}"
