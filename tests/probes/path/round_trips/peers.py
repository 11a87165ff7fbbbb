"""Packets of both ends of a flow, made up byte by byte."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpf.arrays import Array
from probes.path.records import DESTINATION_HOP
from tests.probes.path.wire.frames import (
    ECHO,
    PEER,
    TCP,
    UDP,
    Tracing,
    Wire,
    ip_packet,
    packed,
)

LOCAL = {4: "10.96.0.77", 6: "fd96::77"}
"""This address is not the host's, so its kernel answers nothing."""
FIN, SYN, RST, ACK = 1, 2, 4, 16
_ETHERTYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}
NEVER = 2**64 - 1


def clock(value: int, echo: int = 0) -> bytes:
    """The timestamps option where all known hosts have it."""
    return struct.pack(">BBBBII", 1, 1, 8, 10, value, echo)


@dataclass
class Peers:
    """The traced host and its destination."""

    wire: Wire
    tracing: Tracing
    version: int

    def __post_init__(self) -> None:
        self.tracing.rows()
        self.exchanges[:] = np.zeros((), self.exchanges.dtype)

    @property
    def exchanges(self) -> Array:
        """The kernel's own memory."""
        found: Array = self.tracing.probe._round_trips._exchanges
        return found

    def pace(self) -> None:
        """The next packet may be timed at once."""
        self.exchanges["due_ns"] = 0

    def out(self, protocol: int, payload: bytes, *, ttl: int = 64, segment: int = 0) -> None:
        """Send a packet to the destination; a large one is cut into segments of that payload."""
        ends = packed(LOCAL[self.version]), packed(PEER[self.version])
        ip = ip_packet(*ends, protocol, payload, ttl)
        frame = self.wire._mac * 2 + _ETHERTYPE[self.version] + ip
        start = len(frame) - len(payload)
        self.wire.send(frame, (start, 16) if segment else (0, 0), segment)

    def back(self, protocol: int, payload: bytes, *, ttl: int = 57) -> None:
        """Receive a packet from the destination."""
        ends = packed(PEER[self.version]), packed(LOCAL[self.version])
        self.wire.receive(ip_packet(*ends, protocol, payload, ttl))

    def rows(self) -> Array:
        """Rows at the destination since the last call."""
        rows = self.tracing.rows()
        return rows.take(np.flatnonzero(rows["hop"] == DESTINATION_HOP))

    def one(self) -> Any:
        """The only new row."""
        (row,) = self.rows()
        return row

    def echo(self, number: int, data: bytes = b"", *, reply: bool = False, ttl: int = 64) -> None:
        request, answer = {4: (8, 0), 6: (128, 129)}[self.version]
        kind = answer if reply else request
        payload = struct.pack(">BBHHH", kind, 0, 0, 0x1234, number) + data
        send = self.back if reply else self.out
        send(ECHO[self.version], payload, ttl=ttl)

    def datagram(self, ports: tuple[int, int], data: bytes, *, back: bool = False) -> None:
        source, destination = reversed(ports) if back else ports
        payload = struct.pack(">HHHH", source, destination, 8 + len(data), 0) + data
        (self.back if back else self.out)(UDP, payload)


@dataclass
class Connection:
    """A TCP flow whose segments the test chooses."""

    peers: Peers
    port: int
    next: int = 1000
    """Sequence number of the next data."""
    window: int = 9
    """The destination's."""

    def out(
        self, data: bytes = b"", options: bytes = b"", *, at: int | None = None, flags: int = ACK,
        segment: int = 0,
    ) -> None:  # fmt: skip
        """Send a segment, with new data unless `at` is given."""
        if at is None:
            at = self.next
            self.next = (at + len(data) + bool(flags & (SYN | FIN))) & 0xFFFFFFFF
        payload = self._header(self.port, 80, at, 7, flags, options) + data
        self.peers.out(TCP, payload, segment=segment)

    def back(
        self, acknowledged: int | None = None, options: bytes = b"", data: bytes = b"", *,
        flags: int = ACK,
    ) -> None:  # fmt: skip
        """Receive a segment, by default one that acknowledges everything."""
        number = self.next if acknowledged is None else acknowledged & 0xFFFFFFFF
        header = self._header(80, self.port, 7, number, flags, options, self.window)
        self.peers.back(TCP, header + data)

    @staticmethod
    def _header(
        source: int, destination: int, sequence: int, acknowledged: int, flags: int, options: bytes,
        window: int = 9,
    ) -> bytes:  # fmt: skip
        words = 5 + len(options) // 4
        return struct.pack(
            ">HHIIBBHHH", source, destination, sequence, acknowledged, words << 4, flags, window,
            0, 0,
        ) + options  # fmt: skip

    def open(self) -> None:
        """Have the flow known: its first packet is not timed."""
        self.out(bytes(10))
        self.back()


def wait_ms(milliseconds: float) -> None:
    time.sleep(milliseconds / 1e3)
