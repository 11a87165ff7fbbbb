"""A controller that traces, on a host whose network is played by the test."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.lab import netns
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.control import controller as controllers
from probes.control.builtin_probes import PATH_PROBE
from probes.control.controller import Controller
from probes.path.options import PathOptions
from probes.path.probe import PathProbe
from probes.path.records import HOP, HOPS_TABLE, ProbeOutcome
from probes.snapshot import Event, Item, Snapshot
from tests.probes.path.wire.frames import ECHO, PEER, ROUTER, UDP, Wire, ip_packet, packed, wire
from tests.support.compiling import Shared

EXCEEDED, REFUSED = {4: (11, 0), 6: (3, 0)}, {4: (3, 3), 6: (1, 4)}
PORT = 9
_MOST_QUEUED = 100


class Network:
    """Routers, and destinations behind them; another thread answers until `close`.

    A packet with a TTL below 32 is a probe. Fields may be set at any time.
    """

    def __init__(self, opened: Wire) -> None:
        self.wire = opened
        self.routers = 6
        self.silent: set[int] = set()
        self.delay = 0.0
        """Seconds until an answer."""
        self.back = 0
        """Routers on the way back, where destinations return datagrams; 0: they don't."""
        self.refuses = False
        """Whether destinations say of probes that the port is closed."""
        self.probes: Counter[tuple[str, int, int]] = Counter()
        """By destination, source port and hop."""
        self.packets: Counter[tuple[str, int]] = Counter()
        """The application's, by destination and source port."""
        self.taken = 0
        """Frames of all kinds."""
        self.doubled: list[str] = []
        """Of the application's packets, those that came before: when, and in hexadecimal."""
        self.answers = 0
        """Of routers, about probes."""
        self._seen: set[tuple[int, bytes]] = set()
        self._waiting: list[tuple[float, bytes]] = []
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join()

    def by_hop(self, destination: str) -> Counter[int]:
        counted: Counter[int] = Counter()
        for (to, _, hop), count in tuple(self.probes.items()):
            if to == destination:
                counted[hop] += count
        return counted

    def _run(self) -> None:
        # Unlike select, poll knows descriptors above 1023.
        poll = select.poll()
        poll.register(self.wire._fd, select.POLLIN)
        while not self._over:
            poll.poll(2)
            with suppress(OSError):  # there is nothing, or no interface any more
                for _ in range(64):
                    self._take(os.read(self.wire._fd, 1 << 17)[10:])
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                with suppress(OSError):  # the interface is down
                    self.wire.receive(self._waiting.pop(0)[1])

    def _take(self, frame: bytes) -> None:
        self.taken += 1
        ip = frame[14:] if self.wire._ethernet else frame
        four = ip[0] >> 4 == 4
        if four:
            ttl, protocol, source, to, rest = ip[8], ip[9], ip[12:16], ip[16:20], ip[20:]
        else:
            ttl, protocol, source, to, rest = ip[7], ip[6], ip[8:24], ip[24:40], ip[40:]
        family = socket.AF_INET if four else socket.AF_INET6
        destination = socket.inet_ntop(family, to)
        if protocol != UDP or rest[2:4] != struct.pack(">H", PORT):
            return
        (port,) = struct.unpack_from(">H", rest)
        version = 4 if four else 6
        if ttl < 32:
            self.probes[destination, port, ttl] += 1
            if who := self._answerer(ttl):
                router = packed(ROUTER[version] % who) if who < 32 else to
                kind = EXCEEDED if who < 32 else REFUSED
                icmp = struct.pack(">BBHI", *kind[version], 0, 0) + ip[:56]
                self.answers += who < 32
                self._later(ip_packet(router, source, ECHO[version], icmp, 65 - ttl))
        else:
            self.packets[destination, port] += 1
            if (port, rest[8:]) in self._seen:
                self.doubled.append(f"{time.monotonic():.6f} {ip.hex()}")
            self._seen.add((port, rest[8:]))
            if self.back:
                datagram = rest[2:4] + rest[:2] + struct.pack(">HH", 9, 0) + b"x"
                self._later(ip_packet(to, source, UDP, datagram, 64 - self.back))

    def _answerer(self, ttl: int) -> int:
        if ttl > self.routers:
            return 32 if self.refuses else 0
        return 0 if ttl in self.silent else ttl

    def _later(self, packet: bytes) -> None:
        self._waiting.append((time.monotonic() + self.delay, packet))


class Host:
    """A tracing controller and its published items. The calling thread is in its namespace."""

    def __init__(self, network: Network, controller: Controller) -> None:
        self.network, self.controller = network, controller
        self.items: list[Item] = []
        controller.listen(self.items.append)
        self.sockets: list[socket.socket] = []
        self.sent = 0
        """Datagrams, by all flows."""
        self.space = netns.current()

    @property
    def probe(self) -> PathProbe:
        found = self.controller._probe_of(PATH_PROBE)
        assert found
        return found

    def close(self) -> None:
        os.close(self.space)
        for opened in self.sockets:
            opened.close()

    def open(self, destination: str = PEER[4], port: int = 0) -> socket.socket:
        """A flow: a socket that sends datagrams there; `port` is its own."""
        opened = socket.socket(
            socket.AF_INET6 if ":" in destination else socket.AF_INET, socket.SOCK_DGRAM
        )
        self.sockets.append(opened)
        opened.setblocking(False)
        if port:
            opened.bind(("", port))
        opened.connect((destination, PORT))
        return opened

    def send(self, seconds: float, *flows: socket.socket, pause: float = 0.0003) -> int:
        """Datagrams by each of the flows in turn, irregularly; how many each sent."""
        end, sent = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for flow in flows:
                with suppress(OSError):  # a port unreachable of before; the interface is down
                    flow.send(self.sent.to_bytes(8, "big"))
                    self.sent += 1
            sent += 1
            time.sleep(pause * (1 + sent % 3))
        return sent

    def settle(self) -> None:
        """Wait until no packet is in flight and all answers have arrived."""
        net = self.network
        before = None
        while before != (before := net.taken):
            time.sleep(net.delay + 0.03)

    @contextmanager
    def sending(self, *flows: socket.socket) -> Iterator[None]:
        """Datagrams by each of them in turn, at the network's pace, while the context lasts."""
        over = threading.Event()

        def send() -> None:
            while not over.is_set():
                # A network with a long queue would answer after the probes' timeout.
                if self.sent - self.network.packets.total() < _MOST_QUEUED:
                    self.send(0.005, *flows, pause=0)
                else:
                    time.sleep(0.001)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def snapshots(self, metric: str = HOPS_TABLE) -> list[Snapshot]:
        """All published snapshots of the path probe."""
        return [
            item
            for item in tuple(self.items)
            if isinstance(item, Snapshot) and (item.probe, item.metric) == ("path", metric)
        ]

    def rows(self) -> Array:
        """All published rows, dtype HOP."""
        parts = [item.rows for item in self.snapshots()]
        return np.concatenate([np.empty(0, HOP), *parts])

    def told(self, severity: str) -> list[str]:
        return [
            i.text for i in tuple(self.items) if isinstance(i, Event) and i.severity == severity
        ]

    def info(self, name: str = "path") -> Any:
        (found,) = (info for info in self.controller.probes() if info.name == name)
        return found


MakeHost = Callable[..., Host]


@contextmanager
def hosting(
    options: PathOptions, *, ethernet: bool, ingress: Hook | None, by_link: bool
) -> Iterator[Host]:
    with ExitStack() as stack:
        network = Network(stack.enter_context(wire(ethernet=ethernet)))
        stack.callback(network.close)
        controller = stack.enter_context(Controller(by_link=by_link))
        host = Host(network, controller)
        controller.paths.configure(network.wire.name, replace(options, ingress=ingress))
        stack.callback(host.close)
        yield host


@pytest.fixture
def make_host(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeHost]:
    """Make hosts that trace; those that are given no options with 100 probes/s at each hop."""
    from tests.probes.path.wire.frames import Frugal

    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(Frugal(compiler)))  # type: ignore[arg-type]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # or the network would hold up the application
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, switch)

        def make(
            options: PathOptions = PathOptions(),  # noqa: B008 - immutable
            *,
            ethernet: bool = False,
            ingress: Hook | None = None,
            by_link: bool = True,
        ) -> Host:
            return stack.enter_context(
                hosting(options, ethernet=ethernet, ingress=ingress, by_link=by_link)
            )

        yield make


def outcomes_of(rows: Array) -> Counter[int]:
    return Counter(rows["outcome"].tolist())


def sent_by_hop(rows: Array) -> Counter[int]:
    """Probes that left the host."""
    return Counter(rows["hop"][rows["outcome"] != ProbeOutcome.DROPPED].tolist())
