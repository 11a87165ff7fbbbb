"""Information elements that are exported: their numbers, lengths and meanings.

Sources: the IPFIX registry of IANA, RFC 7012, RFC 3954 for 21 and 22, and the list of elements of
nProbe's guide for ntop's. The table in docs/ipfix.md has the same rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from probes.tables.flow_columns import FLOW_COLUMNS

NTOP = 35632
"""Private enterprise number of ntop."""
OWN = 32473
"""The number for documentation of RFC 5612: IANA gives it to no vendor."""
VARIABLE = 0xFFFF
"""Length of an element whose values have their own lengths, RFC 7011 section 7."""


class InformationElement(NamedTuple):
    """An information element."""

    name: str
    number: int
    length: int
    """Bytes of each value, or VARIABLE."""
    about: str
    enterprise: int = 0
    """Private enterprise number; 0: IANA."""
    field: str = ""
    """Field of EXPORTED with its values; empty: others are computed."""


_ROWS: tuple[tuple[Any, ...], ...] = (
    ("sourceIPv4Address", 8, 4, "IPv4 only"),
    ("destinationIPv4Address", 12, 4, "IPv4 only"),
    ("sourceIPv6Address", 27, 16, "IPv6 only", 0, "source"),
    ("destinationIPv6Address", 28, 16, "IPv6 only", 0, "destination"),
    ("sourceTransportPort", 7, 2, "0: no ports; not of ICMP", 0, "source_port"),
    ("destinationTransportPort", 11, 2, "0: no ports; not of ICMP", 0, "destination_port"),
    ("icmpTypeCodeIPv4", 32, 2, "ICMP only: type * 256 + code"),
    ("icmpTypeCodeIPv6", 139, 2, "ICMPv6 only: type * 256 + code"),
    ("icmpTypeIPv4", 176, 1, "ICMP only"),
    ("icmpCodeIPv4", 177, 1, "ICMP only"),
    ("icmpTypeIPv6", 178, 1, "ICMPv6 only"),
    ("icmpCodeIPv6", 179, 1, "ICMPv6 only"),
    ("protocolIdentifier", 4, 1, "IANA protocol number", 0, "protocol"),
    ("tcpControlBits", 6, 1, "all flags seen, by OR; 0 unless TCP", 0, "tcp_flags"),
    ("ipVersion", 60, 1, "4 or 6", 0, "version"),
    ("ingressInterface", 10, 4, "index of the interface if the packets came in; or 0"),
    ("egressInterface", 14, 4, "index of the interface if the packets went out; or 0"),
    ("flowDirection", 61, 1, "0 in, 1 out, seen from this host", 0, "direction"),
    ("packetDeltaCount", 2, 8, "packets of this record", 0, "packets"),
    ("octetDeltaCount", 1, 8,
     "bytes of this record, of frames without FCS, as everywhere", 0, "bytes"),
    ("flowStartMilliseconds", 152, 8, "IPFIX: first packet, UTC"),
    ("flowEndMilliseconds", 153, 8, "IPFIX: last packet, UTC"),
    ("flowStartSysUpTime", 22, 4, "NetFlow v9: first packet, ms of the header's uptime"),
    ("flowEndSysUpTime", 21, 4, "NetFlow v9: last packet, ms of the header's uptime"),
    ("samplingInterval", 34, 4, "1: every packet is counted"),
    ("flowEndReason", 136, 1,
     "1 idle, 2 active, 3 FIN or RST, 4 end of export, 5 no room, or cut by `--cpu`", 0,
     "end_reason"),
    ("layer2SegmentId", 351, 8, "of VXLAN only: 1 in the highest byte, the VNI in the low"),
    ("gtpuTEid", 507, 4, "of GTP-U only: the tunnel", 0, "tunnel_id"),
    ("sourceProcessId", 168, 4, "process of the source; 0: only a cgroup is known", NTOP,
     "process"),
    ("destinationProcessId", 375, 4, "process of the destination", NTOP, "process"),
    ("retransmittedInPackets", 109, 4,
     "TCP segments that the source sent again", NTOP, "retransmitted"),
    ("retransmittedOutPackets", 110, 4,
     "segments that the destination sent again", NTOP, "retransmitted"),
    ("roundTripMicroseconds", 3, 4, "TCP: smoothed round-trip time; 0: unknown", OWN, "rtt_us"),
    ("leastRoundTripMicroseconds", 4, 4, "TCP: its minimum; 0: unknown", OWN, "min_rtt_us"),
    ("limit", 5, 1, "number of the limit, as below; 0: unknown", OWN, "limit"),
    ("ownerReason", 6, 1, "0 owned; or the number of the reason, as below", OWN, "reason"),
    ("sourceProcessName", 169, VARIABLE, "its name", NTOP),
    ("destinationProcessName", 376, VARIABLE, "its name", NTOP),
    ("sourceUserName", 372, VARIABLE, "its user", NTOP),
    ("destinationUserName", 377, VARIABLE, "its user", NTOP),
    ("sourceContainerId", 558, VARIABLE, "its container", NTOP),
    ("destinationContainerId", 559, VARIABLE, "its container", NTOP),
    ("ownerUnit", 1, VARIABLE, "the process's unit of systemd", OWN),
    ("ownerPod", 2, VARIABLE, "the process's pod", OWN),
    ("observationDomainId", 149, 4, "scope: a number from the interface's name"),
    ("exportingProcessId", 144, 4, "scope: 1"),
    ("selectorId", 302, 8, "scope: 1"),
    ("interfaceName", 82, 16, "name of the interface"),
    ("interfaceDescription", 83, 64, "name of the interface, and of the host"),
    ("selectorAlgorithm", 304, 2, "1: systematic, by count"),
    ("samplingPacketInterval", 305, 4, "1: packets chosen in a row"),
    ("samplingPacketSpace", 306, 4, "0: packets left out"),
    ("samplingAlgorithm", 35, 1, "NetFlow v9: 1"),
    ("flowActiveTimeout", 36, 2, "seconds"),
    ("flowIdleTimeout", 37, 2, "seconds"),
    ("exportedMessageTotalCount", 41, 8, "messages since the start"),
    ("exportedFlowRecordTotalCount", 42, 8, "records of flows since the start"),
    ("exportedOctetTotalCount", 40, 8, "bytes of messages since the start"),
    ("ignoredPacketTotalCount", 164, 8, "packets that no flow has since the start"),
    ("ignoredOctetTotalCount", 165, 8, "their bytes"),
    ("notSentFlowTotalCount", 166, 8, "rows of flows that this output did not deliver"),
    ("notSentPacketTotalCount", 167, 8, "their packets"),
    ("notSentOctetTotalCount", 168, 8, "their bytes"),
    ("observationTimeMilliseconds", 323, 8, "first and last loss, to a second; 0: none"),
)  # fmt: skip
FLOW_FIELDS = {column.element[0]: column.name for column in FLOW_COLUMNS if column.element}
"""Fields of FLOW whose entry names their element, by its name."""
_FLOW_ROWS = ((*column.element, 0, column.name) for column in FLOW_COLUMNS if column.element)
ELEMENTS = {row[0]: InformationElement(*row) for row in (*_ROWS, *_FLOW_ROWS)}
