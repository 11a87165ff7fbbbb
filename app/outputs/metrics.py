"""Tables of metrics: their columns, and their rows from snapshots.

A metric's map defines its columns, so the schema names them: `PROBE.SIDE.METRIC/` and a checksum of
the columns' names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from app.outputs.encoders import Record
from app.outputs.view import iso
from probes.snapshot import Snapshot
from probes.tables.conversion import TableSchema, columns, flat_rows, objects

_ABOUT = ("schema", "probe", "side", "metric", "interface", "window", "start", "end", "generation")
"""Columns before the metric's own: the window of the row."""


class MetricOutput:
    """The rows of a metric's snapshot as a table."""

    def __init__(self, item: Snapshot) -> None:
        self._item = item
        own = columns(_schema(item), item.rows.dtype)
        self.header = (*_ABOUT, *own)
        self.name = f"{item.probe}.{item.side}.{item.metric}"
        """Name of the table and of its file."""
        self.schema = f"{self.name}/{zlib.crc32(','.join(own).encode()):08x}"

    def records(self, *, nested: bool) -> Iterator[Record]:
        """Return the rows: the window, then keys and values."""
        item = self._item
        about = (
            self.schema, item.probe, item.side, item.metric, item.interface, item.window,
            iso(item.start_utc_ns), iso(item.end_utc_ns), item.generation,
        )  # fmt: skip
        if nested:
            window = dict(zip(_ABOUT, about, strict=True))
            return ({**window, **row} for row in objects_of(item))
        return ((*about, *row) for row in flat_rows(_schema(item), item.rows))


def objects_of(item: Snapshot) -> Iterator[dict[str, Any]]:
    """The rows of a metric's snapshot alone, as `probes.tables.conversion.objects` gives them."""
    return objects(_schema(item), item.rows)


def _schema(item: Snapshot) -> TableSchema:
    assert item.schema is not None, "a metric's snapshot says what its rows are"
    return item.schema
