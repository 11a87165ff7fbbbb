"""Frames that run through the programs, and the fields of each frame."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from tests.probes.running import ACK, ARP, FIN, SYN, TCP, UDP, Frame

ICMP = socket.IPPROTO_ICMP


def ipv6(number: int) -> bytes:
    """A UDP packet from one of four addresses in two networks."""
    source = ipaddress.ip_address(f"2001:db8:0:{number % 2}::{number % 4}").packed
    destination = ipaddress.ip_address("2001:db8::ffff").packed
    size = 8 + number
    header = b"\x60\0\0\0" + size.to_bytes(2, "big") + bytes((UDP, 64)) + source + destination
    return bytes(12) + b"\x86\xdd" + header + bytes(size)


FRAMES: list[bytes] = [
    *(
        bytes(
            Frame(
                source=f"10.0.{n % 2}.{n % 5}",
                destination=f"192.0.2.{n % 3}",
                protocol=(UDP, TCP, ICMP)[n % 3],
                source_port=1000 + n % 4,
                destination_port=(53, 443)[n % 2],
                flags=(SYN, ACK, FIN)[n // 3 % 3],
                tos=(n % 4) << 2,
                payload=n * 3,
            )
        )
        for n in range(60)
    ),
    *(ipv6(n) for n in range(20)),
    *[ARP] * 5,
]


@dataclass(frozen=True)
class Packet:
    """Fields of an IPv4 packet as a program sees them."""

    frame: bytes

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def protocol(self) -> int:
        return self.frame[23]

    @property
    def source(self) -> str:
        return socket.inet_ntoa(self.frame[26:30])

    @property
    def destination(self) -> str:
        return socket.inet_ntoa(self.frame[30:34])

    @property
    def ports(self) -> tuple[int, int]:
        if self.protocol not in (TCP, UDP):
            return 0, 0
        return int.from_bytes(self.frame[34:36], "big"), int.from_bytes(self.frame[36:38], "big")

    @property
    def tos(self) -> int:
        return self.frame[15]

    @property
    def flags(self) -> int:
        return self.frame[47]


def packets(frames: Sequence[bytes]) -> list[Packet]:
    return [Packet(frame) for frame in frames if frame[12:14] == b"\x08\x00"]


def sixes(frames: Sequence[bytes]) -> list[bytes]:
    return [frame for frame in frames if frame[12:14] == b"\x86\xdd"]
