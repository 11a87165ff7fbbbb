"""Views of applications' metrics: top tables and findings."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from probes.monitor.applications import (
    accounting,
    dns,
    half_open,
    heavy_hitters,
    port_scan,
    tcp_health,
)
from probes.monitor.applications.top_table import ApplicationView, Macros, TopTable, Window, largest
from probes.snapshot import Snapshot
from probes.tables.conversion import columns, flat_rows

VIEWS: dict[str, ApplicationView] = {
    "accounting": accounting.VIEW,
    "dns": dns.VIEW,
    "half_open": half_open.VIEW,
    "heavy_hitters": heavy_hitters.VIEW,
    "port_scan": port_scan.VIEW,
    "tcp_health": tcp_health.VIEW,
}
"""By the application's name."""
_NOT_ITS_OWN = (LookupError, ValueError)
"""Errors of a view after an operator's edit removed a macro or a field that it shows."""


def tables(name: str, define: Macros, snapshots: Window, most: int = 20) -> tuple[TopTable, ...]:
    """Top tables of an application's window, with at most `most` rows each.

    `define` are the application's macros, `snapshots` the window's, one a metric. An application
    without a view shows its metrics' rows, largest number first.
    """
    if view := VIEWS.get(name):
        with suppress(*_NOT_ITS_OWN):
            return view.tables(define, snapshots, most)
    return tuple(_plain(snapshot, most) for snapshot in snapshots if snapshot.schema)


def findings(name: str, define: Macros, snapshots: Window, most: int = 20) -> tuple[str, ...]:
    """Findings of a window, one line each; most important first."""
    if view := VIEWS.get(name):
        with suppress(*_NOT_ITS_OWN):
            return view.findings(define, snapshots, most)
    return ()


def _plain(snapshot: Snapshot, most: int) -> TopTable:
    """Rows of a snapshot by their largest number."""
    assert snapshot.schema
    names = columns(snapshot.schema, snapshot.rows.dtype)
    rows = list(flat_rows(snapshot.schema, snapshot.rows, snapshot.utc_ns(0)))
    sizes = np.array([max(filter(_is_number, row[1:]), default=0) for row in rows], "f8")
    return TopTable(snapshot.metric, names, tuple(rows[n] for n in largest(sizes, most)))


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float)
