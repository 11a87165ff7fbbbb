"""Flows of the tracer's own through real routers to real hosts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.lab import netns
from bpf.arrays import Array
from bpf.attach.interface import find
from probes.path.active.own_flows import OwnFlows, _Flow
from probes.path.active.own_sockets import OwnAnswer, OwnSocket
from probes.path.options import OwnFlow, OwnProtocol
from probes.path.records import DESTINATION_HOP, HOP, MeasuredBy, ProbeOutcome
from probes.path.targets import destination_of
from tests.probes.path.active.conftest import KEY, MakeRow, Row
from tests.probes.path.test_destination import counts
from tests.support.waiting import wait_for

VERSIONS = pytest.mark.parametrize("version", [4, 6])
PORT = 4000
HALF_OPEN = "03"
"""SYN_RECV in /proc/net/tcp."""


class Target:
    """A traced destination without kernel: the test is the application."""

    def __init__(self) -> None:
        self.packets = 0
        self.own: tuple[int, int, int] | None = None

    def application_packets(self) -> int:
        return self.packets

    def take_own(self, protocol: int, source_port: int, destination_port: int) -> None:
        self.own = protocol, source_port, destination_port


@contextlib.contextmanager
def flows(row: Row, timeout: float = 0.5) -> Iterator[OwnFlows]:
    opened = OwnFlows(find(row.interface), round(timeout * 1e9), KEY)
    try:
        yield opened
    finally:
        opened.close()


def running() -> bool:
    """Whether the thread that sends exists."""
    return "own flows" in {thread.name for thread in threading.enumerate()}


def rows_of(own: OwnFlows, seconds: float) -> Array:
    parts: list[Array] = [np.empty(0, HOP)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        parts.append(own.rows())
    return np.concatenate(parts)


def rows_until(own: OwnFlows, count: int) -> Array:
    """At least `count` rows, after at most 20 s."""
    parts: list[Array] = [np.empty(0, HOP)]
    end = time.monotonic() + 20
    while sum(map(len, parts)) < count:
        assert time.monotonic() < end, parts
        time.sleep(0.02)
        parts.append(own.rows())
    return np.concatenate(parts)


class Sender(OwnSocket):
    """A socket whose packets nobody answers."""

    measured_by = MeasuredBy.ICMP_ECHO
    protocol = socket.IPPROTO_ICMP
    is_stale = False

    def __init__(self) -> None:
        self.source_port = self.destination_port = 7
        self.sent = 0

    def send(self) -> tuple[int, int]:
        self.sent += 1
        return self.sent, 0

    def answers(self) -> list[OwnAnswer]:
        return []

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("text", "rate"), [("icmp", 20), ("udp", 20), ("tcp", 10)])
def test_a_late_thread_keeps_the_rate_and_sends_no_burst(text: str, rate: int) -> None:
    opened = Sender()
    flow = _Flow(destination_of("10.94.5.2"), OwnFlow.parse(text), Target(), lambda: opened)
    begin, second = flow.next_ns, 10**9

    def run(first_ms: int, last_ms: int, step_ms: int) -> int:
        """Return the packets of a thread that wakes up every `step_ms`."""
        before = opened.sent
        for now_ms in range(first_ms, last_ms, step_ms):
            flow.step(begin + now_ms * 1_000_000, second)
        return opened.sent - before

    assert run(0, 1000, 1) == 0
    run(1000, 2000, 1)
    assert run(2000, 4000, 1) == 2 * rate
    assert run(4000, 6000, 40 if rate == 20 else 80) >= 1.9 * rate, "each wake-up is late"
    assert run(9000, 9001, 1) == 1, "the machine stood still"
    assert run(9001, 11001, 1) == 2 * rate


@VERSIONS
@pytest.mark.parametrize(
    ("text", "measured_by"),
    [
        ("icmp", MeasuredBy.ICMP_ECHO),
        ("udp", MeasuredBy.REFUSAL),
        ("tcp:4000", MeasuredBy.TCP_HANDSHAKE),
        ("tcp", MeasuredBy.TCP_HANDSHAKE),
    ],
)
def test_the_destination_is_measured(
    make_row: MakeRow, version: int, text: str, measured_by: MeasuredBy
) -> None:
    """By replies, by refusals of an open and of a closed port; no SYN stays half open."""
    row = make_row()
    netns.write_sysctls(
        row.spaces["server"], {"net/ipv4/icmp_ratelimit": "0", "net/ipv6/icmp/ratelimit": "0"}
    )
    with row.on_server():
        listener = socket.create_server(("", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    target = Target()
    destination = row.destination(version)
    with listener, flows(row) as own:
        own.start(destination, OwnFlow.parse(text), target)
        found = rows_until(own, 8)
        last = own.stop(destination)
        with row.on_server():
            sockets = Path("/proc/thread-self/net/tcp6").read_text(encoding="ascii").split()
    assert sockets.count(HALF_OPEN) == 0
    assert set(found["outcome"].tolist()) == {ProbeOutcome.ANSWERED}
    # A busy machine sends fewer packets, but never more.
    rate = 10 if text.startswith("tcp") else 20
    seconds = (found["sent_ns"].max() - found["sent_ns"].min()) / 1e9
    assert len(found) <= seconds * rate + 2
    assert set(last["outcome"].tolist()) <= {ProbeOutcome.IN_FLIGHT, ProbeOutcome.ANSWERED}
    assert set(found["measured_by"].tolist()) == {measured_by}
    assert set(found["hop"].tolist()) == {DESTINATION_HOP}
    assert {bytes(each) for each in found["responder"]} == {destination.address}
    assert target.own
    keys = {(row["protocol"], row["source_port"]) for row in found}
    assert keys == {target.own[:2]}
    took = found["received_ns"] - found["sent_ns"]
    assert 0 < took.min() <= np.median(took) < 2e6
    assert took[0] < 20e6  # by the kernel's time
    assert found["sequence"].tolist() == list(range(len(found)))


@pytest.mark.slow
def test_no_connection_is_accepted_and_resets_answer_the_server(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    with row.on_server():
        listener = socket.create_server(("", PORT))
    listener.setblocking(False)
    with listener, flows(row) as own:
        own.start(row.destination(4), OwnFlow.parse("tcp:4000"), Target())
        rows_until(own, 8)
        with pytest.raises(BlockingIOError):
            listener.accept()
    with row.on_server():
        assert counts()["TcpPassiveOpens"] == 0


@VERSIONS
def test_an_open_port_gets_only_marks(make_row: MakeRow, version: int) -> None:
    """A datagram to an open port is eight bytes, and measures nothing."""
    row = make_row(routers=1)
    with row.on_server():
        opened = socket.socket(
            socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM
        )
        opened.bind(("", PORT))
    opened.setblocking(False)
    with opened, flows(row) as own:
        own.start(row.destination(version), OwnFlow.parse("udp:4000"), Target())
        payloads: list[bytes] = []

        def receive() -> bool:
            with contextlib.suppress(BlockingIOError):
                payloads.append(opened.recv(100))
            return len(payloads) == 10

        wait_for(receive, 20)
        assert len(own.rows()) == 0
    assert {len(payload) for payload in payloads} == {8}
    assert len({payload[:4] for payload in payloads}) == 1


@pytest.mark.slow
def test_the_flow_pauses_while_an_application_sends(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    target = Target()
    with flows(row) as own:
        own.start(row.destination(4), OwnFlow.parse("icmp"), target)
        rows_until(own, 8)
        for _ in range(10):
            target.packets += 1
            began_ns = time.monotonic_ns()
            time.sleep(0.1)
        sent = rows_until(own, 8)["sent_ns"] - began_ns
    # A packet may be on its way while the application begins.
    assert sorted(sent[sent > -800_000_000])[0] >= 900_000_000


@pytest.mark.slow
def test_a_destination_that_vanishes_is_loss_and_one_that_never_answered_is_not(
    make_row: MakeRow,
) -> None:
    row = make_row(routers=1)
    with flows(row, timeout=0.2) as own:
        own.start(row.destination(4), OwnFlow.parse("icmp"), Target())
        rows_until(own, 2)
        row.run("server", "ip", "link", "set", "eth0", "down")
        own.rows()
        gone = rows_until(own, 12)
        never = own.stop(row.destination(4))
        own.start(row.destination(4), OwnFlow.parse("icmp"), Target())
        silent = rows_of(own, 1.6)
    # One packet may have had its answer just before.
    assert (gone["outcome"] == ProbeOutcome.UNANSWERED).sum() > 10
    assert set(never["outcome"].tolist()) <= {ProbeOutcome.IN_FLIGHT}
    assert len(silent) == 0


@pytest.mark.slow
def test_a_failure_is_told_once_and_ends_by_itself(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    row.run("client", "ip", "-6", "route", "del", "default")
    with flows(row) as own:
        own.start(row.destination(6), OwnFlow.parse("icmp"), Target())
        told: list[tuple[str, str]] = []

        def is_told() -> bool:
            told.extend(own.events())
            return bool(told)

        wait_for(is_told, 20)
        words = f"cannot send icmp packets to {row.server[6]}: {os.strerror(errno.ENETUNREACH)}"
        assert told == [("warning", words)]
        assert own.events() == []
        row.run("client", "ip", "route", "add", "default", "via", row.plan.links[0].ipv6(2))
        rows_until(own, 5)
        assert own.events() == []


def test_the_end_closes_every_socket_and_the_thread(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    before = set(os.listdir("/proc/self/fd"))
    with flows(row) as own:
        assert not running()
        for version, text in ((4, "tcp"), (6, "udp")):
            own.start(row.destination(version), OwnFlow.parse(text), Target())
        wait_for(lambda: len(os.listdir("/proc/self/fd")) == len(before) + 3, 20)
        assert running()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not running()


@pytest.mark.parametrize(
    ("text", "flow"),
    [
        ("icmp", OwnFlow(OwnProtocol.ICMP, 0)),
        ("udp", OwnFlow(OwnProtocol.UDP, 33434)),
        ("udp:53", OwnFlow(OwnProtocol.UDP, 53)),
        ("tcp", OwnFlow(OwnProtocol.TCP, 443)),
        ("tcp:80", OwnFlow(OwnProtocol.TCP, 80)),
    ],
)
def test_flows_are_parsed(text: str, flow: OwnFlow) -> None:
    assert OwnFlow.parse(text) == flow
    assert OwnFlow.parse(str(flow)) == flow
