"""A measurement between the controllers of two hosts, as long as somebody wants it, and the
comparison of their counts."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

import numpy as np

from app.fleet.segment import DigestWindow, OneWay, PassageCounts, Times
from bpf.errors import ProbedeckError
from probes.control_plane import Listener, SegmentControl
from probes.path.analysis.statistics import quantiles
from probes.segment.options import PROBE, SegmentOptions, SegmentStatus
from probes.segment.records import CLOCK_TABLE, DIGESTS_TABLE, SEEN_TABLE
from probes.snapshot import Item, Snapshot

LEASE_S = 15.0
"""A measurement that was killed leaves its probes running for so long."""
_READINGS = 8
"""Newest readings of both clocks that limit their offset."""


class MeasuredHost(SegmentControl, Protocol):
    """The part of a control plane that a measurement needs."""

    def listen(self, listener: Listener) -> None: ...

    def remove(self, name: str, *, force: bool = False) -> Sequence[Snapshot]: ...

    def failure(self) -> ProbedeckError | None: ...


@dataclass(frozen=True, slots=True)
class _Reading:
    """A host's UTC at a moment between two of this process's CLOCK_MONOTONIC, ns."""

    status: SegmentStatus
    before_ns: int
    after_ns: int

    @classmethod
    def of(cls, host: MeasuredHost, options: SegmentOptions) -> Self:
        """Read a host's clocks, and renew the lease of its probe by the same request."""
        before_ns = time.monotonic_ns()
        return cls(host.measure_segment(options, LEASE_S), before_ns, time.monotonic_ns())


def bounds_of(first: _Reading, second: _Reading) -> OffsetBounds:
    """Return the limits of the second host's clock minus the first one's."""
    one, other = first.status.utc_ns, second.status.utc_ns
    apart_low, apart_high = second.before_ns - first.after_ns, second.after_ns - first.before_ns
    return OffsetBounds(other - one - apart_high, other - one - apart_low)


class SegmentRun:
    """Two hosts that choose packets alike, and the comparison of their tables.

    `report` is for one thread. Leaving the block ends the probes that it started. If the process
    is killed, the probes end LEASE_S later.
    """

    def __init__(
        self, hosts: tuple[MeasuredHost, MeasuredHost], options: SegmentOptions, horizon_s: float
    ) -> None:
        """Start the probe on both hosts. Raises ProbedeckError, and then ends what it started."""
        self._hosts, self._options = hosts, options
        self._lock = threading.Lock()
        self._bounds: deque[OffsetBounds] = deque(maxlen=_READINGS)
        with ExitStack() as undo:
            statuses = [host.segment() for host in hosts]
            boots = {status.boot for status in statuses}
            self._comparison = SegmentComparison(horizon_s, one_clock=len(boots) == 1)
            for number, host in enumerate(hosts):
                host.listen(partial(self._take, number))
            # At once: packets that only one of the hosts records are not compared.
            with ThreadPoolExecutor(len(hosts)) as threads:
                starts = [threads.submit(host.measure_segment, options, LEASE_S) for host in hosts]
            for host, status, start in zip(hosts, statuses, starts, strict=True):
                if not (status.running or start.exception()):
                    undo.callback(host.remove, PROBE)
            for start in starts:
                start.result()
            self.look_at_clocks()
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def look_at_clocks(self) -> None:
        """Ask both hosts for their clocks, and renew the leases: call it every few seconds.

        Raises ProbedeckError.
        """
        first, second = (_Reading.of(host, self._options) for host in self._hosts)
        self._bounds.append(bounds_of(first, second))

    def report(self) -> SegmentReport:
        """Compare what has come so far. Raises ProbedeckError if a connection ended for good."""
        for host in self._hosts:
            if failure := host.failure():
                raise failure
        bounds = self._bounds[-1]
        for each in self._bounds:
            both = bounds.within(each)
            # A clock was set between two readings: the newest counts.
            bounds = both if both.is_known else self._bounds[-1]
        with self._lock:
            return self._comparison.report(bounds)

    def _take(self, number: int, item: Item) -> None:
        if isinstance(item, Snapshot):
            with self._lock:
                self._comparison.take(number, item)


def with_key(options: SegmentOptions) -> SegmentOptions:
    """Return options with a key that nobody knows, if they have none."""
    return options if options.key else replace(options, key=secrets.token_hex(16))


_QUANTILES = (0.0, 0.5, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Limits of the second host's clock minus the first one's, ns. Both ends are certain."""

    low_ns: float = -math.inf
    high_ns: float = math.inf

    def within(self, other: OffsetBounds) -> OffsetBounds:
        return OffsetBounds(max(self.low_ns, other.low_ns), min(self.high_ns, other.high_ns))

    @property
    def is_known(self) -> bool:
        """Whether both limits are finite and agree. They contradict each other if a clock was
        set."""
        return -math.inf < self.low_ns <= self.high_ns < math.inf

    @property
    def offset_ns(self) -> int:
        return round((self.low_ns + self.high_ns) / 2)

    @property
    def error_ns(self) -> int:
        return math.ceil((self.high_ns - self.low_ns) / 2)


SAME_CLOCK = OffsetBounds(0, 0)


@dataclass(frozen=True, slots=True)
class Delay:
    """One-way delay of packets without copies, seconds."""

    samples: int
    least: float
    median: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Passage:
    """One direction of a segment."""

    counts: PassageCounts
    delay: Delay | None
    """None without samples, or without limits of the clocks' offset."""
    sent_packets: int
    """Packets that passed the filter at the sender, chosen or not."""
    received_packets: int


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """Packets between two hosts so far."""

    there: Passage
    """From the first host to the second."""
    back: Passage
    offset_s: float
    """The second host's clock minus the first one's; NaN if it is unknown."""
    error_s: float
    """The true offset, and so each delay, lies within so much; infinite if it is unknown."""
    one_clock: bool
    """Whether both hosts read the same clock: delays are exact."""


@dataclass(slots=True)
class _Host:
    """Tables of a window that is not complete, and sums."""

    window: int = 0
    tables: dict[tuple[str, str], Snapshot] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=lambda: {"ingress": 0, "egress": 0})
    error_ns: int = 0
    """Largest error of a reading of its clocks."""


class SegmentComparison:
    """Compares the windows of the segment probes of two hosts as they come.

    `take` and `report` are for one thread, or for a caller that locks.
    """

    def __init__(self, horizon_s: float, *, one_clock: bool) -> None:
        """A packet that takes longer than `horizon_s` is lost. `one_clock`: both hosts have the
        same CLOCK_MONOTONIC, as the ids of their boots tell."""
        horizon_ns = round(horizon_s * 1e9)
        self._hosts = _Host(), _Host()
        self._there, self._back = OneWay(horizon_ns), OneWay(horizon_ns)
        self._one_clock = one_clock

    def take(self, host: int, item: Snapshot) -> bool:
        """Add a table of host 0 or 1. Returns True if it completes a window of the probe."""
        if item.probe != PROBE:
            return False
        known = self._hosts[host]
        if item.window != known.window:
            known.window = item.window
            known.tables.clear()
        known.tables[item.side, item.metric] = item
        if item.metric == SEEN_TABLE:
            known.seen[item.side] += int(item.rows["value"]["packets"].sum())
        if item.metric != CLOCK_TABLE:
            return False
        clock = item.rows["value"][0]
        known.error_ns = max(known.error_ns, int(clock["error"]))
        ahead_ns = 0 if self._one_clock else int(clock["utc"]) - int(clock["monotonic"])
        sent, received = (self._back, self._there) if host else (self._there, self._back)
        for side, add in (("egress", sent.add_sent), ("ingress", received.add_received)):
            if table := known.tables.get((side, DIGESTS_TABLE)):
                add(_window(table, ahead_ns))
        known.tables.clear()
        return True

    def report(self, asked: OffsetBounds = OffsetBounds()) -> SegmentReport:
        """Compare what has come so far. `asked`: limits of the offset by requests to both hosts.

        No packet arrives before it is sent, so packets in both directions limit the offset, too.
        """
        first, second = self._hosts
        bounds = SAME_CLOCK if self._one_clock else asked
        if bounds.is_known:
            self._there.advance(bounds.offset_ns, bounds.error_ns)
            self._back.advance(-bounds.offset_ns, bounds.error_ns)
        there, back = self._there.delays(), self._back.delays()
        if not self._one_clock:
            reading_ns = first.error_ns + second.error_ns
            low_ns = -float(back.min()) - reading_ns if len(back) else -math.inf
            high_ns = float(there.min()) + reading_ns if len(there) else math.inf
            bounds = bounds.within(OffsetBounds(low_ns, high_ns))
        known, offset_ns = bounds.is_known, bounds.offset_ns if bounds.is_known else 0
        return SegmentReport(
            Passage(
                self._there.counts,
                _delay(there - offset_ns) if known else None,
                first.seen["egress"],
                second.seen["ingress"],
            ),
            Passage(
                self._back.counts,
                _delay(back + offset_ns) if known else None,
                second.seen["egress"],
                first.seen["ingress"],
            ),
            offset_ns / 1e9 if known else math.nan,
            bounds.error_ns / 1e9 if known else math.inf,
            self._one_clock,
        )


def _window(table: Snapshot, ahead_ns: int) -> DigestWindow:
    value = table.rows["value"]
    return DigestWindow(
        table.start_ns + ahead_ns,
        table.end_ns + ahead_ns,
        np.ascontiguousarray(value["digest"]),
        value["time"].astype(np.int64) + ahead_ns,
        np.ascontiguousarray(value["flow"]),
        table.lost.packets,
    )


def _delay(delays: Times) -> Delay | None:
    if not len(delays):
        return None
    return Delay(len(delays), *quantiles(delays / 1e9, _QUANTILES).tolist())
