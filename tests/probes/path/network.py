"""The network behind a wire: routers that answer, and a peer that accepts connections."""

from __future__ import annotations

import socket
import struct

from tests.probes.path.wire.frames import (
    ECHO,
    FAMILY,
    PEER,
    ROUTER,
    TCP,
    Packet,
    Wire,
    ip_packet,
    packed,
    with_checksum,
)


def answer(
    probe: Packet,
    router: str,
    kind: tuple[int, int] | None = None,
    *,
    quote: int = 1 << 16,
    words: int = 0,
    extension: bytes = b"",
    word: int = 0,
) -> bytes:
    """An ICMP error about a packet: that its hop limit was exceeded, or of type and code `kind`.

    It quotes `quote` bytes, or as much with zeros where an `extension` follows, and says so in
    `words`. `word` is the error's own, an MTU for one.
    """
    four = probe.version == 4
    kind = kind or ((11, 0) if four else (3, 0))
    quoted = bytearray(probe.ip[:quote])
    quoted[8 if four else 7] = 1
    if four:
        quoted[:20] = with_checksum(bytes(quoted[:20]), 10)
    if extension:
        quoted = quoted.ljust(quote, b"\0")
    rest = word | words << (16 if four else 24)
    payload = struct.pack(">BBHI", *kind, 0, rest) + quoted + extension
    return ip_packet(packed(router), probe.addresses[0], ECHO[probe.version], payload, 60)


class Network:
    """The network behind a wire: routers in a row, and PEER after them."""

    def __init__(self, wire: Wire, routers: int = 4, mtu: int = 1500, quote: int = 500) -> None:
        """Routers quote `quote` bytes."""
        self._wire, self._routers, self._mtu, self._quote = wire, routers, mtu, quote

    def play(self) -> list[Packet]:
        """Answer what was sent, as routers do; what came as far as PEER."""
        delivered = []
        for packet in self._wire.sent():
            four = packet.version == 4
            if packet.ttl <= self._routers:
                router = ROUTER[packet.version] % packet.ttl
                self._wire.receive(answer(packet, router, quote=self._quote))
            elif len(packet.ip) > self._mtu:
                router, kind = ROUTER[packet.version] % 1, (3, 4) if four else (2, 0)
                self._wire.receive(answer(packet, router, kind, quote=500, word=self._mtu))
            else:
                delivered.append(packet)
        return delivered


def connect(wire: Wire, version: int, port: int = 80) -> socket.socket:
    """A TCP socket connected to PEER; the test plays the peer."""
    sock = socket.socket(FAMILY[version], socket.SOCK_STREAM)
    sock.setblocking(False)
    # A reset ends it at once, so that the kernel retransmits nothing.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sent()
    sock.connect_ex((PEER[version], port))
    syn = [packet for packet in wire.sent() if packet.protocol == TCP][-1]
    source, destination = syn.addresses
    ports, sequence = syn.transport[2:4] + syn.transport[:2], int.from_bytes(syn.transport[4:8])
    options = struct.pack(">BBHBBBB", 2, 4, 1460, 1, 3, 3, 10)
    answer = ports + struct.pack(
        ">IIBBHHH", 0, sequence + 1 & 0xFFFFFFFF, 7 << 4, 0x12, 65535, 0, 0
    )
    wire.receive(ip_packet(destination, source, TCP, answer + options, 64))
    return sock
