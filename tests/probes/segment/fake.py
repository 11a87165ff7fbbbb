"""A segment probe that measures nothing."""

from __future__ import annotations

import time

from probes.segment.options import SegmentOptions, SegmentStatus


class FakeSegment:
    """The methods of `SegmentControl`: it keeps its options."""

    segment_options: SegmentOptions | None = None

    def measure_segment(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        options.check()
        self.segment_options = options
        return self.segment()

    def segment(self) -> SegmentStatus:
        options = self.segment_options
        return SegmentStatus(
            running=options is not None,
            key_id=options.key_id if options else "",
            ratio=options.ratio if options else 0,
            filter=options.capture if options else "",
            interval=options.interval if options else 0.0,
            interface="lo" if options else "",
            boot="00" * 16,
            monotonic_ns=time.monotonic_ns(),
            utc_ns=time.time_ns(),
        )
