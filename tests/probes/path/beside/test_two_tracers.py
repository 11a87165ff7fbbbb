"""Two tracers of one destination on one interface: each has its own answers, and knows."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.path.options import Order
from probes.path.records import DESTINATION_HOP, ProbeOutcome
from probes.path.slots import InFlight
from probes.path.traced import Traced
from tests.probes.path.network import Network, connect
from tests.probes.path.wire.frames import (
    ECHO,
    ECHO_REQUEST,
    FAMILY,
    OTHER_SECRETS,
    PEER,
    ROUTER,
    SECRETS,
    TCP,
    Tracing,
    Wire,
    tracing_options,
    wire,
    with_checksum,
)

ROUTERS = 4
PACKETS = 200
FULL, LEAST = 500, 28
"""Bytes that routers quote; the least is of IPv4."""


@dataclass
class Tracers:
    """Two tracers of PEER on a TUN: every packet causes a probe of each tracer."""

    wire: Wire
    both: list[Tracing]

    def start(self) -> None:
        for tracing in self.both:
            tracing.force(*range(1, ROUTERS + 1))
            for target in tracing.probe._targets:
                target._kernel["sequence"] = target.sequence | 0xFFFF  # the same, modulo 2^16
                target._kernel["foreign_ns"] = 1
                earlier = target.flight
                target.flight = InFlight(target.destination, earlier._slots, target._kernel)

    def traced(self, tracing: Tracing, version: int) -> Traced:
        (found,) = (t for t in tracing.probe.traced() if t.destination == PEER[version])
        return found

    def rows(self, tracing: Tracing, version: int) -> Array:
        rows = tracing.rows()
        of_probes = rows["hop"] < DESTINATION_HOP
        found: Array = rows[of_probes & (rows["version"] == version)]
        return found


@pytest.fixture(scope="module", params=[
    (Order.PROBE, Hook.TC_INGRESS), (Order.APPLICATION, Hook.XDP),
], ids=["probe-tc", "application-xdp"])  # fmt: skip
def tracers(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[Tracers]:
    """The first has XDP or TC and any order, the second TC and probes first."""
    order, hook = request.param
    with wire(ethernet=True) as opened:
        made: list[Tracing] = []
        try:
            options = tracing_options(order=order)
            made.append(Tracing(compiler, opened.name, options, hook, SECRETS))
            options = tracing_options()
            made.append(Tracing(compiler, opened.name, options, Hook.TC_INGRESS, OTHER_SECRETS))
            for tracing in made:
                for destination in PEER.values():
                    tracing.probe.trace(destination)
            yield Tracers(opened, made)
        finally:
            for tracing in made:
                tracing.close()


@pytest.mark.slow
@pytest.mark.parametrize("quote", [FULL, LEAST], ids=["full quotes", "least quotes"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "echo"])
def test_each_has_its_own_answers(
    tracers: Tracers, protocol: str, version: int, quote: int
) -> None:
    """Neither clones the probes of the other; also with equal sequence numbers."""
    if version == 6 and quote == LEAST:
        pytest.skip("IPv6 routers quote more")
    network = Network(tracers.wire, ROUTERS, quote=quote)
    if protocol == "tcp":
        sock = connect(tracers.wire, version)
        sock.setsockopt(TCP, socket.TCP_NODELAY, 1)
    elif protocol == "udp":
        sock = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
    else:
        sock = socket.socket(FAMILY[version], socket.SOCK_RAW, ECHO[version])
    with sock:
        if protocol != "tcp":
            sock.connect((PEER[version], 4000 if protocol == "udp" else 0))
        network.play()
        for tracing in tracers.both:
            tracing.rows()
        tracers.start()
        before = [tracers.traced(tracing, version).unmatched for tracing in tracers.both]
        delivered = 0
        count = 8 if protocol == "tcp" else PACKETS  # a window of segments
        for n in range(count):
            header = struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 77, n)
            sock.send(with_checksum(header, 2) if protocol == "echo" else bytes(100))
            delivered += len(network.play())
        assert delivered == count
    for tracing, unmatched in zip(tracers.both, before, strict=True):
        rows = tracers.rows(tracing, version)
        assert Counter(rows["outcome"].tolist()) == {ProbeOutcome.ANSWERED: count}
        size = 4 if version == 4 else 16
        for row in rows:
            expected = ipaddress.ip_address(ROUTER[version] % row["hop"])
            assert bytes(row["responder"])[:size] == expected.packed
        assert not rows["altered"].any()
        assert len(set(rows["sequence"] & 0xFFFF)) == count
        traced = tracers.traced(tracing, version)
        assert traced.foreign >= count
        assert quote == LEAST or traced.unmatched == unmatched
