"""The flow of a frame by scapy's dissection: the judge of the parser in C."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6

TAGS = (0x8100, 0x88A8)
WITH_PORTS = (6, 17, 33, 132, 136)
ICMPS = (1, 58)
IDENTIFIED = {1: (0, 8, *range(13, 19), 42, 43), 58: (128, 129, *range(144, 148), 160, 161)}
"""Messages with an identifier, by protocol."""


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


def flow_of(raw: bytes, *, ethernet: bool = True) -> Flow | str:
    """The flow, or why there is none: `not_ip` or `malformed`."""
    at = vlan = 0
    if ethernet:
        if len(raw) < 14:
            return "malformed"
        kind, at = struct.unpack_from("!H", raw, 12)[0], 14
        for nth in range(2):
            if kind in TAGS:
                if len(raw) < at + 4:
                    return "malformed"
                if not nth:
                    vlan = struct.unpack_from("!H", raw, at)[0] & 0xFFF
                kind, at = struct.unpack_from("!H", raw, at + 2)[0], at + 4
    else:
        kind = 0x86DD if raw[0] >> 4 == 6 else 0x0800
    if kind not in (0x0800, 0x86DD):
        return "not_ip"
    found = (_ipv4 if kind == 0x0800 else _ipv6)(raw[at:])
    return found if isinstance(found, str) else replace(found, vlan=vlan)


def _ipv4(raw: bytes) -> Flow | str:
    if len(raw) < 20 or raw[0] >> 4 != 4 or raw[0] & 15 < 5:
        return "malformed"
    ip = IP(raw[:20])
    ports = (0, 0, 0) if ip.frag else _transport(ip.proto, raw[ip.ihl * 4 :])
    return Flow(4, ip.proto, ip.src, ip.dst, *ports)


def _ipv6(raw: bytes) -> Flow | str:
    if len(raw) < 40 or raw[0] >> 4 != 6:
        return "malformed"
    ip = IPv6(raw[:40])
    protocol, rest = ip.nh, raw[40:]
    for _ in range(8):
        if protocol not in (0, 43, 44, 51, 60, 135) or len(rest) < 8:
            break
        following, length = rest[0], rest[1]
        if protocol == 44:
            if struct.unpack_from("!H", rest, 2)[0] & 0xFFF8:
                return Flow(6, following, ip.src, ip.dst)
            size = 8
        else:
            size = (length + 2) * 4 if protocol == 51 else (length + 1) * 8
        protocol, rest = following, rest[size:]
    else:
        return Flow(6, protocol, ip.src, ip.dst)
    return Flow(6, protocol, ip.src, ip.dst, *_transport(protocol, rest))


def _transport(protocol: int, raw: bytes) -> tuple[int, int, int]:
    """Source port, destination port, TCP flags."""
    if protocol == 6:
        if len(raw) < 20:
            return 0, 0, 0
        return (*struct.unpack_from("!HH", raw), raw[13])
    if protocol in WITH_PORTS and len(raw) >= 4:
        return (*struct.unpack_from("!HH", raw), 0)
    if protocol in ICMPS and len(raw) >= 2:
        identified = raw[0] in IDENTIFIED[protocol] and len(raw) >= 6
        identifier = struct.unpack_from("!H", raw, 4)[0] if identified else 0
        return identifier, struct.unpack_from("!H", raw)[0], 0
    return 0, 0, 0
