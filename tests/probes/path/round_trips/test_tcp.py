"""Round trips of the flow itself against the cables' delays, with real TCP, UDP and ICMP."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from app.lab import netns
from app.lab.network import Lab
from app.lab.plan import LabPlan
from bpf.arrays import Array
from probes.path.records import DESTINATION_HOP, MeasuredBy, ProbeOutcome
from tests.probes.path.test_truth import tracing
from tests.support.lab_truth import delay

pytestmark = [pytest.mark.timing, pytest.mark.slow]

PLAN = LabPlan(bottleneck_bits=0, delays={1: 0.005, 3: 0.01, 5: 0.002})
TRUTH_MS = delay(PLAN, PLAN.routers + 1) * 1e3
ALLOWED_MS = 0.5
PORT = 5201
"""Of the first application."""
CONNECTIONS = 7
"""Of each version. One is used: handshakes are measured once a connection."""
Serve = Callable[[socket.socket], None]
Use = Callable[[socket.socket, float], None]


@contextmanager
def serving(lab: Lab, serve: Serve, port: int) -> Iterator[None]:
    """A TCP server in the lab, with a thread for each connection."""
    server = lab.open_namespace("server")
    with netns.inside(server):
        listening = socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=50
        )
    os.close(server)

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(connection)

    def run() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listening.accept()[:1], daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    with listening:
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)


class Ports:
    """Source ports whose flows to one destination do not meet in the kernel's exchanges.

    A flow has two possible places (round_trip.h). A third flow of two places is not timed.
    """

    def __init__(self, first: int) -> None:
        self._taken: set[int] = set()
        self._next = first

    def take(self, destination_port: int) -> int:
        while True:
            self._next += 1
            ports = int.from_bytes(struct.pack("!HH", self._next, destination_port), "little")
            places = (socket.IPPROTO_TCP << 32 | ports) * 0x9E3779B97F4A7C15 % (1 << 64) >> 58
            if places not in self._taken:
                self._taken.add(places)
                return self._next


def connected(address: str, port: int, source_port: int) -> socket.socket:
    sock = socket.create_connection((address, port), source_address=("", source_port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def discard(connection: socket.socket) -> None:
    while connection.recv(1 << 18):
        pass


def respond(connection: socket.socket) -> None:
    """Answer each byte at once, as an editor behind ssh."""
    while got := connection.recv(1):
        connection.sendall(got)


def think(connection: socket.socket) -> None:
    """Answer after 15 ms, as a database."""
    while got := connection.recv(1):
        time.sleep(0.015)
        connection.sendall(got)


def pour(connection: socket.socket) -> None:
    """Send all the time, from another process: the threads of this one must not delay it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
    connection.setblocking(True)
    fd = connection.fileno()
    subprocess.run(["dd", "if=/dev/zero", "bs=4k"], stdout=fd, stderr=subprocess.DEVNULL)


def upload(sock: socket.socket, end: float) -> None:
    while time.monotonic() < end:
        sock.sendall(bytes(8 << 10))
        time.sleep(0.005)


def type_keys(sock: socket.socket, end: float) -> None:
    while time.monotonic() < end:
        sock.sendall(b"k")
        time.sleep(0.02)


def ask(sock: socket.socket, end: float) -> None:
    while time.monotonic() < end:
        sock.sendall(b"q")
        sock.recv(1)


def download(sock: socket.socket, end: float) -> None:
    while time.monotonic() < end:
        sock.recv(1 << 16)


def of(rows: Array, version: int, method: MeasuredBy) -> Array:
    mine = (rows["version"] == version) & (rows["measured_by"] == method)
    return rows.take(np.flatnonzero(mine))


def errors_ms(rows: Array, truth_ms: float = TRUTH_MS) -> Array:
    """The difference to the truth of all rows with a time."""
    timed = rows[rows["received_ns"] > 0]
    result: Array = (timed["received_ns"] - timed["sent_ns"]) / 1e6 - truth_ms
    return result


def told(name: str, rows: Array, truth_ms: float = TRUTH_MS) -> float:
    """The median error; prints the numbers."""
    errors = errors_ms(rows, truth_ms)
    if not len(errors):
        return float("nan")
    tenths = np.percentile(errors, (10, 50, 90)).round(3)
    print(f"{name}: {len(errors)} of {len(rows)} with a time, errors ms {tenths}")
    return float(np.median(errors))


APPLICATIONS: dict[str, tuple[Serve, Use]] = {
    "upload": (discard, upload),
    "reports": (discard, type_keys),
    "ssh": (respond, type_keys),
    "questions": (respond, ask),
    "slow answers": (think, ask),
    "download": (pour, download),
}


@pytest.fixture(scope="module", params=[True, False], ids=["timestamps", "plain"])
def measured(request: pytest.FixtureRequest) -> tuple[bool, Array]:
    """Whether TCP has timestamps, and rows at the destination of all applications."""
    clocks: bool = request.param
    return clocks, measure(clocks)


def measure(clocks: bool) -> Array:
    """Rows at the destination of all applications.

    Each application has its own port. The gentle ones run at the same time.
    """
    with tracing(PLAN) as traced:
        lab = traced.lab
        for node in ("client", "server"):
            space = lab.open_namespace(node)
            netns.write_sysctls(space, {"net/ipv4/tcp_timestamps": "1" if clocks else "0"})
            os.close(space)
        addresses = (lab.server_ipv4, lab.server_ipv6)
        for address in addresses:
            traced.controller.trace(address)
        gentle = [name for name, (serve, _) in APPLICATIONS.items() if serve is not pour]
        ports = {address: Ports(20_000 * n) for n, address in enumerate(addresses, 1)}
        for names in (gentle, APPLICATIONS.keys() - gentle):
            run(lab, ports, names)
        time.sleep(0.1)
        rows = traced.finish()
    assert not any("31" in said for _, said in traced.events), traced.events
    found: Array = rows[rows["hop"] == DESTINATION_HOP]
    return found


def run(lab: Lab, ports: Mapping[str, Ports], names: Iterable[str]) -> None:
    """Have clients of IPv4 and IPv6 use applications for two seconds."""
    with ExitStack() as stack:
        used: list[tuple[Use, socket.socket]] = []
        for name in names:
            serve, use = APPLICATIONS[name]
            port = PORT + list(APPLICATIONS).index(name)
            stack.enter_context(serving(lab, serve, port))
            opened = [
                stack.enter_context(connected(address, port, free.take(port)))
                for _ in range(CONNECTIONS)
                for address, free in ports.items()
            ]
            used += [(use, sock) for sock in opened[-len(ports) :]]
        end = time.monotonic() + 2
        threads = [threading.Thread(target=use, args=(sock, end)) for use, sock in used]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("application", APPLICATIONS)
def test_round_trips_of_tcp_are_those_of_the_cables(
    measured: tuple[bool, Array], application: str
) -> None:
    """The time of a delayed acknowledgement or of a server that thinks is none of the path."""
    clocks, rows = measured
    rows = rows[rows["destination_port"] == PORT + list(APPLICATIONS).index(application)]
    serve, use = APPLICATIONS[application]
    bulk_down = serve is pour
    for version in (4, 6):
        handshakes = of(rows, version, MeasuredBy.TCP_HANDSHAKE)
        assert len(handshakes) == CONNECTIONS
        assert abs(told(f"v{version} handshake", handshakes)) < ALLOWED_MS
        method = MeasuredBy.TCP_TIMESTAMP if bulk_down else MeasuredBy.TCP_ACK
        mine = of(rows, version, method)
        error = told(f"v{version} {use.__name__}", mine)
        if bulk_down and not clocks:
            assert not len(mine)
            continue
        assert len(mine) > 10
        assert (mine["outcome"] == ProbeOutcome.ANSWERED).all()
        # The first answers come at once: Linux delays none at a connection's begin.
        assert len(errors_ms(mine)) > (0 if serve is think else 10)
        # A paced download's data may wait for the server's next burst.
        assert abs(error) < (2 if bulk_down else 1) * ALLOWED_MS
        assert ((mine["remote_clock"] > 0) == clocks).all()
