"""Templates of data records, and of options (RFC 7011 section 3.4, RFC 3954 sections 5.2 and 6.1),
and the values of their fixed fields, a column at a time.

A data record's template follows from the version of IP, ICMP, the kind of the tunnel, and the end
whose owner is known. The number of the template has these as bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.exporters.ipfix.records import DESTINATION_OWNED, EXPORTED, SOURCE_OWNED
from bpf.arrays import Array, Rows
from probes.flow.records import FlowDirection
from probes.tables.flow_columns import FLOW_COLUMNS
from probes.tunnels import TUNNELS

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


IPFIX, NETFLOW9 = 10, 9
"""Versions in message headers."""
FIRST_TEMPLATE = 256

IS_IPV6, IS_ICMP = 1, 2
_TUNNEL_SHIFT = 2
TUNNEL_CODES = {TUNNELS["vxlan"]: 1 << _TUNNEL_SHIFT, TUNNELS["gtp"]: 2 << _TUNNEL_SHIFT}
"""Bits of the tunnels that standard elements can tell, by their numbers in FLOW."""
_OF_TUNNEL = ((), ("layer2SegmentId",), ("gtpuTEid",), ())
_OPTIONS = 400
"""Number of the first template of options."""


@dataclass(frozen=True, slots=True)
class Template:
    """The fields of records."""

    number: int
    fields: tuple[InformationElement, ...]
    scope: int = 0
    """How many of the first fields are the scope; 0: records of flows."""

    @property
    def fixed(self) -> tuple[InformationElement, ...]:
        """Fields of a fixed length: all before the texts."""
        return tuple(each for each in self.fields if each.length != VARIABLE)

    @property
    def texts(self) -> tuple[InformationElement, ...]:
        """Fields of variable length: the last ones."""
        return tuple(each for each in self.fields if each.length == VARIABLE)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The fixed fields of a record in network order."""
        return np.dtype([(each.name, _WIRE[each.length]) for each in self.fixed])


_WIRE: dict[int, object] = {1: "u1", 2: ">u2", 4: ">u4", 8: ">u8", 16: ("u1", (16,))}


@cache
def flow_template(code: int, version: int) -> Template:
    """Return the template of flows with the bits `code`."""
    ip = 6 if code & IS_IPV6 else 4
    names = [f"sourceIPv{ip}Address", f"destinationIPv{ip}Address"]
    if code & IS_ICMP:
        names += [f"icmpTypeCodeIPv{ip}", f"icmpTypeIPv{ip}", f"icmpCodeIPv{ip}"]
    else:
        names += ["sourceTransportPort", "destinationTransportPort"]
    times = "SysUpTime" if version == NETFLOW9 else "Milliseconds"
    names += [
        "protocolIdentifier", "ipClassOfService", "tcpControlBits", "ipVersion", "vlanId",
        "ingressInterface", "egressInterface", "flowDirection", "packetDeltaCount",
        "octetDeltaCount", f"flowStart{times}", f"flowEnd{times}", "samplingInterval",
        "flowEndReason", *_OF_TUNNEL[code >> _TUNNEL_SHIFT & 3],
    ]  # fmt: skip
    names += [name for name in FLOW_FIELDS if name not in names]
    if end := {SOURCE_OWNED: "source", DESTINATION_OWNED: "destination"}.get(code & ~15, ""):
        again = "In" if end == "source" else "Out"
        names += [
            f"{end}ProcessId", f"retransmitted{again}Packets", "roundTripMicroseconds",
            "leastRoundTripMicroseconds", "limit", "ownerReason", f"{end}ProcessName",
            f"{end}UserName", f"{end}ContainerId", "ownerUnit", "ownerPod",
        ]  # fmt: skip
    return Template(FIRST_TEMPLATE + code, tuple(ELEMENTS[name] for name in names))


def codes_of(rows: Rows[EXPORTED]) -> Array:
    """Return the bits (n,) u1 of the templates of rows of dtype EXPORTED."""
    codes = (rows["version"] == 6).astype("u1") * np.uint8(IS_IPV6)
    codes |= np.isin(rows["protocol"], (1, 58)).astype("u1") * np.uint8(IS_ICMP)
    for number, bits in TUNNEL_CODES.items():
        codes |= (rows["tunnel"] == number).astype("u1") * np.uint8(bits)
    return codes | rows["owned_end"]


class OptionsKind(IntEnum):
    """Records about the exporter. The number is the place of its template."""

    INTERFACE = 0
    SAMPLING = 1
    METERING = 2
    """Metering Process Statistics, RFC 7011 section 4.1."""
    IGNORED = 3
    """Metering Process Reliability Statistics, section 4.2."""
    NOT_SENT = 4
    """Exporting Process Reliability Statistics, section 4.3."""


_SCOPES = {
    OptionsKind.INTERFACE: "ingressInterface",
    OptionsKind.SAMPLING: "selectorId",
    OptionsKind.METERING: "observationDomainId",
    OptionsKind.IGNORED: "observationDomainId",
    OptionsKind.NOT_SENT: "exportingProcessId",
}
_TWO_TIMES = ("observationTimeMilliseconds",) * 2
_OPTIONS_FIELDS = {
    OptionsKind.INTERFACE: ("interfaceName", "interfaceDescription"),
    OptionsKind.SAMPLING: ("selectorAlgorithm", "samplingPacketInterval", "samplingPacketSpace"),
    OptionsKind.METERING: (
        "exportedMessageTotalCount", "exportedFlowRecordTotalCount", "exportedOctetTotalCount",
        "flowActiveTimeout", "flowIdleTimeout",
    ),
    OptionsKind.IGNORED: ("ignoredPacketTotalCount", "ignoredOctetTotalCount", *_TWO_TIMES),
    OptionsKind.NOT_SENT: (
        "notSentFlowTotalCount", "notSentPacketTotalCount", "notSentOctetTotalCount", *_TWO_TIMES,
    ),
}  # fmt: skip


@cache
def options_template(kind: OptionsKind, version: int) -> Template:
    """Return the template of options of a kind."""
    scope, fields = _SCOPES[kind], _OPTIONS_FIELDS[kind]
    if version == NETFLOW9:
        if kind is OptionsKind.SAMPLING:
            fields = ("samplingInterval", "samplingAlgorithm")
        if scope != "ingressInterface":
            scope = "observationDomainId"
    return Template(_OPTIONS + kind, tuple(ELEMENTS[name] for name in (scope, *fields)), scope=1)


def template_sets(templates: Iterable[Template], version: int) -> list[tuple[int, bytes]]:
    """Return (number of the set, record) of each template, as it stands in a message."""
    make = _netflow9_record if version == NETFLOW9 else _ipfix_record
    return [make(template) for template in templates]


def _ipfix_record(template: Template) -> tuple[int, bytes]:
    fields = b"".join(map(_specifier, template.fields))
    head = struct.pack(">HH", template.number, len(template.fields))
    if template.scope:
        return 3, head + struct.pack(">H", template.scope) + fields
    return 2, head + fields


def _specifier(element: InformationElement) -> bytes:
    if element.enterprise:
        numbers = element.number | 0x8000, element.length, element.enterprise
        return struct.pack(">HHI", *numbers)
    return struct.pack(">HH", element.number, element.length)


def _netflow9_record(template: Template) -> tuple[int, bytes]:
    if not template.scope:
        return 0, _ipfix_record(template)[1]
    scope, *fields = template.fields
    kind = _NETFLOW9_INTERFACE if scope.name == "ingressInterface" else _NETFLOW9_SYSTEM
    record = struct.pack(">HHHHH", template.number, 4, 4 * len(fields), kind, scope.length)
    return 1, record + b"".join(map(_specifier, fields))


_NETFLOW9_SYSTEM, _NETFLOW9_INTERFACE = 1, 2
"""Kinds of scopes, RFC 3954 section 6.1."""


_VXLAN = np.uint64(1 << 56)
"""Kind of the network in the highest byte of layer2SegmentId."""
_MS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class FlowPart:
    """Some rows of one template."""

    rows: Rows[EXPORTED]
    """(n,) of dtype EXPORTED."""
    interfaces: Array
    """The indices of their interfaces, (n,)."""
    base_ms: int
    """UTC at which the header's uptime of NetFlow v9 is 0."""

    def address(self, name: str) -> Array:
        """Return IPv4 addresses (n,) of dtype >u4."""
        return np.ascontiguousarray(self.rows[name][:, :4]).view(">u4")[:, 0]

    def milliseconds(self, name: str, base_ms: int = 0) -> Array:
        """Return times (n,) i8 in milliseconds since the epoch, or since `base_ms`."""
        return self.rows[name] // _MS - base_ms

    def index(self, direction: FlowDirection) -> Array:
        """Return the interface's index (n,) of the rows of a direction; 0 for the others."""
        return np.where(self.rows["direction"] == direction, self.interfaces, 0)

    def encode(self, template: Template) -> Array:
        """Return the fixed fields (n,) in network order."""
        made = np.empty(len(self.rows), template.dtype)
        for element in template.fixed:
            field, values = element.field, _VALUES.get(element.name)
            made[element.name] = self.rows[field] if values is None else values(self)
        return made


_ICMP_VALUES: dict[str, Callable[[FlowPart], Array]] = {
    "icmpTypeCodeIPv{}": lambda part: part.rows["destination_port"],
    "icmpTypeIPv{}": lambda part: part.rows["destination_port"] >> 8,
    "icmpCodeIPv{}": lambda part: part.rows["destination_port"] & 0xFF,
}
_VALUES: Mapping[str, Callable[[FlowPart], Array | int]] = {
    **{name.format(ip): of for name, of in _ICMP_VALUES.items() for ip in (4, 6)},
    "sourceIPv4Address": lambda part: part.address("source"),
    "destinationIPv4Address": lambda part: part.address("destination"),
    "ingressInterface": lambda part: part.index(FlowDirection.INGRESS),
    "egressInterface": lambda part: part.index(FlowDirection.EGRESS),
    "flowStartMilliseconds": lambda part: part.milliseconds("first_ns"),
    "flowEndMilliseconds": lambda part: part.milliseconds("last_ns"),
    "flowStartSysUpTime": lambda part: part.milliseconds("first_ns", part.base_ms),
    "flowEndSysUpTime": lambda part: part.milliseconds("last_ns", part.base_ms),
    "samplingInterval": lambda _: 1,
    "layer2SegmentId": lambda part: part.rows["tunnel_id"].astype("u8") | _VXLAN,
}
