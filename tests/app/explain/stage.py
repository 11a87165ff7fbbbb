"""One network in which many conversations play at once, each with its own truth.

    client - r1 - r2 - r3 - r4 - r5 - server

Each situation has another address of the server and another port. So all play at once.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.lab import netns
from app.lab.plan import CLIENT, SERVER
from tests.topologies.network import PLAIN, ROUTERS, Topology, topology

_ROOT = Path(__file__).parents[3]
RATE = 500_000
"""Bytes/s of transfers that fill a queue."""
Play = Callable[["Stage"], object]


@dataclass(frozen=True)
class Situation:
    """One conversation, and its truth."""

    name: str
    play: Play
    sentence: str
    """Pattern of the first line; `{far}` is the address of the far end."""
    place: str = ""
    """Pattern of the place."""
    limit: str = ""
    """Label of the verdict; empty: any."""
    udp: bool = False
    port: int = 0
    """The server's; 0: by the number of the situation."""
    neighbour: bool = False
    """Whether the far end is the first router."""
    queued: bool = False
    """Whether an event may tell of a queue."""
    of_windows: tuple[str, ...] = ()
    """Labels of the verdict on screen 3 and in tables, besides its own: they see windows with
    packets, and the explanation sees the pauses between them."""


class Stage:
    """The network as one situation sees it: an address, a port, and threads that play."""

    def __init__(
        self, network: Topology, events: tuple[threading.Event, threading.Event], number: int,
        what: Situation,
    ) -> None:  # fmt: skip
        self.network = network
        self.watched, self.over = events
        """The watch has begun; and the situation ends."""
        self.address = network.plan.addresses("r1").ipv4 if what.neighbour else f"10.99.0.{number}"
        self.port = what.port or 7000 + number
        self.far = "r1" if what.neighbour else SERVER
        self.opened = ExitStack()
        if not what.neighbour:
            network.run(SERVER, f"ip addr add {self.address}/32 dev lo")

    def go(self, run: Callable[..., object], *arguments: object) -> None:
        """Run a function in a thread until its socket is closed."""

        def quiet() -> None:
            with suppress(OSError, ValueError):
                run(*arguments)

        threading.Thread(target=quiet, daemon=True).start()

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something so many seconds after the watch has begun."""

        def wait() -> None:
            self.watched.wait()
            if not self.over.wait(seconds):
                action()

        self.go(wait)

    def every(self, seconds: float, action: Callable[[], object]) -> None:
        """Repeat an action in a thread; the network may refuse it."""

        def repeat() -> None:
            while not self.over.wait(seconds):
                with suppress(OSError):
                    action()

        self.go(repeat)

    def open(self, node: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
        with netns.inside(self.network.nodes[node]):
            return self.opened.enter_context(socket.socket(socket.AF_INET, kind))

    def serve(self, answer: Callable[[socket.socket], object], rcvbuf: int = 0) -> None:
        """Run a function for each connection."""
        listener = self.listen(rcvbuf)

        def accept() -> None:
            while True:
                self.go(answer, self.opened.enter_context(listener.accept()[0]))

        self.go(accept)

    def listen(self, rcvbuf: int = 0, backlog: int = 16) -> socket.socket:
        listener = self.open(self.far)
        if rcvbuf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        listener.bind((self.address, self.port))
        listener.listen(backlog)
        return listener

    def connect(self) -> socket.socket:
        near = self.open(CLIENT)
        near.connect((self.address, self.port))
        return near

    def attempt(self) -> None:
        """Open a connection, and close it at once."""
        with netns.inside(self.network.nodes[CLIENT]):
            near = socket.socket()
        with near:
            near.settimeout(1.5)
            near.connect((self.address, self.port))

    def datagrams(self) -> tuple[socket.socket, socket.socket]:
        """Return the client's and the server's socket."""
        near, far = (self.open(node, socket.SOCK_DGRAM) for node in (CLIENT, SERVER))
        far.bind((self.address, self.port))
        near.connect((self.address, self.port))
        near.settimeout(3)
        return near, far

    def slow(self, node: str, device: str, *matches: str) -> None:
        """Send matching packets out of a device through a slow queue."""
        shape(self.network, node, device, self.port, matches)


def shape(network: Topology, node: str, device: str, number: int, matches: Sequence[str]) -> None:
    """Add a class with a queue to the device."""
    if "htb" not in network.run(node, f"tc qdisc show dev {device}"):
        network.run(
            node, f"tc qdisc add dev {device} root handle 1: htb default 1",
            f"tc class add dev {device} parent 1: classid 1:1 htb rate 10gbit",
            f"nft add table ip {device}",
            f"nft 'add chain ip {device} c {{ type filter hook postrouting priority 0; }}'",
        )  # fmt: skip
    network.run(
        node,
        f"tc class add dev {device} parent 1: classid 1:{number} htb rate {RATE * 8} burst 4k",
        f"tc qdisc add dev {device} parent 1:{number} bfifo limit 60000",
        *(f"nft add rule ip {device} c oifname {device} {match} meta priority set 1:{number}"
          for match in matches),
    )  # fmt: skip


@contextmanager
def playing(situations: Sequence[Situation]) -> Iterator[Mapping[str, Stage]]:
    """Play all situations until the block ends."""
    watched, over = events = threading.Event(), threading.Event()
    with ExitStack() as stack:
        network = stack.enter_context(topology(PLAIN))
        for hop, node in enumerate((CLIENT, *(f"r{n}" for n in range(1, ROUTERS + 1)))):
            network.run(node, f"ip route add 10.99.0.0/16 via 10.94.{hop}.2")
        stack.callback(over.set)
        stack.callback(watched.set)
        stages = {}
        for number, each in enumerate(situations, 1):
            stage = stages[each.name] = Stage(network, events, number, each)
            stack.enter_context(stage.opened)
            each.play(stage)
        yield stages


def watch(
    stages: Mapping[str, Stage], filters: Mapping[str, str], seconds: float, cpu: str = "off"
) -> Any:
    """Run one watch in the client, with a budget of CPU; return the explanation of each filter, and
    the warnings."""
    stage = next(iter(stages.values()))
    router = stage.network.plan.addresses("r1").ipv4
    arguments = [stage.network.interface, router, str(seconds), json.dumps(filters), cpu]
    # Not isolated: the program is no part of the product.
    command = [sys.executable, "-m", "tests.app.explain.watch", *arguments]
    process = stage.network.start(CLIENT, command, stdout=subprocess.PIPE, cwd=_ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        stage.watched.set()
        output, _ = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0
    return json.loads(output)
