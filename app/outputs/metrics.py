"""Tables of metrics: their columns, and their rows from snapshots.

A metric's map defines its columns, so the schema names them: `PROBE.SIDE.METRIC/` and a checksum of
the columns' names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from app.outputs.encoders import Record
from app.outputs.view import iso
from probes.snapshot import Snapshot
from probes.tables.conversion import column_types, columns, flat_rows, objects
from probes.tables.map_layout import ColumnType

_ABOUT = ("schema", "probe", "side", "metric", "interface", "window", "start", "end", "generation")
"""Columns before the metric's own: the window of the row."""
_NO_TEXT = {
    "window": ColumnType.INTEGER, "start": ColumnType.TIME, "end": ColumnType.TIME,
    "generation": ColumnType.INTEGER,
}  # fmt: skip
_ABOUT_TYPES = tuple(_NO_TEXT.get(name, ColumnType.TEXT) for name in _ABOUT)


class MetricOutput:
    """The table of a metric, as a snapshot defines it."""

    def __init__(self, item: Snapshot) -> None:
        assert item.schema is not None, "a metric's snapshot says what its rows are"
        self._rows = item.schema
        own = columns(item.schema, item.rows.dtype)
        self.header = (*_ABOUT, *own)
        self.types = (*_ABOUT_TYPES, *column_types(item.schema, item.rows.dtype))
        """Types of the columns."""
        self.probe = item.probe
        self.name = f"{item.probe}.{item.side}.{item.metric}"
        """Name of the table and of its file."""
        self.schema = f"{self.name}/{zlib.crc32(','.join(own).encode()):08x}"

    def records(self, item: Snapshot, *, nested: bool) -> Iterator[Record]:
        about = (
            self.schema, item.probe, item.side, item.metric, item.interface, item.window,
            iso(item.start_utc_ns), iso(item.end_utc_ns), item.generation,
        )  # fmt: skip
        if nested:
            window = dict(zip(_ABOUT, about, strict=True))
            return ({**window, **row} for row in objects(self._rows, item.rows, item.utc_ns(0)))
        return ((*about, *row) for row in flat_rows(self._rows, item.rows, item.utc_ns(0)))
