"""What a reader sees of an application's metrics: tables of the largest, and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probes.primitive.applications import half_open, port_scan
from probes.primitive.applications.top import ApplicationView, TopTable, largest
from probes.snapshot import Snapshot
from probes.tables import columns, flat_rows

__all__ = ["VIEWS", "ApplicationView", "TopTable", "findings", "tables"]

VIEWS: dict[str, ApplicationView] = {
    "half_open": half_open.VIEW,
    "port_scan": port_scan.VIEW,
}
"""By the application's name."""


def tables(
    name: str, define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int = 20
) -> tuple[TopTable, ...]:
    """The largest of what an application has measured in one window, `most` rows a table at most.

    `define` are the macros that it was compiled with, `snapshots` the window's, one a metric. An
    application without a view has its metrics' rows, largest number first.
    """
    if view := VIEWS.get(name):
        return view.tables(define, snapshots, most)
    return tuple(_plain(snapshot, most) for snapshot in snapshots if snapshot.schema)


def findings(
    name: str, define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int = 20
) -> tuple[str, ...]:
    """What an operator should know of the window, a line each; most important first."""
    view = VIEWS.get(name)
    return view.findings(define, snapshots, most) if view else ()


def _plain(snapshot: Snapshot, most: int) -> TopTable:
    """Rows by the largest number that a value of theirs has."""
    assert snapshot.schema
    names = columns(snapshot.schema, snapshot.rows.dtype)
    rows = list(flat_rows(snapshot.schema, snapshot.rows))
    sizes = np.array([max(filter(_is_number, row[1:]), default=0) for row in rows], "f8")
    return TopTable(snapshot.metric, names, tuple(rows[n] for n in largest(sizes, most)))


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float)
