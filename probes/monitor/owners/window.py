"""Owners of the last window, as the socket probe has published them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np

from probes.filter import RowTable
from probes.flow.filter import FlowFilter
from probes.monitor.owners.text import stored_filter
from probes.monitor.records import Array
from probes.monitor.selected import Estimate, SelectedMetric
from probes.snapshot import Snapshot
from probes.sockets.joined import sockets_of
from probes.sockets.records import OWNERS_TABLE, OWNERSHIP_TABLE, PROBE, SOCKETS_TABLE, owned_share


class SnapshotHistory(Protocol):
    """The part of a controller that keeps windows."""

    def latest(self, probe: str) -> Mapping[str, Snapshot]:
        """Return the last snapshot of each table of a probe, by metric."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnerWindow:
    """Tables of one window of the socket probe."""

    sockets: Array
    """dtype SOCKET (n,)."""
    owners: Array
    """dtype OWNER (m,)."""
    ownership: Array
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

    def passing(self, rows: Array, texts: Sequence[str]) -> Array:
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
    """The last whole window of the socket probe."""

    def __init__(self, history: SnapshotHistory) -> None:
        self._history = history
        self._sockets: Snapshot | None = None
        self._window: OwnerWindow | None = None

    def __call__(self) -> OwnerWindow | None:
        """Return the window, the same object until another one is whole; None: there was none."""
        found = self._history.latest(PROBE)
        if not found.keys() >= {SOCKETS_TABLE, OWNERS_TABLE, OWNERSHIP_TABLE}:
            return None
        sockets, owners = found[SOCKETS_TABLE], found[OWNERS_TABLE]
        ownership = found[OWNERSHIP_TABLE]
        is_whole = sockets.window == owners.window == ownership.window
        if sockets is not self._sockets and is_whole:
            self._sockets = sockets
            self._window = OwnerWindow(
                sockets.rows, owners.rows, ownership.rows, sockets.seconds, sockets.end_ns
            )
        return self._window


def _share(part: int, whole: int) -> float:
    return float(part) / float(whole) if whole else 0.0


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value)
