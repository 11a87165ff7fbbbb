"""Top tables, and the view that makes them of an application's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probes.snapshot import Snapshot

Cell = str | int | float
Macros = Mapping[str, int]
"""Values of the macros that an application was compiled with."""
Window = Sequence[Snapshot]
"""Snapshots of one window, one a metric, in any order."""


@dataclass(frozen=True, slots=True)
class TopTable:
    """The largest rows of one window, largest first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """View of one application's metrics; the number limits rows or findings."""

    tables: Callable[[Macros, Window, int], tuple[TopTable, ...]]
    findings: Callable[[Macros, Window, int], tuple[str, ...]]
    """One line for each finding, most important first."""
