"""Sockets that send a flow of the tracer's own, and match the destination's answers.

Each flow keeps its addresses and ports, so that all packets and their probes take one branch of a
shared path.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from abc import ABC, abstractmethod
from typing import NamedTuple

from bpf.attach.interface import Interface
from probes.path.active.echo import (
    FAMILY,
    SMALLEST,
    ClassicProgram,
    EchoEngine,
    EchoOutcome,
    attach_filter,
    bind_to,
    checksum,
    received,
    source_to,
    stamp_times,
)
from probes.path.marks import MARK_SIZE, request_mark
from probes.path.options import OwnFlow, OwnProtocol
from probes.path.records import MeasuredBy
from probes.path.slots import Destination

_TTL = 64
_RECVERR = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}
_MSG_ERRQUEUE = 0x2000
_PORT_UNREACHABLE = {4: (3, 3), 6: (1, 4)}
_IPV6_CHECKSUM, _TCP_CHECKSUM_AT = 7, 16
_SYN, _RST, _ACK = 2, 4, 16
_WINDOW = 64240
_MSS = bytes((2, 4)) + (1220).to_bytes(2, "big")
"""TCP's option (RFC 9293, section 3.7.1): firewalls expect it of a SYN."""


class OwnAnswer(NamedTuple):
    number: int
    """Of the packet: what `send` returned."""
    received_ns: int


class OwnSocket(ABC):
    """One flow to one destination."""

    measured_by: MeasuredBy
    protocol: int
    tells_loss = True
    """Whether a destination that answers at all answers every packet."""

    def __init__(self, destination: Destination, interface: Interface) -> None:
        self.destination = destination
        self._interface, self._index = interface, interface.index
        self.source = source_to(destination, interface.name)
        self.source_port = 0
        """For ICMP the identifier."""
        self.destination_port = 0
        self.packet_bytes = 0
        """With the IP header."""

    @property
    def is_stale(self) -> bool:
        """Whether its interface went away, also if it is back."""
        return self._index != self._interface.index

    @abstractmethod
    def send(self) -> tuple[int, int]:
        """Send a packet. Returns its number, and when it was sent. Raises OSError."""

    @abstractmethod
    def answers(self) -> list[OwnAnswer]:
        """Return the answers since the last call."""

    @abstractmethod
    def close(self) -> None: ...


class EchoFlow(OwnSocket):
    """ICMP echo requests; the destination's replies answer them."""

    measured_by = MeasuredBy.ICMP_ECHO

    def __init__(
        self, destination: Destination, interface: Interface, key: int, timeout_ns: int
    ) -> None:
        super().__init__(destination, interface)
        self.protocol = socket.IPPROTO_ICMP if destination.version == 4 else socket.IPPROTO_ICMPV6
        self._echo = EchoEngine(interface, key, timeout_ns)
        self._echo.open(destination.version)
        self.source_port = self._echo.identifier
        self.packet_bytes = SMALLEST[destination.version]

    def send(self) -> tuple[int, int]:
        request = self._echo.send(self.destination, _TTL)
        return request.sequence, request.sent_ns

    def answers(self) -> list[OwnAnswer]:
        return [
            OwnAnswer(answer.request.sequence, answer.received_ns)
            for answer in self._echo.answers()
            if answer.outcome is EchoOutcome.REPLY
        ]

    def close(self) -> None:
        self._echo.close()


class UdpFlow(OwnSocket):
    """Datagrams with a mark of eight bytes; the destination's "port unreachable" answers them.

    Hosts limit such messages, mostly to one a second, so a missing one means nothing.
    """

    measured_by = MeasuredBy.REFUSAL
    protocol = socket.IPPROTO_UDP
    tells_loss = False

    def __init__(self, destination: Destination, interface: Interface, port: int, key: int) -> None:
        super().__init__(destination, interface)
        self._sequence, self._key = secrets.randbits(16), key
        self._socket = socket.socket(FAMILY[destination.version], socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            bind_to(self._socket, interface.name)
            stamp_times(self._socket)
            self._socket.setsockopt(*_RECVERR[destination.version], 1)
            self._socket.connect((destination.text, port))
        except BaseException:
            self._socket.close()
            raise
        self.source_port = self._socket.getsockname()[1]
        self.destination_port = port
        self.packet_bytes = (28 if destination.version == 4 else 48) + MARK_SIZE

    def send(self) -> tuple[int, int]:
        self._sequence = self._sequence + 1 & 0xFFFF
        payload = request_mark(self._sequence, self._key)
        now = time.monotonic_ns()
        try:
            self._socket.send(payload)
        except OSError:
            # The error may be an earlier datagram's. The kernel tells it only once.
            now = time.monotonic_ns()
            self._socket.send(payload)
        return self._sequence, now

    def answers(self) -> list[OwnAnswer]:
        for _ in received(self._socket):
            pass  # Data from an open port are no answer to a certain datagram.
        found = []
        version = self.destination.version
        for message in received(self._socket, _MSG_ERRQUEUE):
            sequence = int.from_bytes(message.data[4:6], "big")
            if message.data[:MARK_SIZE] != request_mark(sequence, self._key):
                continue
            for level, kind, value in message.ancillary:
                if (level, kind) != _RECVERR[version]:
                    continue
                # struct sock_extended_err, and the address of its sender.
                offender = value[20:24] if version == 4 else value[24:40]
                from_it = offender == self.destination.address[: len(offender)]
                if from_it and (value[5], value[6]) == _PORT_UNREACHABLE[version]:
                    found.append(OwnAnswer(sequence, message.at_ns))
        return found

    def close(self) -> None:
        self._socket.close()


class SynFlow(OwnSocket):
    """TCP SYNs; the destination's SYN-ACK or RST answers them.

    A raw socket sends them. This host's TCP knows no such connection, so it answers a SYN-ACK with
    an RST: no half-open connection stays at the destination. A bound socket keeps the port.
    """

    measured_by = MeasuredBy.TCP_HANDSHAKE
    protocol = socket.IPPROTO_TCP

    def __init__(self, destination: Destination, interface: Interface, port: int) -> None:
        super().__init__(destination, interface)
        family = FAMILY[destination.version]
        self._port_keeper = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
        except BaseException:
            self._port_keeper.close()
            raise
        try:
            bind_to(self._port_keeper, interface.name)
            self._port_keeper.bind((self.source, 0))
            self.source_port = self._port_keeper.getsockname()[1]
            self._socket.setblocking(False)
            attach_filter(self._socket, _to_port(destination.version, self.source_port))
            bind_to(self._socket, interface.name)
            stamp_times(self._socket)
            if destination.version == 6:
                level, option = socket.IPPROTO_IPV6, _IPV6_CHECKSUM
                self._socket.setsockopt(level, option, _TCP_CHECKSUM_AT)
            # The socket gets only packets from there.
            self._socket.connect((destination.text, 0))
        except BaseException:
            self.close()
            raise
        self.destination_port = port
        self.packet_bytes = (40 if destination.version == 4 else 60) + len(_MSS)

    def send(self) -> tuple[int, int]:
        number = secrets.randbits(32)
        ports = self.source_port, self.destination_port
        header = struct.pack(">HHIIBBHHH", *ports, number, 0, 6 << 4, _SYN, _WINDOW, 0, 0) + _MSS
        if self.destination.version == 4:
            addresses = socket.inet_aton(self.source) + self.destination.address[:4]
            pseudo = addresses + struct.pack(">HH", socket.IPPROTO_TCP, len(header))
            at = _TCP_CHECKSUM_AT
            header = header[:at] + checksum(pseudo + header).to_bytes(2, "big") + header[at + 2 :]
        now = time.monotonic_ns()
        self._socket.send(header)
        return number, now

    def answers(self) -> list[OwnAnswer]:
        found = []
        for message in received(self._socket):
            data = message.data
            tcp = data[(data[0] & 15) * 4 :] if self.destination.version == 4 else data
            if len(tcp) < 20:
                continue
            source_port, _, _, acknowledged, _, flags = struct.unpack(">HHIIBB", tcp[:14])
            if source_port == self.destination_port and flags & _ACK and flags & (_SYN | _RST):
                found.append(OwnAnswer(acknowledged - 1 & 0xFFFFFFFF, message.at_ns))
        return found

    def close(self) -> None:
        self._port_keeper.close()
        self._socket.close()


def open_own(
    wanted: OwnFlow, destination: Destination, interface: Interface, key: int, timeout_ns: int
) -> OwnSocket:
    """Open the sockets of a flow. Raises OSError."""
    if wanted.protocol is OwnProtocol.ICMP:
        return EchoFlow(destination, interface, key, timeout_ns)
    if wanted.protocol is OwnProtocol.UDP:
        return UdpFlow(destination, interface, wanted.port, key)
    return SynFlow(destination, interface, wanted.port)


def _to_port(version: int, port: int) -> ClassicProgram:
    """Classic BPF that takes only TCP segments to a port."""
    take = [(0x15, 0, 1, port), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)]
    if version == 6:
        return [(0x28, 0, 0, 2), *take]
    return [(0xB1, 0, 0, 0), (0x48, 0, 0, 2), *take]
