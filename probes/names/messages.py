"""Names of addresses in packets that anybody may have sent: DNS answers and TLS ClientHellos.

A message may be cut short or made to do harm. The work is bounded by its size, and a parser never
raises: it returns the names before the mistake.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

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
