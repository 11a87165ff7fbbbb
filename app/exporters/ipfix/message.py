"""Messages: sets of records behind a header (RFC 7011 section 3.1, RFC 3954 section 5.1)."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.exporters.ipfix.templates import NETFLOW9, Template, template_sets

_SET_HEADER = 4
_LONGEST_UPTIME_MS = 1 << 31
_BEFORE_START_MS = 3_600_000
"""Flows of the first window began before the exporter."""


def header_size(version: int) -> int:
    """Bytes of a message's header."""
    return 20 if version == NETFLOW9 else 16


def room(version: int, limit: int) -> int:
    """Bytes of records that a message of one set has, if it is at most `limit` bytes long."""
    return limit - header_size(version) - _SET_HEADER - (3 if version == NETFLOW9 else 0)


@dataclass(eq=False, slots=True)
class ObservationDomain:
    """An observation domain: the flows of one interface."""

    interface: str
    sequence: int = 0
    """Of the next message: data records of IPFIX, messages of NetFlow v9."""
    known: set[int] = field(default_factory=set)
    """Numbers of the templates that the collector has."""

    @property
    def number(self) -> int:
        """A number that outlives restarts, and never 0."""
        return zlib.crc32(self.interface.encode()) or 1


@dataclass(eq=False, slots=True)
class Message:
    """One message without its header: the header depends on the time of sending."""

    domain: ObservationDomain
    sets: list[tuple[int, bytes | memoryview]]
    """Number and records of each set."""
    records: int = 0
    """Data records, of flows and options."""
    rows: int = 0
    """Rows of windows in its flows; 0: no flows."""
    templates: int = 0
    base_ms: int = 0
    """As of FlowPart."""

    def step(self, version: int) -> int:
        """By how much it moves the sequence on."""
        return 1 if version == NETFLOW9 else self.records

    def frame(self, version: int) -> bytes:
        """Return the message with a header of now."""
        body = b"".join(
            part for number, records in self.sets for part in _set(version, number, records)
        )
        domain, now_ms = self.domain, time.time_ns() // 1_000_000
        sequence = domain.sequence & 0xFFFFFFFF
        if version == NETFLOW9:
            uptime = now_ms - self.base_ms if self.base_ms else 0
            count = self.templates + self.records
            head = struct.pack(
                ">HHIIII", 9, count, uptime, now_ms // 1000, sequence, domain.number
            )  # fmt: skip
        else:
            size = header_size(version) + len(body)
            head = struct.pack(">HHIII", 10, size, now_ms // 1000, sequence, domain.number)
        return head + body


def _set(version: int, number: int, records: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    # NetFlow v9 sets end at multiples of four bytes.
    padding = bytes(-len(records) % 4) if version == NETFLOW9 else b""
    size = _SET_HEADER + len(records) + len(padding)
    return struct.pack(">HH", number, size), records, padding


def read_header(payload: bytes) -> tuple[int, int] | None:
    """Return observation domain and sequence of a message; None if `payload` is cut."""
    version = int.from_bytes(payload[:2], "big")
    if len(payload) < header_size(version):
        return None
    sequence, domain = struct.unpack_from(">II", payload, 12 if version == NETFLOW9 else 8)
    return domain, sequence


def template_messages(
    domain: ObservationDomain, templates: Iterable[Template], version: int, limit: int
) -> list[Message]:
    """Return messages with templates."""
    messages: list[Message] = []
    left = 0
    for number, record in template_sets(templates, version):
        # One set for each template: pmacct misreads a second template of options in a set.
        size = _SET_HEADER + len(record) + 3
        if size > left:
            messages.append(Message(domain, []))
            left = limit - header_size(version)
        left -= size
        messages[-1].sets.append((number, record))
        messages[-1].templates += 1
    return messages


class Uptime:
    """The clock of NetFlow v9's headers: milliseconds in 32 bits."""

    def __init__(self) -> None:
        self._base_ms = time.time_ns() // 1_000_000 - _BEFORE_START_MS

    def base_ms(self) -> int:
        """Return the UTC at which the uptime is 0; it moves on after 24 days."""
        now = time.time_ns() // 1_000_000
        if now - self._base_ms > _LONGEST_UPTIME_MS:
            self._base_ms = now - _BEFORE_START_MS
        return self._base_ms
