"""The server of the lab's traffic: answers TCP, UDP and DNS requests in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import socket
import struct
from collections.abc import Callable

from app.lab.plan import NodeAddresses

REQUEST_PORTS = (22, 80, 443, 5432)
UPLOAD_PORT = 873
DNS_PORT = 53
QUIC_PORT = 443
VOICE_PORT = 16384
TYPE_A = 1
TYPE_AAAA = 28

FRAME = struct.Struct("!II")
"""Head of a TCP request: bytes of payload that follow, bytes to answer."""
QUIC_FLIGHT = 3
"""Datagrams that answer one QUIC-shaped request."""

_UPLOAD_READ = 1 << 18
"""Bytes of an upload per wake-up: one packet at a time would cost a tenth of a core."""
_DNS_HEADER = struct.Struct("!6H")
_DNS_ANSWER = struct.Struct("!3HIH")
_QUESTION_TAIL = 5
"""Bytes of a question after the labels: their end, the type and the class."""


async def run(target: NodeAddresses) -> None:
    """Serve until cancelled. Raises OSError if a port is taken."""
    hosts = (target.ipv4, target.ipv6)
    async with asyncio.TaskGroup() as group:
        for host in hosts:
            group.create_task(_serve_datagrams(host, DNS_PORT, dns_answer))
            group.create_task(_serve_datagrams(host, QUIC_PORT, _quic_answer))
            group.create_task(_serve_datagrams(host, VOICE_PORT, lambda data: (data,)))
            upload = socket.create_server((host, UPLOAD_PORT), family=_family(host))
            upload.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _UPLOAD_READ)
            await asyncio.start_server(_take_upload, sock=upload)
        for port in REQUEST_PORTS:
            await asyncio.start_server(_answer_requests, hosts, port)


async def _answer_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            payload, answer = FRAME.unpack(await reader.readexactly(FRAME.size))
            await reader.readexactly(payload)
            writer.write(bytes(answer))
            await writer.drain()
    writer.close()


async def _take_upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(_UPLOAD_READ):
            pass
    writer.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _serve_datagrams(
    host: str, port: int, respond: Callable[[bytes], tuple[bytes, ...]]
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(_family(host), socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind((host, port))
        while True:
            data, peer = await loop.sock_recvfrom(sock, 2048)
            for answer in respond(data):
                await loop.sock_sendto(sock, answer, peer)


def _quic_answer(data: bytes) -> tuple[bytes, ...]:
    return (data[:64].ljust(1200, b"\0"),) * QUIC_FLIGHT


def dns_query(ident: int, name: str, kind: int) -> bytes:
    """Return a query (RFC 1035) for record type `kind` of `name`, recursion desired."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    header = _DNS_HEADER.pack(ident, 0x0100, 1, 0, 0, 0)
    return header + labels + b"\0" + struct.pack("!2H", kind, 1)


def dns_answer(query: bytes) -> tuple[bytes, ...]:
    """Return the answer: one address of a documentation prefix; none if malformed."""
    if len(query) < _DNS_HEADER.size + _QUESTION_TAIL:
        return ()
    question = query[_DNS_HEADER.size :]
    kind, _ = struct.unpack("!2H", question[-4:])
    digest = hashlib.blake2b(question, digest_size=8).digest()
    if kind == TYPE_A:
        address = ipaddress.IPv4Address("192.0.2.0").packed[:3] + digest[:1]
    else:
        address = ipaddress.IPv6Address("2001:db8::").packed[:8] + digest
    header = _DNS_HEADER.pack(int.from_bytes(query[:2], "big"), 0x8180, 1, 1, 0, 0)
    # 0xC00C: the name is the question's, at offset 12.
    record = _DNS_ANSWER.pack(0xC00C, kind, 1, 300, len(address)) + address
    return (header + question + record,)
