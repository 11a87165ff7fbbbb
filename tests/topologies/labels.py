"""A router that adds its MPLS labels to ICMP errors (RFC 4950), played by a thread."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app.lab import netns
from tests.probes.path.wire.frames import ECHO, ip_packet, packed
from tests.support.sight import ETH_P_ALL
from tests.topologies.network import Topology

STACK = struct.pack("!II", 24001 << 12 | 3 << 9 | 1, 24002 << 12 | 1 << 8 | 255)
TEXT = "24001:3:0:1 24002:0:1:255"
"""The same as in tables: label, traffic class, bottom of stack, TTL."""
_EXCEEDED = {4: (11, 0), 6: (3, 0)}
_QUOTED = 128
"""Bytes of the packet in front of the extension (RFC 4884, section 5)."""
_EXTENSION = struct.pack("!BBHHBB", 2 << 4, 0, 0, 4 + len(STACK), 1, 1) + STACK


def _answer(packet: bytes, sources: dict[int, str]) -> tuple[str, bytes] | None:
    """Return the sender, and the error about its packet whose TTL ends here."""
    version = packet[0] >> 4
    if packet[8 if version == 4 else 7] != 1:
        return None
    family, sender = (
        (socket.AF_INET, packet[12:16]) if version == 4 else (socket.AF_INET6, packet[8:24])
    )
    # The length of the quote is in words of 4 bytes (IPv4), or of 8.
    words = _QUOTED // 4 << 16 if version == 4 else _QUOTED // 8 << 24
    error = struct.pack("!BBHI", *_EXCEEDED[version], 0, words)
    error += packet[:_QUOTED].ljust(_QUOTED, b"\0") + _EXTENSION
    icmp = ip_packet(packed(sources[version]), sender, ECHO[version], error, 64)
    return socket.inet_ntop(family, sender), icmp


@contextmanager
def labelling(network: Topology, router: str) -> Iterator[None]:
    """Answer in place of a silent router for packets that come in by its `left` interface."""
    addresses = network.plan.addresses(router)
    sources = {4: addresses.ipv4, 6: addresses.ipv6}
    with netns.inside(network.nodes[router]):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        tap.bind(("left", ETH_P_ALL))
        out = {
            4: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
            6: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW),
        }
    over = threading.Event()

    poll = select.poll()
    poll.register(tap, select.POLLIN)

    def run() -> None:
        while not over.is_set():
            if not poll.poll(50):
                continue
            packet, (_, _, kind, *_) = tap.recvfrom(1 << 16)
            if kind != socket.PACKET_OUTGOING and (found := _answer(packet, sources)):
                with suppress(OSError):
                    out[packet[0] >> 4].sendto(found[1], (found[0], 0))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for each in (tap, *out.values()):
            each.close()
