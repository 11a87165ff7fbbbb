"""The segment probe of another host's controller."""

from __future__ import annotations

from app.api.client import Transport
from probes.segment.control import SegmentStatus
from probes.segment.options import SegmentOptions


class RemoteSegment:
    """The `SegmentControl` of a controller."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def measure(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        wanted = {
            "key": options.key,
            "ratio": options.ratio,
            "filter": options.capture.text,
            "interval": options.interval,
            "lease": lease,
        }
        return self._http.ask(SegmentStatus, "POST", "segment", json=wanted)

    def status(self) -> SegmentStatus:
        return self._http.ask(SegmentStatus, "GET", "segment")
