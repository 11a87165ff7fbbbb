"""An application whose every byte is checked: datagrams, a TCP stream, and pings."""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from app.lab import netns
from app.lab.plan import CLIENT, SERVER
from tests.topologies.network import Topology

PORT = 9009
KINDS = ("udp", "tcp", "echo")
_TCP_INFO, _TOTAL_RETRANSMITS_AT = 11, 100
_ECHO = {4: (socket.IPPROTO_ICMP, 8), 6: (socket.IPPROTO_ICMPV6, 128)}
_RECVERR = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}
"""With this option, a socket hears of every ICMP error about its packets."""
_NUMBERS = struct.Struct("!4sII")
_MAGIC = b"Appl"
_SIZE = 160
_SETTLE, _MOST_SETTLE = 0.3, 3.0
"""Seconds after the last packet, and at most until all have arrived."""


@dataclass
class Report:
    """The fate of an application's packets."""

    sent: Counter[str] = field(default_factory=Counter)
    """Packets, and bytes of TCP, by kind and IP version, such as `udp4`."""
    received: Counter[str] = field(default_factory=Counter)
    """The same, without duplicates; of pings, the replies."""
    duplicates: int = 0
    foreign: int = 0
    """Datagrams, bytes or replies that the application did not send."""
    errors: Counter[str] = field(default_factory=Counter)
    """Failed calls of sockets."""
    retransmits: int = 0
    by_flow: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Received datagrams by kind and number of the flow."""

    def harm(self) -> dict[str, object]:
        """Everything that an undisturbed application on a network without loss does not see."""
        missing = {
            kind: (count, self.received[kind])
            for kind, count in self.sent.items()
            if self.received[kind] != count
        }
        found = {
            "missing": missing,
            "duplicates": self.duplicates,
            "foreign": self.foreign,
            "errors": dict(self.errors),
            "retransmits": self.retransmits,
        }
        return {name: value for name, value in found.items() if value}


class Application:
    """Flows from client to server, sent by one thread and received by another."""

    def __init__(
        self,
        network: Topology,
        addresses: Sequence[str],
        kinds: Sequence[str],
        flows: int | Mapping[str, int],
        rate: float,
        size: int,
        tos: int,
    ) -> None:
        self.report = Report()
        self.ports: dict[int, int] = {}
        """Source ports of UDP flows to their numbers."""
        self._size = size
        self._stack = ExitStack()
        self._over = threading.Event()
        self._arrived = threading.Event()
        self._seen: set[bytes] = set()
        self._streams: dict[socket.socket, tuple[str, int]] = {}
        with netns.inside(network.nodes[SERVER]):
            self._listener = self._keep(
                socket.create_server(
                    ("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
                )
            )
            self._datagrams = self._keep(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
            self._datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            self._datagrams.bind(("::", PORT))
        self._pings: dict[socket.socket, str] = {}
        self._flows: list[tuple[str, int, socket.socket]] = []
        with netns.inside(network.nodes[CLIENT]):
            for address in addresses:
                version = 6 if ":" in address else 4
                for kind in kinds:
                    for number in range(flows if isinstance(flows, int) else flows[kind]):
                        opened = self._open(kind, version, address, tos)
                        self._flows.append((f"{kind}{version}", number, opened))
                        if kind == "udp":
                            self.ports[opened.getsockname()[1]] = number
        self._pause = 1 / rate
        self._threads = [threading.Thread(target=run) for run in (self._receive, self._send)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> Report:
        """Stop, wait for packets on the way, and return the report. A second call does nothing."""
        if self._over.is_set():
            return self.report
        self._over.set()
        self._threads[1].join()
        for kind, _, flow in self._flows:
            if kind.startswith("tcp"):
                info = flow.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 192)
                self.report.retransmits += struct.unpack_from("I", info, _TOTAL_RETRANSMITS_AT)[0]
                with suppress(OSError):
                    flow.shutdown(socket.SHUT_WR)
        time.sleep(_SETTLE)
        end = time.monotonic() + _MOST_SETTLE
        while self.report.sent != self.report.received and time.monotonic() < end:
            time.sleep(0.02)
        self._arrived.set()
        self._threads[0].join()
        self._stack.close()
        return self.report

    def _keep(self, opened: socket.socket) -> socket.socket:
        return self._stack.enter_context(opened)

    def _open(self, kind: str, version: int, address: str, tos: int) -> socket.socket:
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        if kind == "echo":
            opened = socket.socket(family, socket.SOCK_DGRAM, _ECHO[version][0])
            self._pings[opened] = f"echo{version}"
        elif kind == "udp":
            opened = socket.socket(family, socket.SOCK_DGRAM)
            opened.setsockopt(*_RECVERR[version], 1)
        else:
            opened = socket.socket(family, socket.SOCK_STREAM)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.settimeout(5)
        if tos:
            level = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS), (socket.IPPROTO_IP, socket.IP_TOS)
            opened.setsockopt(*level[version == 4], tos)
        self._keep(opened).connect((address, PORT))
        opened.setblocking(False)
        return opened

    def _send(self) -> None:
        """Send one packet of each flow, spread over the pause between two of a flow."""
        step = self._pause / len(self._flows)
        number = 0
        rest = dict[socket.socket, bytes]()
        due = time.monotonic()
        while True:
            # In random order: in a fixed one, the same flows may always meet an exhausted rate.
            for kind, flow, opened in random.sample(self._flows, len(self._flows)):
                due += step
                # After a delay of the machine, the application does not catch up by a burst.
                due = max(due, time.monotonic() - 0.05)
                if self._over.wait(max(0.0, due - time.monotonic())):
                    return
                packet = _NUMBERS.pack(_MAGIC, flow, number).ljust(self._size, b"\x5a")
                if kind.startswith("echo"):
                    request = _ECHO[int(kind[-1])][1]
                    packet = struct.pack("!BBHHH", request, 0, 0, 0, number & 0xFFFF) + packet
                # A full buffer took a part of the last message.
                packet = (begun := rest.pop(opened, b"")) + packet
                try:
                    sent = opened.send(packet)
                except BlockingIOError:
                    rest[opened] = begun
                    continue
                except OSError as error:
                    self.report.errors[f"{kind}: {error.strerror}"] += 1
                    continue
                rest[opened] = packet[sent:] if kind.startswith("tcp") else b""
                self.report.sent[kind] += sent if kind.startswith("tcp") else 1
            number += 1

    def _receive(self) -> None:
        with select.epoll() as poll:
            sockets = {s.fileno(): s for s in (self._listener, self._datagrams, *self._pings)}
            for fd in sockets:
                poll.register(fd, select.EPOLLIN)
            while not self._arrived.is_set():
                for fd, _ in poll.poll(0.05):
                    opened = sockets[fd]
                    if opened is self._listener:
                        connection = self._keep(opened.accept()[0])
                        four = connection.getpeername()[0].startswith("::ffff:")
                        self._streams[connection] = f"tcp{4 if four else 6}", 0
                        sockets[connection.fileno()] = connection
                        poll.register(connection, select.EPOLLIN)
                    elif opened in self._streams:
                        if not self._take_stream(opened):
                            poll.unregister(fd)
                    elif opened is self._datagrams:
                        data, sender = opened.recvfrom(1 << 16)
                        four = sender[0].startswith("::ffff:")
                        self._take(f"udp{4 if four else 6}", data)
                    else:
                        with suppress(OSError):
                            self._take(self._pings[opened], opened.recv(1 << 16)[8:])

    def _take_stream(self, opened: socket.socket) -> bool:
        """Read a stream; returns whether it goes on."""
        kind, before = self._streams[opened]
        try:
            data = opened.recv(1 << 18)
        except OSError as error:
            self.report.errors[f"{kind} server: {error.strerror}"] += 1
            return False
        self._streams[opened] = kind, before + len(data)
        self.report.received[kind] += len(data)
        # Each message starts with the magic word, so every byte's place is known.
        at = -before % self._size
        while at + len(_MAGIC) <= len(data):
            self.report.foreign += data[at : at + len(_MAGIC)] != _MAGIC
            at += self._size
        return bool(data)

    def _take(self, kind: str, data: bytes) -> None:
        key = kind.encode() + data[: _NUMBERS.size]
        if len(data) != self._size or not data.startswith(_MAGIC):
            self.report.foreign += 1
        elif key in self._seen:
            self.report.duplicates += 1
        else:
            self._seen.add(key)
            self.report.received[kind] += 1
            self.report.by_flow[kind, _NUMBERS.unpack_from(data)[1]] += 1


@contextmanager
def application(
    network: Topology,
    *,
    to: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    flows: int | Mapping[str, int] = 1,
    rate: float = 100,
    size: int = _SIZE,
    tos: int = 0,
) -> Iterator[Application]:
    """Send flows of each kind to each address (default: the server's), `rate` packets/s a flow.

    `flows` is the number of flows of each kind.
    """
    started = Application(
        network, to or tuple(network.servers.values()), kinds, flows, rate, size, tos
    )
    try:
        yield started
    finally:
        started.finish()
