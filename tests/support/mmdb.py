"""Writes small databases of networks in MaxMind's format, version 2.0."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MARKER = b"\xab\xcd\xefMaxMind.com"
_SEPARATOR = bytes(16)


def write(path: Path, networks: Mapping[str, Mapping[str, Any]], version: int = 6) -> str:
    """Write records by network (CIDR), and return the path as text; `version` is 4 or 6."""
    nodes: list[list[int | bytes | None]] = [[None, None]]
    for text, record in networks.items():
        network = ipaddress.ip_network(text)
        bits = f"{int(network.network_address):0{network.max_prefixlen}b}"[: network.prefixlen]
        if version == 6 and network.version == 4:
            bits = "0" * 96 + bits
        at = 0
        for bit in map(int, bits[:-1]):
            if nodes[at][bit] is None:
                nodes.append([None, None])
                nodes[at][bit] = len(nodes) - 1
            following = nodes[at][bit]
            assert isinstance(following, int)
            at = following
        nodes[at][int(bits[-1])] = encode(record)
    data = b""
    tree = b""
    for node in nodes:
        for value in node:
            if isinstance(value, bytes):
                number = len(nodes) + len(_SEPARATOR) + len(data)
                data += value
            else:
                number = len(nodes) if value is None else value
            tree += number.to_bytes(3, "big")
    about = {
        "node_count": len(nodes), "record_size": 24, "ip_version": version, "languages": ["en"],
        "database_type": "Test", "binary_format_major_version": 2,
        "binary_format_minor_version": 0, "build_epoch": 1_700_000_000, "description": {},
    }  # fmt: skip
    path.write_bytes(tree + _SEPARATOR + data + _MARKER + encode(about))
    return str(path)


def encode(value: Any) -> bytes:
    """Encode texts, numbers of 32 bits, lists and mappings."""
    if isinstance(value, str):
        return _control(2, len(value.encode())) + value.encode()
    if isinstance(value, int):
        return _control(6, 4) + struct.pack(">I", value)
    if isinstance(value, list):
        return _control(11, len(value)) + b"".join(map(encode, value))
    parts = (encode(key) + encode(each) for key, each in value.items())
    return _control(7, len(value)) + b"".join(parts)


def _control(kind: int, size: int) -> bytes:
    assert size < 29 + 256
    small = min(size, 29)
    first = bytes([small, kind - 7]) if kind > 7 else bytes([kind << 5 | small])
    return first + (bytes([size - 29]) if size >= 29 else b"")
