"""Requests about the digests of packets, by which two hosts are compared."""

from __future__ import annotations

from app.api.models import SegmentRequest
from app.api.server.routing import Endpoints, route
from probes.flow.filter import FlowFilter
from probes.segment.control import SegmentStatus
from probes.segment.options import SegmentOptions


class SegmentEndpoints(Endpoints):
    """Requests about the segment probe. Its tables have the name `segment`."""

    @route("GET", "/v1/segment")
    def segment(self) -> SegmentStatus:
        """Return the state of the segment probe, and the host's clocks."""
        return self.plane.segment.status()

    @route("POST", "/v1/segment", writes=True)
    def measure(self, wanted: SegmentRequest) -> SegmentStatus:
        """Record digests on the watched interface from now on. The same request again renews the
        lease, and changes nothing else. DELETE /v1/probes/segment ends the probe."""
        capture = FlowFilter.parse(wanted.filter)
        options = SegmentOptions(wanted.key, wanted.ratio, capture, wanted.interval)
        return self.plane.segment.measure(options, wanted.lease)
