"""Starts the segment probe of this host."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from bpf.errors import UsageError
from bpf.quantities import duration
from probes.segment.options import LONGEST_LEASE, SegmentOptions, SegmentStatus

if TYPE_CHECKING:
    from probes.segment.probe import SegmentProbe


class SegmentService:
    """The `SegmentControl` of this host's controller."""

    def __init__(
        self,
        changing: AbstractContextManager[object],
        start: Callable[[SegmentOptions], SegmentProbe],
        end: Callable[[], object],
        running: Callable[[], SegmentProbe | None],
    ) -> None:
        """`changing` is the controller's lock for changes. `start` starts the probe, or raises;
        `end` ends it when its lease has run out; `running` returns the probe that runs."""
        self._changing, self._start, self._end, self._running = changing, start, end, running
        self._lease_end = 0.0
        """Of the running probe, by time.monotonic(); infinite without a lease."""

    def measure_segment(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        options.check()
        if not 0 <= lease <= LONGEST_LEASE:
            raise UsageError(f"a lease of {lease:g} s is not between 0 and {LONGEST_LEASE:g}")
        with self._changing:
            running = self._running()
            if running and running.options != options:
                text = "the segment probe runs with another key, ratio, filter or interval"
                hint = "probedeck probe remove segment ends it"
                if (left := self._lease_end - time.monotonic()) < math.inf:
                    hint += f"; if its measurement was killed, it ends in {duration(max(left, 0))}"
                raise UsageError(text, hint=hint)
            probe = running or self._start(options)
            end = time.monotonic() + lease if lease else math.inf
            # Callers may share the probe: the longest of their leases counts.
            self._lease_end = max(self._lease_end, end) if running else end
            if not running:
                self._watch_lease(probe)
        return self.segment()

    def _watch_lease(self, probe: SegmentProbe) -> None:
        """End the probe once its lease has run out. A timer per probe waits for that."""
        with self._changing:
            if self._running() is not probe or self._lease_end == math.inf:
                return
            left = self._lease_end - time.monotonic()
            if left <= 0:
                self._end()
                return
        timer = threading.Timer(left, self._watch_lease, [probe])
        timer.daemon = True
        timer.start()

    def segment(self) -> SegmentStatus:
        from probes.segment.records import read_clock

        probe = self._running()
        options = probe.options if probe else None
        clock = read_clock()["value"][0]
        return SegmentStatus(
            running=probe is not None,
            key_id=options.key_id if options else "",
            ratio=options.ratio if options else 0,
            filter=options.capture.text if options else "",
            interval=options.interval if options else 0.0,
            interface=probe.interfaces[0].name if probe else "",
            boot=clock["boot"].tobytes().hex(),
            monotonic_ns=int(clock["monotonic"]),
            utc_ns=int(clock["utc"]),
        )
