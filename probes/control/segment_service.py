"""Starts the segment probe of this host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from bpf.errors import UsageError
from probes.segment.control import SegmentStatus
from probes.segment.options import SegmentOptions

if TYPE_CHECKING:
    from probes.segment.probe import SegmentProbe


class SegmentService:
    """The `SegmentControl` of this host's controller."""

    def __init__(
        self,
        changing: AbstractContextManager[object],
        start: Callable[[SegmentOptions], object],
        running: Callable[[], SegmentProbe | None],
    ) -> None:
        """`changing` is the controller's lock for changes. `start` starts the probe, or raises;
        `running` returns the probe that runs."""
        self._changing, self._start, self._running = changing, start, running

    def measure(self, options: SegmentOptions) -> SegmentStatus:
        options.check()
        with self._changing:
            probe = self._running()
            if probe is None:
                self._start(options)
            elif probe.options != options:
                raise UsageError(
                    "the segment probe runs with another key, ratio, filter or interval",
                    hint="probedeck probe remove segment ends it",
                )
        return self.status()

    def status(self) -> SegmentStatus:
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
