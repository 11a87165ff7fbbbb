"""What a reader sees of an application's metrics: tables of the largest, and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from probes.monitor.applications import accounting, dns, half_open, heavy_hitters, port_scan
from probes.monitor.applications.top import ApplicationView, TopTable, largest
from probes.snapshot import Snapshot
from probes.tables.conversion import columns, flat_rows

__all__ = ["VIEWS", "ApplicationView", "TopTable", "findings", "tables"]

VIEWS: dict[str, ApplicationView] = {
    "accounting": accounting.VIEW,
    "dns": dns.VIEW,
    "half_open": half_open.VIEW,
    "heavy_hitters": heavy_hitters.VIEW,
    "port_scan": port_scan.VIEW,
}
"""By the application's name."""
_NOT_ITS_OWN = (LookupError, ValueError)
"""What a view runs into where an operator's edit took a macro, or a field, away that it shows."""


def tables(
    name: str, define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int = 20
) -> tuple[TopTable, ...]:
    """The largest of what an application has measured in one window, `most` rows a table at most.

    `define` are the macros that it was compiled with, `snapshots` the window's, one a metric. An
    application without a view has its metrics' rows, largest number first.
    """
    if view := VIEWS.get(name):
        with suppress(*_NOT_ITS_OWN):
            return view.tables(define, snapshots, most)
    return tuple(_plain(snapshot, most) for snapshot in snapshots if snapshot.schema)


def findings(
    name: str, define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int = 20
) -> tuple[str, ...]:
    """What an operator should know of the window, a line each; most important first."""
    if view := VIEWS.get(name):
        with suppress(*_NOT_ITS_OWN):
            return view.findings(define, snapshots, most)
    return ()


def _plain(snapshot: Snapshot, most: int) -> TopTable:
    """Rows by the largest number that a value of theirs has."""
    assert snapshot.schema
    names = columns(snapshot.schema, snapshot.rows.dtype)
    rows = list(flat_rows(snapshot.schema, snapshot.rows))
    sizes = np.array([max(filter(_is_number, row[1:]), default=0) for row in rows], "f8")
    return TopTable(snapshot.metric, names, tuple(rows[n] for n in largest(sizes, most)))


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float)
