"""Probes caused by an application's packets: their number, hops and flows."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest

from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.path.options import PathOptions, TracedFlow
from probes.path.traced import Traced
from tests.probes.path.wire.frames import PEER, UDP, Packet, Tracing, Wire, wire

pytestmark = pytest.mark.timing

PORT = 9
FAST = 100_000
"""Probes per second: each packet of a test causes one."""


class Host:
    """A tracing host; the test decides when its packets are read."""

    def __init__(self, opened: Wire, tracing: Tracing) -> None:
        self.wire, self.tracing, self.probe = opened, tracing, tracing.probe
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def pace(self, interval_ns: int, burst: int) -> None:
        """Let packets cause probes at this rate until rows are read."""
        (target,) = self.probe._targets
        target._kernel["interval_ns"] = interval_ns
        target._kernel["credit_ns"] = (burst - 1) * interval_ns

    def flow(self, port: int, destination: str = PEER[4]) -> socket.socket:
        family = socket.AF_INET6 if ":" in destination else socket.AF_INET
        opened = self._stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        opened.bind(("", port))
        opened.connect((destination, PORT))
        return opened

    def sent(self) -> tuple[list[Packet], list[Packet]]:
        """Probes, and the application's packets, since the last time."""
        packets = self.wire.sent()
        probes = [packet for packet in packets if packet.ttl < 32]
        return probes, [packet for packet in packets if packet.ttl >= 32]

    def traced(self) -> Traced:
        (found,) = self.probe.traced()
        return found


@contextmanager
def hosting(compiler: Compiler, options: PathOptions) -> Iterator[Host]:
    with (
        wire(ethernet=False) as opened,
        closing(Tracing(compiler, opened.name, options)) as tracing,
        closing(Host(opened, tracing)) as host,
    ):
        yield host


def port_of(packet: Packet) -> int:
    return int.from_bytes(packet.transport[:2], "big")


LATE_NS = 3_000_000
"""A pause between two packets that the test did not ask for: this machine was busy."""


@pytest.mark.parametrize(("burst", "intervals"), [(1, 40), (4, 20)])
def test_the_rate_is_reached_and_never_exceeded(
    compiler: Compiler, burst: int, intervals: int
) -> None:
    """S3.4, S3.19: however irregularly packets come; a pause is made up for by the burst alone."""
    interval = 20_000_000
    with hosting(compiler, PathOptions(rate=FAST, burst=burst)) as host:
        host.probe.trace(PEER[4])
        host.pace(interval, burst)
        flow = host.flow(2000)
        random.seed(burst)
        started = time.monotonic_ns()
        stalled, last = 0, started
        while (now := time.monotonic_ns()) - started < intervals * interval:
            stalled += now - last if now - last > LATE_NS else 0
            last = now
            flow.send(b"x")
            time.sleep(random.random() / 1000)
        host.sent()
        for pause in (0.2, 0.15):
            time.sleep(pause)
            flow.send(b"x")
            probes, packets = host.sent()
            assert (len(probes), len(packets)) == (burst, 1)
        host.probe.untrace(PEER[4])
        times = np.sort(host.tracing.rows()["sent_ns"]) - started
        # Nothing makes up for a stall of this machine.
        due = intervals + burst
        reached = (times < intervals * interval).sum()
        assert 0.9 * (due - stalled / interval) <= reached <= due + 1
        # In any time at all: the burst, and one for a packet that came late.
        numbers = np.arange(len(times))
        ahead = numbers[None, :] - numbers[:, None] + 1
        most = (times[None, :] - times[:, None]) / interval + burst + 1
        assert (ahead <= most)[ahead > 0].all()
        hops = Counter(host.probe.latest[0].rows["hop"].tolist())
        assert max(hops.values()) - min(hops.values()) <= 1


def test_hops_and_flows_get_equal_shares(compiler: Compiler) -> None:
    """S3.14, S3.17: each hop one turn in a round, and flows that take turns don't divide them."""
    with hosting(compiler, PathOptions(rate=FAST)) as host:
        host.probe.trace(PEER[4])
        hops = (1, 2, 3, 4, 5, 6)
        host.tracing.force(*hops)
        flows = [host.flow(2000), host.flow(2001)]
        order: list[int] = []
        by_flow: Counter[tuple[int, int]] = Counter()
        for _ in range(300):
            for flow in flows:
                flow.send(b"x")
            probes, packets = host.sent()
            assert (len(probes), len(packets)) == (2, 2)
            order += [probe.ttl for probe in probes]
            by_flow.update((port_of(probe), probe.ttl) for probe in probes)
        for start in range(0, len(order), len(hops)):
            assert sorted(order[start : start + len(hops)]) == list(hops)
        assert len(by_flow) == 2 * len(hops)
        assert min(by_flow.values()) > 25  # of 50


def test_one_flow_or_two_or_every_one(compiler: Compiler) -> None:
    """S3.17."""
    with hosting(compiler, PathOptions(rate=FAST)) as host:
        flows = {port: host.flow(port) for port in (2000, 2001, 2002)}
        chosen = {port: TracedFlow(UDP, port, PORT) for port in flows}

        def probed() -> set[int]:
            """Source ports of the flows of probes, and of rows."""
            host.tracing.force(1)
            for flow in flows.values():
                flow.send(b"x")
            probes, packets = host.sent()
            assert len(packets) == 3
            found = {port_of(probe) for probe in probes}
            host.tracing.rows()
            return found

        host.probe.trace(PEER[4], chosen[2001])
        assert probed() == {2001}
        assert host.traced().flows == (chosen[2001],)
        host.probe.trace(PEER[4], chosen[2001])
        assert probed() == {2001}
        host.probe.trace(PEER[4], chosen[2002])
        assert probed() == {2001, 2002}
        assert host.traced().flows == (chosen[2001], chosen[2002])
        host.probe.untrace(PEER[4], chosen[2001])
        assert probed() == {2002}
        host.probe.trace(PEER[4])
        assert probed() == {2000, 2001, 2002}
        assert host.traced().flows == ()
        with pytest.raises(UsageError, match=r"this flow to 10\.96\.0\.2 is not traced"):
            host.probe.untrace(PEER[4], chosen[2000])
        host.probe.untrace(PEER[4], chosen[2002])
        assert probed() == {2000, 2001, 2002}
        host.probe.untrace(PEER[4])
        assert probed() == set()
        host.probe.trace(PEER[4], chosen[2000])
        assert probed() == {2000}
        host.probe.untrace(PEER[4], chosen[2000])
        assert host.probe.traced() == ()
