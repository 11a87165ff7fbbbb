"""The flow of a frame by scapy's dissection: the judge of the parser in C."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6

TAGS = (0x8100, 0x88A8)
WITH_PORTS = (6, 17, 33, 132, 136)
IDENTIFIED = {1: (0, 8, *range(13, 19), 42, 43), 58: (128, 129, *range(144, 148), 160, 161)}
"""ICMP messages with an identifier, by protocol."""


@dataclass(frozen=True)
class Flow:
    """A frame's flow, in the words of a row."""

    version: int
    protocol: int
    source: str
    destination: str
    source_port: int = 0
    destination_port: int = 0
    tcp_flags: int = 0
    vlan: int = 0


@dataclass(frozen=True)
class Datagram:
    """An IP packet: its flow, and what it is a fragment of."""

    flow: Flow
    identification: int | None = None
    """None: no fragment."""
    later: bool = False


@dataclass
class Oracle:
    """Judges frames in their order: later fragments have the ports of a first one before."""

    ethernet: bool = True
    _known: dict[tuple[object, ...], Flow] = field(default_factory=dict)
    """The flow of a datagram's first fragment."""

    def flow_of(self, raw: bytes) -> Flow | str:
        """The flow, or why there is none: `not_ip` or `malformed`."""
        at = vlan = 0
        if self.ethernet:
            if len(raw) < 14:
                return "malformed"
            kind, at = struct.unpack_from("!H", raw, 12)[0], 14
            for _ in range(2):
                if kind in TAGS:
                    if len(raw) < at + 4:
                        return "malformed"
                    vlan = vlan or struct.unpack_from("!H", raw, at)[0] & 0xFFF
                    kind, at = struct.unpack_from("!H", raw, at + 2)[0], at + 4
        else:
            kind = 0x86DD if raw[0] >> 4 == 6 else 0x0800
        if kind not in (0x0800, 0x86DD):
            return "not_ip"
        found = (_ipv4 if kind == 0x0800 else _ipv6)(raw[at:])
        return self._joined(found, vlan) if found else "malformed"

    def _joined(self, found: Datagram, vlan: int) -> Flow:
        flow = replace(found.flow, vlan=vlan)
        if found.identification is None:
            return flow
        protocol = flow.protocol if flow.version == 4 else 0
        key = (flow.version, flow.source, flow.destination, protocol, vlan, found.identification)
        if not found.later:
            self._known[key] = replace(flow, tcp_flags=0)
        return self._known.get(key, flow) if found.later else flow


def _ipv4(raw: bytes) -> Datagram | None:
    if len(raw) < 20 or raw[0] >> 4 != 4 or raw[0] & 15 < 5:
        return None
    ip = IP(raw[:20])
    bare = Flow(4, ip.proto, ip.src, ip.dst)
    if ip.frag:
        return Datagram(bare, ip.id, later=True)
    flow = _with_ports(bare, raw[ip.ihl * 4 :])
    return Datagram(flow, ip.id if ip.flags.MF else None)


def _ipv6(raw: bytes) -> Datagram | None:
    if len(raw) < 40 or raw[0] >> 4 != 6:
        return None
    ip = IPv6(raw[:40])
    protocol, rest, identification = ip.nh, raw[40:], None
    for _ in range(8):
        if protocol not in (0, 43, 44, 51, 60, 135) or len(rest) < 8:
            break
        following, length = rest[0], rest[1]
        if protocol == 44:
            offset, number = struct.unpack_from("!HI", rest, 2)
            if offset & 0xFFF9:
                identification = number
            if offset & 0xFFF8:
                return Datagram(Flow(6, following, ip.src, ip.dst), number, later=True)
            size = 8
        else:
            size = (length + 2) * 4 if protocol == 51 else (length + 1) * 8
        protocol, rest = following, rest[size:]
    else:
        return Datagram(Flow(6, protocol, ip.src, ip.dst), identification)
    return Datagram(_with_ports(Flow(6, protocol, ip.src, ip.dst), rest), identification)


def _with_ports(flow: Flow, raw: bytes) -> Flow:
    """`flow` with the ports, TCP flags or ICMP type in a transport header."""
    protocol = flow.protocol
    if protocol == 6 and len(raw) < 20:
        return flow
    if protocol in WITH_PORTS and len(raw) >= 4:
        source, destination = struct.unpack_from("!HH", raw)
        flags = raw[13] if protocol == 6 else 0
        return replace(flow, source_port=source, destination_port=destination, tcp_flags=flags)
    if protocol in IDENTIFIED and len(raw) >= 2:
        identified = raw[0] in IDENTIFIED[protocol] and len(raw) >= 6
        identifier = struct.unpack_from("!H", raw, 4)[0] if identified else 0
        kind = struct.unpack_from("!H", raw)[0]
        return replace(flow, source_port=identifier, destination_port=kind)
    return flow
