"""Values of the fixed fields of data records, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.exporters.ipfix.elements import FLOW_FIELDS
from app.exporters.ipfix.templates import Template
from probes.flow.records import Array, FlowDirection

_VXLAN = np.uint64(1 << 56)
"""Kind of the network in the highest byte of layer2SegmentId."""
_MS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class FlowPart:
    """Some rows of one template."""

    rows: Array
    """(n,) of dtype EXPORTED."""
    interface: int
    """Its index."""
    base_ms: int
    """UTC at which the header's uptime of NetFlow v9 is 0."""

    def address(self, name: str) -> Array:
        """Return IPv4 addresses (n,) of dtype >u4."""
        found: Array = np.ascontiguousarray(self.rows[name][:, :4]).view(">u4")[:, 0]
        return found

    def milliseconds(self, name: str, base_ms: int = 0) -> Array:
        """Return times (n,) i8 in milliseconds since the epoch, or since `base_ms`."""
        found: Array = self.rows[name] // _MS - base_ms
        return found

    def index(self, direction: FlowDirection) -> Array:
        """Return the interface's index (n,) of the rows of a direction; 0 for the others."""
        return np.where(self.rows["direction"] == direction, self.interface, 0)

    def encode(self, template: Template) -> Array:
        """Return the fixed fields (n,) in network order."""
        made = np.empty(len(self.rows), template.dtype)
        for element in template.fixed:
            made[element.name] = _VALUES[element.name](self)
        return made


def _field(name: str) -> Callable[[FlowPart], Array]:
    return lambda part: part.rows[name]


def _one(_: FlowPart) -> int:
    return 1


_DIRECT = {
    "sourceIPv6Address": "source", "destinationIPv6Address": "destination",
    "sourceTransportPort": "source_port", "destinationTransportPort": "destination_port",
    "protocolIdentifier": "protocol", "tcpControlBits": "tcp_flags", "ipVersion": "version",
    "flowDirection": "direction",
    "packetDeltaCount": "packets", "octetDeltaCount": "bytes", "flowEndReason": "end_reason",
    "gtpuTEid": "tunnel_id", "roundTripMicroseconds": "rtt_us",
    "leastRoundTripMicroseconds": "min_rtt_us", "limit": "limit", "ownerReason": "reason",
    "sourceProcessId": "process", "destinationProcessId": "process",
    "retransmittedInPackets": "retransmitted", "retransmittedOutPackets": "retransmitted",
}  # fmt: skip
_ICMP_VALUES: dict[str, Callable[[FlowPart], Array]] = {
    "icmpTypeCodeIPv{}": lambda part: part.rows["destination_port"],
    "icmpTypeIPv{}": lambda part: part.rows["destination_port"] >> 8,
    "icmpCodeIPv{}": lambda part: part.rows["destination_port"] & 0xFF,
}
_VALUES: Mapping[str, Callable[[FlowPart], Array | int]] = {
    **{name: _field(column) for name, column in (_DIRECT | FLOW_FIELDS).items()},
    **{name.format(ip): of for name, of in _ICMP_VALUES.items() for ip in (4, 6)},
    "sourceIPv4Address": lambda part: part.address("source"),
    "destinationIPv4Address": lambda part: part.address("destination"),
    "ingressInterface": lambda part: part.index(FlowDirection.INGRESS),
    "egressInterface": lambda part: part.index(FlowDirection.EGRESS),
    "flowStartMilliseconds": lambda part: part.milliseconds("first_ns"),
    "flowEndMilliseconds": lambda part: part.milliseconds("last_ns"),
    "flowStartSysUpTime": lambda part: part.milliseconds("first_ns", part.base_ms),
    "flowEndSysUpTime": lambda part: part.milliseconds("last_ns", part.base_ms),
    "samplingInterval": _one,
    "layer2SegmentId": lambda part: part.rows["tunnel_id"].astype("u8") | _VXLAN,
}
