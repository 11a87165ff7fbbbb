"""`--without-traffic` with the kernel's programs: every hop without an application, and pauses."""

from __future__ import annotations

import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from app.lab import netns
from bpf.arrays import Array
from bpf.compiler import Compiler
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.path.options import OwnFlow
from probes.path.records import DESTINATION_HOP, HOP, HOPS_TABLE, ProbeOutcome
from probes.snapshot import Event, Item, Snapshot
from tests.probes.path.active.conftest import MakeRow, Row
from tests.probes.path.wire.frames import FAMILY
from tests.support.compiling import Shared
from tests.support.waiting import wait_for

VERSIONS = pytest.mark.parametrize("version", [4, 6])
PORT = 4000
OF_LINK = 130 << 8
"""ICMPv6 messages from this type on are about neighbours and multicast groups."""
FAST = {"net/ipv4/icmp_ratelimit": "0", "net/ipv6/icmp/ratelimit": "0"}


class Traced:
    """A controller that counts flows and traces paths on the client."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._items: list[Item] = []
        controller.listen(self._items.append)

    def rows(self) -> Array:
        """All rows of dtype HOP."""
        found = (
            item.rows
            for item in tuple(self._items)
            if isinstance(item, Snapshot) and item.metric == HOPS_TABLE
        )
        return np.concatenate([np.empty(0, HOP), *found])

    def wait_for_probes(self, count: int, since_ns: int = 0) -> None:
        """Wait until so many probes since a moment (CLOCK_MONOTONIC) have an outcome."""
        wait_for(lambda: np.count_nonzero(self.rows()["sent_ns"] > since_ns) >= count, 20)

    def warnings(self) -> list[str]:
        events = [item for item in self._items if isinstance(item, Event)]
        return [event.text for event in events if event.severity != "info"]

    def flows(self) -> list[tuple[int, str, str, int]]:
        """Flows that the flow probe counted, except the messages of the link itself.

        Protocol, source and destination in hexadecimal, and packets.
        """
        flows = [
            item for item in self._items if isinstance(item, Snapshot) and item.probe == "flow"
        ]
        rows = np.concatenate([item.rows for item in flows])
        kinds = rows["destination_port"]
        of_link = (rows["protocol"] == socket.IPPROTO_ICMPV6) & (kinds >= OF_LINK)
        of_link |= rows["protocol"] == socket.IPPROTO_IGMP
        return [
            (
                row["protocol"],
                bytes(row["source"]).hex(),
                bytes(row["destination"]).hex(),
                row["packets"],
            )
            for row in rows[~of_link]
        ]


@contextmanager
def tracing(row: Row) -> Iterator[Traced]:
    with Controller(by_link=True) as controller:
        flows = FlowOptions(0.25, "tc")
        controller.start(FLOW_PROBE, row.interface, flows)
        controller.paths.configure(row.interface)
        yield Traced(controller)


@pytest.fixture(autouse=True)
def compile_once(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))


def answered(rows: Array) -> Array:
    found: Array = rows[rows["outcome"] <= ProbeOutcome.UNREACHABLE]
    return found


def quick(row: Row) -> None:
    """Have all nodes answer at any rate."""
    for space in row.spaces.values():
        netns.write_sysctls(space, FAST)


@pytest.mark.slow
@VERSIONS
@pytest.mark.parametrize("text", ["icmp", "udp:33434", "tcp:4000"])
def test_every_hop_and_the_destination_are_measured(
    make_row: MakeRow, version: int, text: str
) -> None:
    row = make_row()
    quick(row)
    with tracing(row) as traced:
        traced.controller.trace(row.server[version], own=OwnFlow.parse(text))
        least = Counter([1, 2, 3, 4] * 5 + [DESTINATION_HOP] * 25)
        wait_for(lambda: least <= Counter(answered(traced.rows())["hop"].tolist()), 20)
        (found,) = traced.controller.traced()
        # An answer that comes after the end of tracing is traffic.
        counted = traced.flows()
        traced.controller.untrace(row.server[version])
        rows = traced.rows()
        warnings = traced.warnings()
    assert (found.packets, found.foreign, found.unprobed, found.own_flow) == (0, 0, {}, text)
    assert found.length == 4
    answers = answered(rows)
    for hop in range(1, 5):
        here = answers[answers["hop"] == hop]
        assert len(here) >= 5
        assert {bytes(each) for each in here["responder"]} == {row.router(hop, version)}
    there = answers[answers["hop"] == DESTINATION_HOP]
    assert len(there) >= 25
    assert len(set(rows["source_port"].tolist())) == 1
    lost = rows[rows["outcome"] == ProbeOutcome.UNANSWERED]
    assert len(lost) == 0
    assert counted == []
    assert warnings == []


@pytest.mark.slow
@VERSIONS
def test_the_flow_pauses_for_an_application(make_row: MakeRow, version: int) -> None:
    row = make_row(routers=2)
    quick(row)
    with row.on_server():
        sink = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
        sink.bind(("", PORT))
    application = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
    application.connect((row.server[version], PORT))
    with sink, application, tracing(row) as traced:
        traced.controller.trace(row.server[version], own=OwnFlow.parse("icmp"))
        traced.wait_for_probes(16)
        began = time.monotonic_ns()
        sent = 0
        for _ in range(200):
            sent += application.send(bytes(8)) == 8
            time.sleep(0.01)
        ended = time.monotonic_ns()
        traced.wait_for_probes(16, ended + 1_000_000_000)
        (found,) = traced.controller.traced()
        traced.controller.untrace(row.server[version])
        rows = traced.rows()
    echo = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    # The flow learns of an application within one of its intervals.
    before, during = rows["sent_ns"] < began, rows["sent_ns"] > began + 100_000_000
    after = rows["sent_ns"] > ended + 1_000_000_000
    protocols = rows["protocol"]
    assert set(protocols[before].tolist()) == set(protocols[after].tolist()) == {echo}
    assert set(protocols[during & (rows["sent_ns"] < ended)].tolist()) == {socket.IPPROTO_UDP}
    assert min(before.sum(), after.sum()) >= 16
    assert found.packets == sent


@pytest.mark.slow
def test_a_ping_of_the_host_is_an_application(make_row: MakeRow) -> None:
    """It gets its replies once each, and the own flow makes room for it."""
    row = make_row(routers=2)
    quick(row)
    with tracing(row) as traced:
        traced.controller.trace(row.server[4], own=OwnFlow.parse("icmp"))
        traced.wait_for_probes(1)
        ping = ["ping", "-c", "40", "-i", "0.05", row.server[4]]
        done = subprocess.run(ping, capture_output=True, text=True, timeout=20)
        (found,) = traced.controller.traced()
    assert "40 received, 0% packet loss" in done.stdout
    assert "DUP" not in done.stdout
    assert found.packets == 40
