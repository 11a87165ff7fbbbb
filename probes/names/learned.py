"""Rows of names that packets told, and the reading of DNS and TLS in the heads of packets."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter.hosts import address_text
from probes.snapshot import Snapshot
from probes.tables.conversion import TableKind, TableSchema
from probes.tables.field_types import MAPPED

MAX_NAME = 253
"""Bytes of a host name."""
_MAX_RECORDS = 32
_LABEL = re.compile(rb"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_ANSWER_BITS, _ANSWER = 0xF80F, 0x8000
"""Mask of response, operation code and error code in a DNS header, and their values in an answer
without an error."""
_IN, _A, _CNAME, _AAAA = 1, 1, 5, 28
_POINTER = 0xC0
_MAX_LABELS = 40
"""Labels and pointers of a name. Names of hosts have few; and a loop of pointers ends."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


class AddressName(NamedTuple):
    """A name that a DNS answer gives an address."""

    address: bytes
    """4 or 16 bytes."""
    name: str
    ttl: int
    """Seconds."""


class _WrongError(Exception):
    """The message is cut short, or no valid message."""


def dns_names(message: bytes) -> Iterator[AddressName]:
    """Yield the names in a DNS answer. The queried name stands for its chain of aliases."""
    try:
        yield from _dns_names(message)
    except (struct.error, IndexError, _WrongError):
        return


def dns_question(message: bytes) -> str:
    """Return the host name that a DNS message asks for, or empty."""
    try:
        return _dns_name(message, _HEADER.size)[0] if _HEADER.unpack_from(message)[2] == 1 else ""
    except (struct.error, IndexError, _WrongError):
        return ""


def _dns_names(message: bytes) -> Iterator[AddressName]:
    _, flags, questions, answers, _, _ = _HEADER.unpack_from(message)
    if flags & _ANSWER_BITS != _ANSWER or questions != 1:
        return
    _, at = _dns_name(message, _HEADER.size)
    _, class_ = _QUESTION.unpack_from(message, at)
    at += _QUESTION.size
    asked_by: dict[str, str] = {}
    """The alias of each name."""
    for _ in range(min(answers, _MAX_RECORDS)):
        owner, at = _dns_name(message, at)
        kind, class_, ttl, size = _RECORD.unpack_from(message, at)
        at += _RECORD.size
        data = message[at : at + size]
        if len(data) < size:
            return
        if class_ == _IN and kind == _CNAME:
            asked_by.setdefault(_dns_name(message, at)[0], owner)
        elif class_ == _IN and size == {_A: 4, _AAAA: 16}.get(kind) and ttl < 1 << 31:
            name = owner
            for _ in range(_MAX_RECORDS):
                if name not in asked_by:
                    break
                name = asked_by[name]
            if name:
                yield AddressName(data, name, ttl)
        at += size


def _dns_name(message: bytes, at: int) -> tuple[str, int]:
    """Return a name and the offset after it; empty if the name is no host's.

    Raises _WrongError for a name that does not end.
    """
    labels: list[bytes] = []
    end = 0
    for _ in range(_MAX_LABELS):
        length = message[at]
        if length >= _POINTER:
            end = end or at + 2
            at = (length - _POINTER) << 8 | message[at + 1]
        elif length >= 1 << 6:
            break
        elif length == 0:
            return _host(labels), end or at + 1
        else:
            labels.append(message[at + 1 : at + 1 + length])
            at += 1 + length
    raise _WrongError


def _host(labels: list[bytes]) -> str:
    """Return the name of a host in lower case; empty for other text."""
    name = b".".join(labels)
    if len(name) > MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        return ""
    return name.decode("ascii").lower()


def tls_server_name(record: bytes) -> str:
    """Return the server name of a TLS record with a ClientHello, or empty."""
    try:
        return _tls_server_name(record)
    except (struct.error, IndexError):
        return ""


def _tls_server_name(record: bytes) -> str:
    if record[0] != _HANDSHAKE or record[5] != _CLIENT_HELLO:
        return ""
    at = 5 + 4 + 2 + 32  # the record's header, the handshake's, the version, random bytes
    at += 1 + record[at]  # session
    at += 2 + _u16(record, at)  # cipher suites
    at += 1 + record[at]  # compression methods
    end = at + 2 + _u16(record, at)
    at += 2
    while at + 4 <= end:
        kind, size = _QUESTION.unpack_from(record, at)
        at += 4
        if kind == _SERVER_NAME:
            name = record[at + 5 : at + 5 + _u16(record, at + 3)]
            is_whole = len(name) + 5 <= size and len(name) == _u16(record, at + 3)
            host = _host(name.split(b".")) if record[at + 2] == _HOST_NAME and is_whole else ""
            return "" if _ADDRESS.fullmatch(host) else host
        at += size
    return ""


def _u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from("!H", data, at)[0])


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
