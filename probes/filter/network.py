"""Names of protocols, and addresses as text."""

from __future__ import annotations

import socket

PROTOCOLS = {
    "icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51,
    "icmp6": 58, "ospf": 89, "sctp": 132, "udplite": 136,
}  # fmt: skip
"""Protocol numbers (IANA) by name."""
_NAMES = {number: name for name, number in PROTOCOLS.items()}


def protocol_name(number: int) -> str:
    """The protocol's name in lower case, or its number."""
    return _NAMES.get(number, str(number))


def address_text(raw: bytes, version: int) -> str:
    if version == 4:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    return socket.inet_ntop(socket.AF_INET6, raw)
