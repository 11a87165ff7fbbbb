"""Columns of screen 6: events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.console.tables.spec import ColumnSpec, TableSpec
from probes.snapshot import SEVERITIES

if TYPE_CHECKING:
    from probes.snapshot import Event


def time_of(event: Event) -> str:
    """Return the time of day in UTC, with milliseconds."""
    return datetime.fromtimestamp(event.utc_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]


def _iso(event: Event) -> str:
    from app.outputs.view import iso

    return iso(event.utc_ns)


EVENTS: TableSpec[Event] = TableSpec(
    "events",
    (
        ColumnSpec("time", "Time (UTC)", 12, larger_first=True, help="Time of the event, UTC.",
            cell=time_of, value=_iso, rank=lambda event: event.utc_ns),
        ColumnSpec("severity", "Severity", 8, priority=1, larger_first=True,
            help="info, warning or error.",
            cell=lambda event: event.severity,
            rank=lambda event: SEVERITIES.index(event.severity)),
        ColumnSpec("source", "Source", 12, priority=2,
            help="The probe or part of probedeck that reports the event.",
            cell=lambda event: event.source),
        ColumnSpec("text", "Event", 40, grows=True, help="Text of the event.",
            cell=lambda event: event.text),
    ),
    sort="time",
)  # fmt: skip
