"""A host of a segment with a clock of its own, for tests on one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.api.client import RemoteController
from probes.segment.options import SegmentOptions, SegmentStatus
from probes.segment.records import CLOCK_TABLE
from probes.snapshot import Event, Snapshot


class Elsewhere:
    """A host whose clock is ahead, and which booted on its own."""

    def __init__(self, host: RemoteController, ahead_ns: int) -> None:
        self._host = host
        self._ahead_ns = ahead_ns

    def segment(self) -> SegmentStatus:
        status = self._host.segment()
        return replace(status, boot="another", utc_ns=status.utc_ns + self._ahead_ns)

    def measure_segment(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        self._host.measure_segment(options, lease)
        return self.segment()

    def listen(self, listener: Callable[[Snapshot | Event], None]) -> None:
        def take(item: Snapshot | Event) -> None:
            if isinstance(item, Snapshot) and item.metric == CLOCK_TABLE:
                rows = item.rows.copy()
                rows["value"]["utc"] += self._ahead_ns
                item = replace(item, rows=rows)
            listener(item)

        self._host.listen(take)

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        return self._host.remove(name, force=force)

    def failure(self) -> None:
        return None
