"""Windows of the monitors of several hosts, aligned by the seconds of UTC."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array, Rows
from probes.monitor.records import METRIC
from probes.snapshot import Snapshot

_SECOND_NS = 1_000_000_000
_PATIENCE_NS = 2 * _SECOND_NS
"""Wait for the windows of a second, after its end and the length of the longest window."""
_AWAY_NS = 60 * _SECOND_NS
"""A window so far from now has a wrong clock, and is left out."""
_COVERED = 0.5
"""Least part of a second that the windows of a host cover; what they lack is taken as alike."""


@dataclass(frozen=True, slots=True)
class FleetSecond:
    """The metrics of each host in one second of UTC."""

    end_utc_ns: int
    rows: Mapping[str, Array]
    """By host, dtype METRIC, shape (); without flows."""
    missing: tuple[str, ...]
    """Hosts without windows of that second."""


class AlignedSeconds:
    """Spreads windows over the seconds of UTC. For one thread at a time.

    A window that lies in two seconds counts in each by its part of the time.
    """

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = tuple(hosts)
        self._seconds: dict[int, dict[str, Array]] = {}
        """By second and host: the values of METRIC, and the covered part of the second: f8."""
        self._reached: dict[str, int] = {}
        """End of the last window of each host, UTC."""
        self._lengths: dict[str, int] = {}
        self._next = 0
        """The first second that is not closed."""

    def add(self, host: str, window: Snapshot, now_utc_ns: int) -> None:
        """Add a window of the monitor of a host: its table of metrics."""
        end, length = window.end_utc_ns, window.end_ns - window.start_ns
        if length <= 0 or abs(end - now_utc_ns) > _AWAY_NS or not len(window.rows):
            return
        self._reached[host], self._lengths[host] = end, length
        values = np.array([*window.rows[0].item(), length / _SECOND_NS])
        start = max(end - length, self._next * _SECOND_NS)
        for second in range(start // _SECOND_NS, -(-end // _SECOND_NS)):
            first, last = second * _SECOND_NS, (second + 1) * _SECOND_NS
            part = (min(last, end) - max(first, start)) / length
            hosts = self._seconds.setdefault(second, {})
            hosts[host] = hosts.get(host, 0) + part * values

    def closed(self, counting: Collection[str], now_utc_ns: int) -> list[FleetSecond]:
        """Return the seconds that are complete, or late; `counting`: the hosts that are there."""
        longest = max((self._lengths.get(host, 0) for host in counting), default=0)
        found = []
        for second in sorted(self._seconds):
            end = (second + 1) * _SECOND_NS
            complete = all(self._reached.get(host, 0) >= end for host in counting)
            if not complete and now_utc_ns < end + longest + _PATIENCE_NS:
                break
            self._next = second + 1
            parts = self._seconds.pop(second)
            rows = {
                host: _row(parts[host])
                for host in self._hosts
                if host in parts and host in counting and parts[host][-1] >= _COVERED
            }
            if rows:
                missing = tuple(host for host in self._hosts if host not in rows)
                found.append(FleetSecond(end, rows, missing))
        return found


def _row(values: Array) -> Rows[METRIC]:
    row = np.zeros((), METRIC)
    for name, value in zip(METRIC.names or (), values / values[-1], strict=False):
        if not name.startswith("flows"):
            row[name] = round(float(value))
    return row
