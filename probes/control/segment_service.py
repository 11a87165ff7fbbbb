"""Starts the segment probe of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bpf.errors import UsageError
from probes.control.builtin_probes import SEGMENT_PROBE
from probes.segment.control import SegmentStatus
from probes.segment.options import SegmentOptions

if TYPE_CHECKING:
    from probes.control.controller import Controller


class SegmentService:
    """The `SegmentControl` of this host's controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def measure(self, options: SegmentOptions) -> SegmentStatus:
        controller = self._controller
        controller._refuse_changes()
        options.check()
        with controller._changing:
            probe = controller._probe_of(SEGMENT_PROBE)
            if probe is None:
                if controller._tracing is None:
                    raise UsageError("no interface is watched whose packets could be compared")
                controller.start(SEGMENT_PROBE, controller._tracing[0], options)
            elif probe.options != options:
                raise UsageError(
                    "the segment probe runs with another key, ratio, filter or interval",
                    hint="probedeck probe remove segment ends it",
                )
        return self.status()

    def status(self) -> SegmentStatus:
        from probes.segment.records import read_clock

        probe = self._controller._probe_of(SEGMENT_PROBE)
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
