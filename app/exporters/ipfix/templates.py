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

import numpy as np

from app.exporters.ipfix.elements import ELEMENTS, FLOW_FIELDS, VARIABLE, InformationElement
from app.exporters.ipfix.records import DESTINATION_OWNED, EXPORTED, SOURCE_OWNED
from bpf.arrays import Array, Rows
from probes.flow.records import FlowDirection
from probes.tunnels import TUNNELS

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
