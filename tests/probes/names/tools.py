"""Messages that tell names: DNS answers made by hand, and a ClientHello of the TLS library."""

from __future__ import annotations

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
