"""Sums over hosts: windows aligned by the seconds of UTC, and distinct flows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.fleet.planes import HostReport
from bpf.arrays import Array, Rows
from probes.monitor.records import METRIC
from probes.monitor.sketch import Sketch
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
    rows: Mapping[str, Rows[METRIC]]
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


@dataclass(frozen=True, slots=True)
class HostFlows:
    """Distinct flows of one host in its last window."""

    host: str
    estimate: float
    """NaN without an answer."""
    low: float
    high: float
    """Ends of the band that has the true number in 95 of 100 cases."""
    why_not: str = ""
    """Why the sum over the fleet lacks it; empty if it is part of the sum."""


@dataclass(frozen=True, slots=True)
class FleetFlows:
    """Distinct flows of the hosts whose registers can be merged, and of each host."""

    estimate: float
    low: float
    high: float
    hosts: tuple[HostFlows, ...]

    @property
    def merged(self) -> int:
        """Number of hosts in the sum."""
        return sum(not one.why_not for one in self.hosts)


def distinct(reports: Sequence[HostReport]) -> FleetFlows:
    """Merge the sketches of hosts, the answers of `reports`.

    Registers merge only if they have the same seed and number: the others are left out, and say
    so. Of several seeds the one of most hosts counts.
    """
    nan = float("nan")
    kinds: dict[tuple[str, int], list[Sketch]] = {}
    for one in reports:
        if isinstance(one.answer, Sketch):
            kinds.setdefault((one.answer.seed, one.answer.bits), []).append(one.answer)
    usual = max(kinds, key=lambda kind: len(kinds[kind]), default=("", 0))
    found = []
    for one in reports:
        if not isinstance(sketch := one.answer, Sketch):
            found.append(HostFlows(one.host, nan, nan, nan, str(one.error or "no sketch")))
            continue
        why = ""
        if (sketch.seed, sketch.bits) != usual:
            same = sketch.seed == usual[0]
            why = f"it has 2^{sketch.bits} registers" if same else "its sketch has another seed"
        found.append(HostFlows(one.host, sketch.flows(), *sketch.band(), why))
    if not kinds:
        return FleetFlows(nan, nan, nan, tuple(found))
    first, *others = kinds[usual]
    every = first.merged(*others)
    return FleetFlows(every.flows(), *every.band(), tuple(found))
