"""Metrics of the packets that a filter selects, and their values in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNITS = {
    "packets": "packets",
    "bytes": "bytes",
    "flows": "flows",
    "sources": "sources",
    "destinations": "destinations",
    "ports": "ports",
    "top_source": "ratio",
    "top_destination": "ratio",
    "top_port": "ratio",
}
"""Unit of each metric that a selection can have. `flows`, `sources`, `destinations` and `ports`
(destination ports) are numbers of distinct ones. `top_...` is the largest share of the selection's
packets that one of them has."""


@dataclass(frozen=True, slots=True)
class SelectedMetric:
    """A metric of a selection, which the kernel counts while a policy needs it."""

    name: str
    """One of UNITS."""
    selection: str
    """Canonical text of the filter; empty: all packets."""

    def __str__(self) -> str:
        return f"{self.name} on {self.selection}" if self.selection else self.name


class Estimate(NamedTuple):
    """A metric's value in a window, with its limits at 95 % confidence; counts are exact."""

    value: float
    low: float
    high: float
