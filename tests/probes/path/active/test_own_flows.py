"""Flows of the tracer's own through real routers to real hosts."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app.lab import netns
from probes.path.active.own_flows import OwnFlows
from probes.path.options import OwnFlow, OwnProtocol
from probes.path.records import DESTINATION_HOP, HOP, Array, MeasuredBy, ProbeOutcome
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


@contextmanager
def flows(row: Row, timeout: float = 0.5) -> Iterator[OwnFlows]:
    opened = OwnFlows(row.interface, round(timeout * 1e9), KEY)
    try:
        yield opened
    finally:
        opened.close()


def running() -> bool:
    """Whether the thread that sends exists."""
    return "own flows" in {thread.name for thread in threading.enumerate()}


def rows_of(own: OwnFlows, seconds: float) -> Array:
    """Rows of so many seconds."""
    parts: list[Array] = [np.empty(0, HOP)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        parts.append(own.rows())
    return np.concatenate(parts)


def some_rows(own: OwnFlows, count: int) -> Array:
    """Rows until there are so many."""
    rows: Array = np.empty(0, HOP)

    def are_enough() -> bool:
        nonlocal rows
        rows = np.concatenate((rows, own.rows()))
        return len(rows) >= count

    wait_for(are_enough)
    return rows


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
        found = some_rows(own, 20)
        last = own.stop(destination)
        with row.on_server():
            sockets = Path("/proc/thread-self/net/tcp6").read_text(encoding="ascii").split()
    assert sockets.count(HALF_OPEN) == 0
    assert set(found["outcome"].tolist()) == {ProbeOutcome.ANSWERED}
    rate = 10 if text.startswith("tcp") else 20
    seconds = (found["sent_ns"].max() - found["sent_ns"].min()) / 1e9
    assert len(found) <= seconds * rate + 2
    assert len(last) <= 1
    assert set(found["measured_by"].tolist()) == {measured_by}
    assert set(found["hop"].tolist()) == {DESTINATION_HOP}
    assert {bytes(each) for each in found["responder"]} == {destination.address}
    assert target.own
    keys = {(row["protocol"], row["source_port"]) for row in found}
    assert keys == {target.own[:2]}
    took = found["received_ns"] - found["sent_ns"]
    assert 0 < took.min() < 2e6
    assert took[0] < 80e6  # by the kernel's time: rows are read more seldom
    assert found["sequence"].tolist() == list(range(len(found)))


def test_no_connection_is_accepted_and_resets_answer_the_server(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    with row.on_server():
        listener = socket.create_server(("", PORT))
    listener.setblocking(False)
    with listener, flows(row) as own:
        own.start(row.destination(4), OwnFlow.parse("tcp:4000"), Target())
        some_rows(own, 9)
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
    with opened, flows(row) as own:
        own.start(row.destination(version), OwnFlow.parse("udp:4000"), Target())
        opened.settimeout(10)
        payloads = [opened.recv(100) for _ in range(11)]
        assert len(own.rows()) == 0
    assert {len(payload) for payload in payloads} == {8}
    assert len({payload[:4] for payload in payloads}) == 1


def test_the_flow_pauses_while_an_application_sends(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    target = Target()
    with flows(row) as own:
        own.start(row.destination(4), OwnFlow.parse("icmp"), target)
        some_rows(own, 9)
        for _ in range(10):
            target.packets += 1
            time.sleep(0.1)
        own.rows()
        during = rows_of(own, 0.8)
        some_rows(own, 9)
    assert len(during) == 0


def test_a_destination_that_vanishes_is_loss_and_one_that_never_answered_is_not(
    make_row: MakeRow,
) -> None:
    row = make_row(routers=1)
    with flows(row, timeout=0.2) as own:
        own.start(row.destination(4), OwnFlow.parse("icmp"), Target())
        some_rows(own, 5)
        row.run("server", "ip", "link", "set", "eth0", "down")
        lost = 0

        def are_lost() -> bool:
            nonlocal lost
            lost += int(np.count_nonzero(own.rows()["outcome"] == ProbeOutcome.UNANSWERED))
            return lost > 10

        wait_for(are_lost)
        never = own.stop(row.destination(4))
        own.start(row.destination(4), OwnFlow.parse("icmp"), Target())
        silent = rows_of(own, 1.6)
    assert set(never["outcome"].tolist()) <= {ProbeOutcome.IN_FLIGHT}
    assert len(silent) == 0


def test_a_failure_is_told_once_and_ends_by_itself(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    row.run("client", "ip", "-6", "route", "del", "default")
    with flows(row) as own:
        own.start(row.destination(6), OwnFlow.parse("icmp"), Target())
        words = f"cannot send icmp packets to {row.server[6]}: {os.strerror(errno.ENETUNREACH)}"
        events: list[tuple[str, str]] = []

        def is_told() -> bool:
            events.extend(own.events())
            return bool(events)

        wait_for(is_told)
        assert events == [("warning", words)]
        time.sleep(0.2)
        assert own.events() == []
        row.run("client", "ip", "route", "add", "default", "via", row.plan.links[0].ipv6(2))
        some_rows(own, 6)
        assert own.events() == []


def test_the_end_closes_every_socket_and_the_thread(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    before = set(os.listdir("/proc/self/fd"))
    with flows(row) as own:
        assert not running()
        for version, text in ((4, "tcp"), (6, "udp")):
            own.start(row.destination(version), OwnFlow.parse(text), Target())
        wait_for(lambda: len(os.listdir("/proc/self/fd")) >= len(before) + 3)
        assert len(os.listdir("/proc/self/fd")) == len(before) + 3
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
