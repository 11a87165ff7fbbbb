"""A segment probe that measures nothing."""

from __future__ import annotations

import time

from probes.segment.options import SegmentOptions, SegmentStatus


class FakeSegment:
    """A SegmentControl that keeps its options."""

    def __init__(self) -> None:
        self.options: SegmentOptions | None = None

    def measure(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        options.check()
        self.options = options
        return self.status()

    def status(self) -> SegmentStatus:
        options = self.options
        return SegmentStatus(
            running=options is not None,
            key_id=options.key_id if options else "",
            ratio=options.ratio if options else 0,
            filter=options.capture.text if options else "",
            interval=options.interval if options else 0.0,
            interface="lo" if options else "",
            boot="00" * 16,
            monotonic_ns=time.monotonic_ns(),
            utc_ns=time.time_ns(),
        )
