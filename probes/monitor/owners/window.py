"""Owners of the last window, as the socket probe has published them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter import RowTable
from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW
from probes.monitor.owners.text import stored_filter
from probes.monitor.selected import Estimate, SelectedMetric
from probes.snapshot import Snapshot
from probes.sockets.records import (
    OWNER,
    OWNERS_TABLE,
    OWNERSHIP,
    OWNERSHIP_TABLE,
    PROBE,
    SOCKET,
    SOCKETS_TABLE,
    owned_share,
    sockets_of,
)

_TABLES = {SOCKETS_TABLE, OWNERS_TABLE, OWNERSHIP_TABLE}
_RECENT = 4
"""Newest windows from which one is chosen."""
_SHORT = 0.5
"""A window that is shorter than this part of the longest of them does not count."""


class SnapshotHistory(Protocol):
    """The part of a controller that keeps windows."""

    def newest(self, probe: str, count: int) -> Mapping[str, Sequence[Snapshot]]:
        """Return the newest snapshots of each table of a probe by metric, newest first."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnerWindow:
    """Tables of one window of the socket probe."""

    sockets: Rows[SOCKET]
    """dtype SOCKET (n,)."""
    owners: Rows[OWNER]
    """dtype OWNER (m,)."""
    ownership: Rows[OWNERSHIP]
    """dtype OWNERSHIP (k,)."""
    seconds: float
    end_ns: int
    """CLOCK_MONOTONIC."""

    def owned_by(self, text: str) -> tuple[Array, Array]:
        """Return the owners that pass a filter of owners, and which sockets are theirs,
        bool (n,)."""
        passing = stored_filter(text)
        assert passing
        made = {"process": lambda: self.owners["comm"], "pid": lambda: self.owners["tgid"]}
        owners = self.owners[passing.mask(RowTable(self.owners, made))]
        return owners, np.isin(self.sockets["owner"], owners["number"])

    def passing(self, rows: Rows[FLOW], texts: Sequence[str]) -> Array:
        """Return which flows (n,) of dtype FLOW pass one of the filters, of owners or of packets:
        bool (n,)."""
        passes = np.zeros(len(rows), bool)
        at = sockets_of(rows, self.sockets)
        numbers = np.append(self.sockets["owner"], np.uint32(0))[at]
        for text in texts:
            if stored_filter(text) is None:
                passes |= FlowFilter.parse(text).mask(rows)
            else:
                passes |= np.isin(numbers, self.owned_by(text)[0]["number"])
        return passes

    def value(self, metric: SelectedMetric, seconds: float) -> Estimate:
        """Return a metric of owners, in a window of so many seconds."""
        if metric.name == "owned":
            share = owned_share(self.ownership)
            return _exact(nan if share is None else share)
        owners, sockets = self.owners, self.sockets
        if metric.selection:
            owners, own = self.owned_by(metric.selection)
            sockets = sockets[own]
        if metric.name == "retransmissions":
            return _exact(_share(sockets["retransmitted"].sum(), sockets["segments"].sum()))
        count = float(owners[metric.name].sum())
        # Rates stay right if the two windows differ in length.
        return _exact(count if metric.name == "flows" else count * seconds / self.seconds)


class LastOwners:
    """The last whole window of the socket probe that has its full length.

    When a policy begins, the search for its culprits ends the flow probe's window early. The next
    one can last some milliseconds: rates and selections of these would be of few packets or none.
    """

    def __init__(self, history: SnapshotHistory) -> None:
        self._history = history
        self._last: Snapshot | None = None
        self._window: OwnerWindow | None = None

    def __call__(self) -> OwnerWindow | None:
        """Return the window, the same object until another one is whole; None: there was none."""
        found = self._history.newest(PROBE, _RECENT)
        if not found.keys() >= _TABLES:
            return None
        # Published last. The CPU budget leaves owners out of some: their metrics are unknown.
        recent = [window for window in found[OWNERSHIP_TABLE] if not window.cut]
        if not recent:
            return None
        usual_s = max(window.seconds for window in recent)
        for last in recent:
            of = {
                name: each.rows
                for name in _TABLES
                for each in found[name]
                if each.end_ns == last.end_ns
            }
            if last.seconds >= _SHORT * usual_s and of.keys() == _TABLES:
                if last is not self._last:
                    self._last = last
                    self._window = OwnerWindow(
                        of[SOCKETS_TABLE], of[OWNERS_TABLE], of[OWNERSHIP_TABLE],
                        last.seconds, last.end_ns,
                    )  # fmt: skip
                break
        return self._window


def _share(part: int, whole: int) -> float:
    return float(part) / float(whole) if whole else 0.0


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value)
