"""A measurement between the controllers of two hosts, as long as somebody wants it."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

from app.fleet.segment_report import OffsetBounds, SegmentComparison, SegmentReport
from bpf.errors import ProbedeckError, UsageError
from probes.control_plane import Listener
from probes.segment.options import PROBE, SegmentControl, SegmentOptions, SegmentStatus
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


def parse_ratio(text: str) -> int:
    """Return 64 for `1/64` or `64`. Raises UsageError."""
    one, slash, many = text.strip().rpartition("/")
    if many.isdecimal() and len(many) <= 6 and one.strip() in (("1",) if slash else ("",)):
        return int(many)
    raise UsageError(f"{text!r} is no ratio", hint="1/64 chooses one of 64 packets, 1/1 all")
