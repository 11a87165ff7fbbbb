"""Messages that tell names, and frames: DNS made by hand, and the TLS library's ClientHello."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

A, CNAME, AAAA = 1, 5, 28


def encoded(name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    return labels + b"\0"


def record(owner: bytes, kind: int, data: bytes, ttl: int = 300) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


def answer(question: str, *records: bytes, flags: int = 0x8180) -> bytes:
    """A DNS message with one question; `flags` are of a good answer."""
    header = struct.pack("!6H", 77, flags, 1, len(records), 0, 0)
    return header + encoded(question) + struct.pack("!HH", A, 1) + b"".join(records)


QUESTION = b"\xc0\x0c"
"""A pointer to the question's name."""


def client_hello(name: str) -> bytes:
    """The first bytes that a TLS client sends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name or None)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HERE, THERE = "192.0.2.1", "198.51.100.7"
HERE6, THERE6 = "2001:db8::1", "2001:db8::7"
FOUR, SIX = socket.inet_aton(THERE), socket.inet_pton(socket.AF_INET6, THERE6)
DNS_ANSWER = answer(
    "www.example",
    record(QUESTION, CNAME, encoded("edge.example")),
    record(encoded("edge.example"), A, FOUR, 30),
    record(encoded("edge.example"), AAAA, SIX, 40),
)


def frame(protocol: int, source: str, destination: str, transport: bytes) -> bytes:
    ends = source, destination
    if ":" in source:
        packed = b"".join(socket.inet_pton(socket.AF_INET6, each) for each in ends)
        head = struct.pack("!IHBB", 6 << 28, len(transport), protocol, 64) + packed
        return bytes(12) + b"\x86\xdd" + head + transport
    packed = b"".join(map(socket.inet_aton, ends))
    size = 20 + len(transport)
    head = struct.pack("!BBHHHBBH", 0x45, 0, size, 1, 0, 64, protocol, 0) + packed
    return bytes(12) + b"\x08\x00" + head + transport


def udp(source: str, destination: str, ports: tuple[int, int], data: bytes) -> bytes:
    return frame(17, source, destination, struct.pack("!4H", *ports, 8 + len(data), 0) + data)


def tcp(source: str, destination: str, data: bytes, options: bytes = b"") -> bytes:
    words = (20 + len(options)) // 4
    head = struct.pack("!HHIIBBHHH", 40001, 443, 1, 1, words << 4, 0x18, 512, 0, 0) + options
    return frame(6, source, destination, head + data)


DNS_FRAME = udp("192.0.2.53", HERE, (53, 40000), DNS_ANSWER)
TLS_FRAME = tcp(HERE, THERE, client_hello("shop.example"))
