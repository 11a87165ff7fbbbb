"""ICMP echo requests with a limited TTL, and the answers to them.

Raw sockets send and receive; an answer is recognised by its identifier and sequence number, so
that the host's own ping stays undisturbed. The payload begins with the public mark of probes:
no tracer takes such a packet for an application's. All requests of an engine have the same ICMP
checksum, because some load balancers share flows by it.
"""

from __future__ import annotations

import ctypes as ct
import errno
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from bpf.attach.interface import Interface
from probes.path.marks import MARK_SIZE, PROBE_MAGIC, request_mark
from probes.path.slots import Destination

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
ClassicProgram = list[tuple[int, int, int, int]]
"""Instructions: code, two jumps, operand."""

_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_MOST_MESSAGES = 4096
"""That are read in one call, and errors."""
_MOST_BYTES = 2048
"""Bytes of a message that are read: routers quote at most 576 or 1280 bytes."""


class Received(NamedTuple):
    data: bytes
    sender: str
    at_ns: int
    """CLOCK_MONOTONIC."""
    ancillary: list[tuple[int, int, bytes]]


def received(opened: socket.socket, flags: int = 0) -> Iterator[Received]:
    """Yield the waiting messages of a socket with `stamp_times`."""
    for _ in range(_MOST_MESSAGES):
        try:
            data, ancillary, _, where = opened.recvmsg(_MOST_BYTES, 512, flags)
        except BlockingIOError:
            return
        except OSError:
            continue  # An error of an earlier request, reported once.
        at_ns = time.monotonic_ns()
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, ns = struct.unpack("qq", value)
                # An interruption between the two clocks makes the difference larger.
                offset_ns = min(-time.time_ns() + time.monotonic_ns() for _ in range(3))
                at_ns = min(at_ns, seconds * 10**9 + ns + offset_ns)
        sender = where[0].partition("%")[0] if where else ""
        yield Received(data, sender, at_ns, ancillary)


def stamp_times(opened: socket.socket) -> None:
    """Have the kernel tell when each message arrived.

    The kernel begins soon after the first socket asks: messages before that have the time of
    reading.
    """
    opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def bind_to(opened: socket.socket, interface: str) -> None:
    """Send and receive by this interface only. Raises OSError."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


def source_to(destination: Destination, interface: str) -> str:
    """Return the address from which this host sends to a destination. Raises OSError."""
    with socket.socket(FAMILY[destination.version], socket.SOCK_DGRAM) as opened:
        bind_to(opened, interface)
        opened.connect((destination.text, 9))
        return str(opened.getsockname()[0])


def attach_filter(opened: socket.socket, program: ClassicProgram) -> None:
    """Attach classic BPF (bpf(4)), which takes or drops each message."""
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ct.create_string_buffer(code, len(code))
    fprog = struct.pack("HL", len(program), ct.addressof(buffer))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


ICMP_HEADER = 8
IP_HEADER = {4: 20, 6: 40}
SMALLEST = {version: size + ICMP_HEADER + MARK_SIZE + 2 for version, size in IP_HEADER.items()}
"""Bytes of the smallest request by IP version, with the IP header."""

_PROTOCOL = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
_REQUEST, _REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
_UNREACHABLE, _EXCEEDED = {4: 3, 6: 1}, {4: 11, 6: 3}
_FRAGMENTATION_NEEDED, _TOO_BIG = 4, 2
"""Code of ICMP's destination unreachable, and a type of ICMPv6 (RFC 1191, RFC 4443)."""
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_MOST_WAITING = 4096
_RATE = 40.0
"""Requests a second of an engine, to all destinations together."""
_BURST = 12
"""Requests that may follow a pause at once."""


class EchoOutcome(Enum):
    REPLY = auto()
    """The destination's own reply."""
    EXCEEDED = auto()
    """A router reports that the TTL ended."""
    UNREACHABLE = auto()
    TOO_BIG = auto()
    """A router reports that the request is larger than the next link's MTU."""


@dataclass(frozen=True, slots=True)
class EchoRequest:
    sequence: int
    destination: Destination
    ttl: int
    size: int
    """Bytes with the IP header."""
    sent_ns: int
    """CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class EchoAnswer:
    request: EchoRequest
    outcome: EchoOutcome
    responder: bytes
    """16 bytes, as Destination.address."""
    mtu: int
    """The next link's MTU as reported; 0: none."""
    received_ns: int
    """CLOCK_MONOTONIC, by the kernel."""

    @property
    def is_destination(self) -> bool:
        return self.responder == self.request.destination.address


@dataclass(frozen=True, slots=True)
class _Message:
    """An ICMP message about a request of this identifier."""

    outcome: EchoOutcome
    sequence: int
    about: bytes
    """The destination that it quotes; empty for a reply."""
    mtu: int


class EchoEngine:
    """Sends echo requests out of one interface. It opens sockets with the first request."""

    def __init__(self, interface: Interface, key: int, timeout_ns: int = 3_000_000_000) -> None:
        """`key` is the secret of marks."""
        self._interface, self._key = interface, key
        self._index = interface.index
        """Index of the interface that the sockets send by."""
        self._timeout_ns = timeout_ns
        self._sockets: dict[int, socket.socket] = {}
        self._identifier = secrets.randbits(16)
        self._sequence = secrets.randbits(16)
        self._waiting: dict[int, EchoRequest] = {}
        """Requests without an answer by sequence number, oldest first."""
        self.expired: list[EchoRequest] = []
        """Requests that timed out at the last call of `answers`."""
        self._credit = float(_BURST)
        self._filled_ns = time.monotonic_ns()

    @property
    def identifier(self) -> int:
        """The ICMP identifier of all requests."""
        return self._identifier

    def send(self, destination: Destination, ttl: int, size: int = 0) -> EchoRequest:
        """Send a request of `size` bytes with the IP header, at least SMALLEST; never wait.

        Nobody may fragment the request. Raises BlockingIOError if the rate or a full queue allows
        it later only, and OSError if the host does not send it, with EMSGSIZE if it is larger than
        the interface's MTU.
        """
        now = time.monotonic_ns()
        self._credit = min(self._credit + (now - self._filled_ns) * _RATE / 1e9, _BURST)
        self._filled_ns = now
        if self._credit < 1:
            raise BlockingIOError
        version = destination.version
        if self._index != self._interface.index:
            self.close()  # It went away, and is back.
        opened = self._sockets.get(version) or self.open(version)
        self._sequence = self._sequence + 1 & 0xFFFF
        size = max(size, SMALLEST[version])
        # Both sequence numbers and this word have the sum 0.
        balance = -2 * self._sequence % 0xFFFF
        payload = request_mark(self._sequence, self._key) + balance.to_bytes(2, "big")
        body = payload.ljust(size - IP_HEADER[version] - ICMP_HEADER, b"\0")
        head = struct.pack(">BBHHH", _REQUEST[version], 0, 0, self._identifier, self._sequence)
        packet = head + body
        if version == 4:
            packet = packet[:2] + checksum(packet).to_bytes(2, "big") + packet[4:]
            limit = (socket.IPPROTO_IP, socket.IP_TTL)
        else:
            limit = (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT)
        now = time.monotonic_ns()
        self._credit -= 1
        try:
            opened.sendmsg([packet], [(*limit, struct.pack("i", ttl))], 0, (destination.text, 0))
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                raise BlockingIOError from None
            raise
        self._waiting.pop(self._sequence, None)
        request = EchoRequest(self._sequence, destination, ttl, size, now)
        self._waiting[self._sequence] = request
        if len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return request

    def answers(self) -> list[EchoAnswer]:
        """Return the answers since the last call, without those to requests that timed out."""
        oldest = time.monotonic_ns() - self._timeout_ns
        found = []
        for version, opened in self._sockets.items():
            for data, responder, received_ns, _ in received(opened):
                message = parse(version, data, self._identifier)
                request = self._waiting.get(message.sequence) if message else None
                if not message or not request or request.destination.version != version:
                    continue
                packed = socket.inet_pton(FAMILY[version], responder)
                to = request.destination.address[: len(packed)]
                if (message.about or packed) != to:
                    continue
                del self._waiting[message.sequence]
                address = packed.ljust(16, b"\0")
                answer = EchoAnswer(request, message.outcome, address, message.mtu, received_ns)
                found.append(answer)
        self.expired = []
        for sequence, request in list(self._waiting.items()):
            if request.sent_ns >= oldest:
                break
            self.expired.append(self._waiting.pop(sequence))
        return found

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()
        self._sockets.clear()
        self._waiting.clear()

    def open(self, version: int) -> socket.socket:
        """Open the socket of an IP version before the first request. Raises OSError."""
        opened = socket.socket(FAMILY[version], socket.SOCK_RAW, _PROTOCOL[version])
        try:
            opened.setblocking(False)
            stamp_times(opened)
            attach_filter(opened, _filter(version, self._identifier))
            bind_to(opened, self._interface.name)
            if version == 4:
                opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            else:
                opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
        except BaseException:
            opened.close()
            raise
        self._sockets[version], self._index = opened, self._interface.index
        return opened


def parse(version: int, data: bytes, identifier: int) -> _Message | None:
    """Read a message from a raw socket (IPv4: with its IP header); None if it is about no request
    of `identifier`."""
    icmp = data[(data[0] & 15) * 4 :] if version == 4 and data else data
    if len(icmp) < ICMP_HEADER:
        return None
    kind = icmp[0]
    if kind == _REPLY[version]:
        of, sequence, magic = struct.unpack(">HHI", icmp[4:12].ljust(8, b"\0"))
        if of != identifier or magic != PROBE_MAGIC:
            return None
        return _Message(EchoOutcome.REPLY, sequence, b"", 0)
    outcome, mtu = _error(version, icmp)
    quote = icmp[ICMP_HEADER:]
    size = (quote[0] & 15) * 4 if version == 4 and quote else IP_HEADER[6]
    header = quote[size : size + ICMP_HEADER]
    if outcome is None or len(header) < ICMP_HEADER:
        return None
    protocol, about = (quote[9], quote[16:20]) if version == 4 else (quote[6], quote[24:40])
    kind, of, sequence = struct.unpack(">B3xHH", header)
    if (protocol, kind, of) != (_PROTOCOL[version], _REQUEST[version], identifier):
        return None
    return _Message(outcome, sequence, about, mtu)


def _error(version: int, icmp: bytes) -> tuple[EchoOutcome | None, int]:
    """Outcome and reported MTU by an ICMP error's header; no outcome if it is another message."""
    kind, code = icmp[0], icmp[1]
    if version == 4 and (kind, code) == (_UNREACHABLE[4], _FRAGMENTATION_NEEDED):
        return EchoOutcome.TOO_BIG, int.from_bytes(icmp[6:8], "big")
    if version == 6 and kind == _TOO_BIG:
        return EchoOutcome.TOO_BIG, int.from_bytes(icmp[4:8], "big")
    if kind == _UNREACHABLE[version]:
        return EchoOutcome.UNREACHABLE, 0
    return (EchoOutcome.EXCEEDED, 0) if (kind, code) == (_EXCEEDED[version], 0) else (None, 0)


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = data + b"\0" * (len(data) & 1)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _filter(version: int, identifier: int) -> ClassicProgram:
    """Classic BPF (bpf(4)) that takes only messages with the identifier: replies and quotes.

    Other messages, such as replies to the host's own ping, cost no room in the socket's buffer.
    """
    take = [(0x15, 0, 1, identifier), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)]
    if version == 6:
        return [
            (0x30, 0, 0, 0),  # the type
            (0x15, 0, 2, _REPLY[6]),
            (0x28, 0, 0, 4),  # a reply's identifier
            (0x05, 0, 0, 1),
            (0x28, 0, 0, ICMP_HEADER + IP_HEADER[6] + 4),  # a quote's
            *take,
        ]
    return [
        (0xB1, 0, 0, 0),  # X: length of the IP header
        (0x50, 0, 0, 0),  # the type
        (0x15, 0, 2, _REPLY[4]),
        (0x48, 0, 0, 4),  # a reply's identifier
        (0x05, 0, 0, 6),
        (0x50, 0, 0, ICMP_HEADER),
        (0x54, 0, 0, 15),
        (0x64, 0, 0, 2),
        (0x0C, 0, 0, 0),
        (0x07, 0, 0, 0),  # X: the same and the length of the quoted IP header
        (0x48, 0, 0, ICMP_HEADER + 4),  # a quote's identifier
        *take,
    ]
