"""Rows of names that packets told, from the heads of the packets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter.hosts import address_text
from probes.names.messages import MAX_NAME, dns_names, tls_server_name
from probes.snapshot import Snapshot
from probes.tables.conversion import TableKind, TableSchema
from probes.tables.field_types import MAPPED

PROBE = TABLE = "names"
"""Name of the probe, and of its tables."""
SOURCES = ("dns", "tls")
"""Origins of a name, as `enum head_kind` of names.c."""
TLS_LIFE_S = 3600
"""Validity of a server name of TLS, in seconds."""
_NAME = np.dtype([
    ("time", "u8"), ("address", "u1", (16,)), ("name", "i1", (MAX_NAME,)), ("source", "u1"),
    ("ttl", "u4"),
])  # fmt: skip
ROW = np.dtype([("key", "u4"), ("value", _NAME)])
"""A name. IPv4 addresses are mapped into IPv6; `ttl` is in seconds."""
SCHEMA = TableSchema(
    TableKind.QUEUE,
    "names of addresses in DNS answers and TLS connections",
    fields={"value.time": "time", "value.address": "ipv6", "value.name": "text"},
    names={"value.source": dict(enumerate(SOURCES))},
)


class LearnedName(NamedTuple):
    """A name that a packet told."""

    address: str
    name: str
    source: str
    """One of SOURCES."""
    ttl: int
    """Seconds."""


def rows_of(heads: Array) -> Rows[ROW]:
    """Names (m,) of dtype ROW, each once, from values (n,) of `struct head`."""
    found: dict[tuple[bytes, str, int], tuple[int, int]] = {}
    for head in heads:
        source = int(head["kind"])
        for address, name, ttl in _names_of(head, source):
            found.setdefault((address, name, source), (int(head["time"]), ttl))
    rows = np.zeros(len(found), ROW)
    for at, ((address, name, source), (time, ttl)) in enumerate(found.items()):
        raw = np.frombuffer(address if len(address) == 16 else MAPPED + address, "u1")
        text = np.frombuffer(name.encode().ljust(MAX_NAME, b"\0"), "i1")
        rows[at] = at, (time, raw, text, source, ttl)
    return rows


def _names_of(head: Any, source: int) -> Iterator[tuple[bytes, str, int]]:
    data = head["bytes"][: head["size"]].tobytes()
    if source == SOURCES.index("dns"):
        yield from dns_names(data)
        return
    version = int(head["version"])
    address = head["destination"].tobytes()[: 4 if version == 4 else 16]
    name = tls_server_name(data)
    # Whoever connects to this host chooses the server name: it is no name of this host.
    if name and not _is_own(address_text(address, version)):
        yield address, name, TLS_LIFE_S


def _is_own(address: str) -> bool:
    """Return whether an address is one of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        return True
    return False


def learned(item: Snapshot) -> Iterator[LearnedName]:
    """Return the names of a table of the probe; nothing of any other table."""
    if item.probe != PROBE or item.rows.dtype != ROW:
        return
    for value in item.rows["value"]:
        raw = value["address"].tobytes()
        mapped = raw.startswith(MAPPED)
        address = address_text(raw[12:] if mapped else raw, 4 if mapped else 6)
        name = value["name"].tobytes().rstrip(b"\0").decode("ascii", "replace")
        source = min(int(value["source"]), len(SOURCES) - 1)
        yield LearnedName(address, name, SOURCES[source], int(value["ttl"]))
