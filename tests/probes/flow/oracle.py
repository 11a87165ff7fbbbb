"""The flow of a frame by scapy's dissection: the judge of the parser in C."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6

TAGS = (0x8100, 0x88A8)
SIZES = {0x8100: 4, 0x88A8: 4, 0x8847: 4, 0x8848: 4, 0x8864: 8, 0x6558: 14, 0x8903: 16, 0x88E7: 18}
"""Bytes of headers of the link, by Ethernet type: tags, MPLS, PPPoE, Ethernet, FabricPath, PBB."""
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
    tunnel: int = 0
    """One of TUNNELS, and its id."""
    tunnel_id: int = 0


@dataclass(frozen=True)
class Link:
    """The rest of a frame: its Ethernet type, its bytes, and the outermost VLAN so far."""

    kind: int
    rest: bytes
    vlan: int


@dataclass(frozen=True)
class Datagram:
    """An IP packet: its flow, and the datagram of a fragment."""

    flow: Flow
    identification: int | None = None
    """None: no fragment."""
    later: bool = False
    rest: bytes = b""
    """From the transport header on."""


@dataclass
class Oracle:
    """Judges frames in their order: later fragments have the ports of a first one before."""

    ethernet: bool = True
    inner: bool = False
    """Whether it looks into tunnels."""
    _known: dict[tuple[object, ...], Flow] = field(default_factory=dict)
    """The flow of a datagram's first fragment."""

    def flow_of(self, raw: bytes) -> Flow | str:
        """The flow, or why there is none: `not_ip` or `malformed`."""
        link: Link | None = Link(0x86DD if raw[0] >> 4 == 6 else 0x0800, raw, 0)
        if self.ethernet:
            link = _behind_tags(raw)
        if link is None:
            return "malformed"
        if link.kind not in (0x0800, 0x86DD):
            return "not_ip"
        found = (_ipv4 if link.kind == 0x0800 else _ipv6)(link.rest)
        if not found:
            return "malformed"
        flow = self._joined(found, link.vlan)
        return self._inside(flow, found) if self.inner else flow

    def _inside(self, flow: Flow, found: Datagram) -> Flow:
        """The flow of the innermost packet in a packet."""
        while not found.later and (tunnel := _opened(flow, found.rest)):
            number, identifier, link = tunnel
            while link and link.kind in SIZES:
                link = _next(link)
            if not link or link.kind not in (0x0800, 0x86DD):
                break
            inner = (_ipv4 if link.kind == 0x0800 else _ipv6)(link.rest)
            if not inner:
                break
            bare = replace(inner.flow, tunnel=number, tunnel_id=identifier)
            found, flow = inner, self._joined(replace(inner, flow=bare), link.vlan or flow.vlan)
        return flow

    def _joined(self, found: Datagram, vlan: int) -> Flow:
        flow = replace(found.flow, vlan=vlan)
        if found.identification is None:
            return flow
        protocol = flow.protocol if flow.version == 4 else 0
        key = (
            flow.version, flow.source, flow.destination, protocol, vlan, flow.tunnel,
            flow.tunnel_id, found.identification,
        )  # fmt: skip
        if not found.later:
            self._known[key] = replace(flow, tcp_flags=0)
        return self._known.get(key, flow) if found.later else flow


def _behind_tags(raw: bytes) -> Link | None:
    link = _next(Link(0x6558, raw, 0))
    # Two tags are usual, and then up to eight headers of any kind are looked through.
    for number in range(2 + 8):
        if link is None or link.kind in (0x0800, 0x86DD):
            break
        if number >= 2 or link.kind in TAGS:
            link = _next(link)
    return link


def _next(link: Link) -> Link | None:
    """The header behind that of a link; the same if there is none, None if it is cut."""
    kind, raw, vlan = link.kind, link.rest, link.vlan
    size = SIZES.get(kind)
    if size is None:
        return link
    if len(raw) < size:
        return None
    following = struct.unpack_from("!H", raw, size - 2)[0]
    if kind in TAGS:
        vlan = vlan or struct.unpack_from("!H", raw)[0] & 0xFFF
    elif kind == 0x8864:
        following = {0x0021: 0x0800, 0x0057: 0x86DD}.get(following, 0)
    elif kind in (0x8847, 0x8848):
        following = kind
        if raw[2] & 1:
            if len(raw) == size:
                return None
            following = {4: 0x0800, 6: 0x86DD}.get(raw[4] >> 4, 0x6558)
            size += 4 * (following == 0x6558)
    return Link(following, raw[size:], vlan)


def _ipv4(raw: bytes) -> Datagram | None:
    if len(raw) < 20 or raw[0] >> 4 != 4 or raw[0] & 15 < 5:
        return None
    ip = IP(raw[:20])
    bare = Flow(4, ip.proto, ip.src, ip.dst)
    if ip.frag:
        return Datagram(bare, ip.id, later=True)
    flow = _with_ports(bare, raw[ip.ihl * 4 :])
    return Datagram(flow, ip.id if ip.flags.MF else None, rest=raw[ip.ihl * 4 :])


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
            identification = number if offset & 0xFFF9 else None
            if offset & 0xFFF8:
                return Datagram(Flow(6, following, ip.src, ip.dst), number, later=True)
            size = 8
        else:
            size = (length + 2) * 4 if protocol == 51 else (length + 1) * 8
        protocol, rest = following, rest[size:]
    else:
        return Datagram(Flow(6, protocol, ip.src, ip.dst), identification)
    flow = _with_ports(Flow(6, protocol, ip.src, ip.dst), rest)
    return Datagram(flow, identification, rest=rest)


def _opened(flow: Flow, raw: bytes) -> tuple[int, int, Link | None] | None:
    """Kind, id and content of the tunnel in a packet; `raw` is its transport header."""
    if flow.protocol in (4, 41):
        return 2, 0, Link(0x0800 if flow.protocol == 4 else 0x86DD, raw, 0)
    if flow.protocol == 47:
        return _opened_gre(raw)
    if flow.protocol != 17 or len(raw) < 16:
        return None
    identifier = int.from_bytes(raw[12:15], "big")
    match flow.destination_port:
        case 4789 | 8472 if raw[8] & 8:
            return 3, identifier, Link(0x6558, raw[16:], 0)
        case 6081 if raw[8] < 64:
            kind = struct.unpack_from("!H", raw, 10)[0]
            return 4, identifier, Link(kind, raw[16 + raw[8] * 4 :], 0)
        case 2152 if raw[8] >> 4 == 3 and raw[9] == 255:
            return _opened_gtp(raw)
    return None


def _opened_gre(raw: bytes) -> tuple[int, int, Link | None] | None:
    if len(raw) < 4 or raw[0] & 0x40 or raw[1] & 7:
        return None
    at, key = 8 if raw[0] & 0x80 else 4, 0
    if raw[0] & 0x20:
        if len(raw) < at + 4:
            return None
        key, at = struct.unpack_from("!I", raw, at)[0], at + 4
    at += 4 if raw[0] & 0x10 else 0
    return 1, key, Link(struct.unpack_from("!H", raw, 2)[0], raw[at:], 0)


def _opened_gtp(raw: bytes) -> tuple[int, int, Link | None] | None:
    at, number = 16, struct.unpack_from("!I", raw, 12)[0]
    if raw[8] & 7:
        if len(raw) < 20:
            return None
        following, at = raw[19] if raw[8] & 4 else 0, 20
        for _ in range(4):
            if not following:
                break
            if len(raw) <= at or len(raw) < (at := at + (raw[at] * 4 - 1 & 0x3FF) + 1):
                return None
            following = raw[at - 1]
    if len(raw) <= at:
        return None
    return 5, number, Link({4: 0x0800, 6: 0x86DD}.get(raw[at] >> 4, 0), raw[at:], 0)


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
