"""The lab's traffic: applications of a client that start and end at a gentle rate, and a server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import itertools
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

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


async def serve(target: NodeAddresses) -> None:
    """Answer TCP, UDP and DNS requests until cancelled. Raises OSError if a port is taken."""
    hosts = (target.ipv4, target.ipv6)
    async with asyncio.TaskGroup() as group:
        for host in hosts:
            group.create_task(_serve_datagrams(host, DNS_PORT, dns_answer))
            group.create_task(
                _serve_datagrams(
                    host, QUIC_PORT, lambda data: (data[:64].ljust(1200, b"\0"),) * QUIC_FLIGHT
                )
            )
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


_ANSWER_SECONDS = 3.0
"""Longest wait for an answer."""
_VOICE_SECONDS = 0.02
_VOICE_BYTES = 160
_VOICE_SOUND = bytes(_VOICE_BYTES)
_RTP = struct.Struct("!2BH2I")
_PING_SECONDS = 0.25
_FIRST_BULK_SECONDS, _BULK_EVERY_SECONDS = 3.0, 15.0
_BULK_SECONDS = 4.0
"""Length of a bulk transfer, which fills the bottleneck."""
_BULK_CHUNK = 1 << 16
_ICMP_ECHO, _ICMPV6_ECHO = 8, 128
_HOSTS = ("www", "api", "cdn", "img", "mail", "ns1", "auth", "static", "db", "shop", "git", "time")
_DOMAINS = ("example.com", "example.net", "example.org", "corp.example", "lab.test")


@dataclass(frozen=True, slots=True)
class _Profile:
    """Traffic of one kind of application on a TCP connection: least and most of each number."""

    port: int
    request: tuple[int, int]
    """Bytes."""
    answer: tuple[int, int]
    """Bytes."""
    think: tuple[float, float]
    """Seconds between an answer and the next request."""
    exchanges: tuple[int, int]
    """Requests of one connection."""


_WEB = _Profile(443, (300, 900), (2_000, 30_000), (0.3, 1.2), (4, 30))
_PAGE = _Profile(80, (200, 600), (1_000, 12_000), (0.02, 0.1), (1, 3))
_SHELL = _Profile(22, (48, 96), (48, 400), (0.1, 0.5), (40, 200))
_DATABASE = _Profile(5432, (60, 300), (100, 4_000), (0.1, 0.4), (30, 120))


async def use(target: NodeAddresses, rate: float) -> None:
    """Run all applications of the client; `rate` scales requests and packets a second."""
    over4, over6 = (_Applications(host, rate) for host in (target.ipv4, target.ipv6))
    async with asyncio.TaskGroup() as group:

        def keep(session: Callable[[], Awaitable[None]], pause: float) -> None:
            group.create_task(_repeat(session, pause / rate))

        for over in (over4, over6):
            for profile in (_WEB, _WEB, _SHELL, _DATABASE):
                keep(partial(over.stream, profile), 1.0)
            keep(partial(over.stream, _PAGE), 1.0)
            keep(over.quic, 0.5)
            for _ in range(2):
                keep(over.lookup, 0.5)
            keep(over.ping, 0.2)
        keep(over4.voice, 0.5)
        group.create_task(_bulk_now_and_then((over4, over6), rate))


async def _repeat(session: Callable[[], Awaitable[None]], pause: float) -> None:
    """Repeat `session`. A lost packet or a restarted server ends only one round."""
    while True:
        await asyncio.sleep(random.uniform(0, 2) * pause)
        with contextlib.suppress(OSError, EOFError):
            await session()


async def _bulk_now_and_then(over: tuple[_Applications, ...], rate: float) -> None:
    pause = _FIRST_BULK_SECONDS
    for applications in itertools.cycle(over):
        await asyncio.sleep(pause / rate)
        with contextlib.suppress(OSError):
            await applications.bulk()
        pause = _BULK_EVERY_SECONDS


class _Applications:
    """One session of each kind of application, over one family of addresses."""

    def __init__(self, host: str, rate: float) -> None:
        self._host = host
        self._rate = rate
        self._family = _family(host)

    async def stream(self, profile: _Profile) -> None:
        """A TCP connection of requests and answers."""
        reader, writer = await asyncio.open_connection(self._host, profile.port)
        try:
            for _ in range(random.randint(*profile.exchanges)):
                payload, answer = random.randint(*profile.request), random.randint(*profile.answer)
                writer.write(FRAME.pack(payload, answer) + bytes(payload))
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await reader.readexactly(answer)
                await asyncio.sleep(random.uniform(*profile.think) / self._rate)
        finally:
            writer.close()

    async def bulk(self) -> None:
        """Upload at the rate of the path."""
        _, writer = await asyncio.open_connection(self._host, UPLOAD_PORT)
        try:
            end = time.monotonic() + _BULK_SECONDS
            while time.monotonic() < end:
                writer.write(bytes(_BULK_CHUNK))
                await writer.drain()
        finally:
            writer.close()

    async def quic(self) -> None:
        """QUIC-shaped exchanges: a long header of 1200 bytes, then short ones."""
        loop = asyncio.get_running_loop()
        with self._datagrams(QUIC_PORT) as sock:
            ident = random.randbytes(8)
            request = (b"\xc3\0\0\0\1\x08" + ident).ljust(1200, b"\0")
            for _ in range(random.randint(10, 40)):
                await loop.sock_sendall(sock, request)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    for _ in range(QUIC_FLIGHT):
                        await loop.sock_recv(sock, 2048)
                await asyncio.sleep(random.uniform(0.1, 0.4) / self._rate)
                request = (b"\x43" + ident).ljust(random.randint(40, 300), b"\0")

    async def lookup(self) -> None:
        """Send one DNS query from a new source port."""
        loop = asyncio.get_running_loop()
        name = f"{random.choice(_HOSTS)}{random.randint(1, 99)}.{random.choice(_DOMAINS)}"
        with self._datagrams(DNS_PORT) as sock:
            kind = random.choice((TYPE_A, TYPE_AAAA))
            query = dns_query(random.randrange(1 << 16), name, kind)
            await loop.sock_sendall(sock, query)
            async with asyncio.timeout(_ANSWER_SECONDS):
                await loop.sock_recv(sock, 512)

    async def voice(self) -> None:
        """A call of RTP-shaped datagrams every 20 ms, both ways."""
        with self._datagrams(VOICE_PORT) as sock:
            source = random.randrange(1 << 32)
            interval = _VOICE_SECONDS / self._rate
            due = time.monotonic()
            for number in range(random.randint(500, 1500)):
                sock.send(_RTP.pack(0x80, 0, number, number * _VOICE_BYTES, source) + _VOICE_SOUND)
                with contextlib.suppress(BlockingIOError):
                    sock.recv(2048)
                due += interval
                await asyncio.sleep(due - time.monotonic())

    async def ping(self) -> None:
        """Echo requests of one identifier; the kernel of the server answers."""
        version6 = self._family == socket.AF_INET6
        protocol = socket.IPPROTO_ICMPV6 if version6 else socket.IPPROTO_ICMP
        ident = random.randrange(1 << 16)
        with socket.socket(self._family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol) as sock:
            # The answers are not read, and take no memory.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
            sock.connect((self._host, 0))
            for number in range(random.randint(50, 150)):
                sock.send(_echo_request(_ICMPV6_ECHO if version6 else _ICMP_ECHO, ident, number))
                await asyncio.sleep(_PING_SECONDS / self._rate)

    @contextlib.contextmanager
    def _datagrams(self, port: int) -> Iterator[socket.socket]:
        with socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect((self._host, port))
            yield sock


def _echo_request(kind: int, ident: int, number: int) -> bytes:
    """Return an echo request with the checksum of ICMP; for ICMPv6 the kernel computes it."""
    words = (kind << 8, 0, ident, number)
    folded = sum(words)
    folded = (folded & 0xFFFF) + (folded >> 16)
    folded = (folded & 0xFFFF) + (folded >> 16)
    return struct.pack("!4H", words[0], ~folded & 0xFFFF, ident, number) + bytes(48)
