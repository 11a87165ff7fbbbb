"""Other programs on the egress hook, before path tracing: no packet is doubled."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from bpf.abi import AttachType
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.links import link_create
from bpf.programs.program import Program
from probes.path.options import Order, PathOptions, TracedFlow
from probes.path.records import ProbeOutcome
from probes.path.targets import TracedDestination
from tests.probes.path.conftest import Host, MakeHost, outcomes_of
from tests.probes.path.wire.frames import PEER, UDP

FAST = PathOptions(rate=100_000, timeout=60)
BPF_F_BEFORE = 1 << 3
DATAGRAMS = 800
REMARKS = """
    skb->mark = 7;
    return TC_ACT_UNSPEC;
"""
REMARKS_MARKED = """
    if (skb->mark)
        skb->mark = 0;
    return TC_ACT_UNSPEC;
"""
PASSES_MARKED = """
    return skb->mark ? TC_ACT_OK : TC_ACT_UNSPEC;
"""
REDIRECTS_MARKED = """
    return skb->mark ? bpf_redirect(1, 0) : TC_ACT_UNSPEC;
"""
DROPS_MARKED = """
    return skb->mark ? TC_ACT_SHOT : TC_ACT_UNSPEC;
"""
MIRRORS = """
    if (skb->mark == 0x77)
        return TC_ACT_UNSPEC;
    volatile struct __sk_buff *marked = skb;
    u32 mark = skb->mark;
    marked->mark = 0x77;
    bpf_clone_redirect(skb, skb->ifindex, 0);
    marked->mark = mark;
    return TC_ACT_UNSPEC;
"""


@pytest.fixture(autouse=True)
def _every_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe all hops at the full rate, though none answers."""
    monkeypatch.setattr(TracedDestination, "decide", lambda *_: None)


@contextmanager
def before(compiler: Compiler, body: str, host: Host) -> Iterator[None]:
    """A program of somebody else, attached later than path tracing and before it in line."""
    source = f'#include "probe.h"\nint foreign(struct __sk_buff *skb) {{{body}}}\n'
    with (
        compiler.compile(source, Hook.TC_EGRESS.prog_type, cflags=["-DHOOK_TC_EGRESS=1"]) as code,
        closing(Program(code, "foreign")) as program,
    ):
        index = socket.if_nametoindex(host.network.wire.name)
        link = link_create(program.fd, index, AttachType.TCX_EGRESS, BPF_F_BEFORE)
        try:
            yield
        finally:
            os.close(link)


def send(host: Host, flow: socket.socket, copies: int = 1) -> None:
    """Send DATAGRAMS datagrams, as fast as the other end of the wire takes them.

    It takes `copies` of each.
    """
    network, deadline = host.network, time.monotonic() + 20
    before = network.packets.total()
    for n in range(DATAGRAMS):
        flow.send(n.to_bytes(8, "big"))
        while network.packets.total() < before + copies * n - 20 and time.monotonic() < deadline:
            time.sleep(0.001)
    while network.packets.total() < before + copies * DATAGRAMS and time.monotonic() < deadline:
        time.sleep(0.001)


def arrived(host: Host) -> tuple[int, int]:
    """Return how many datagrams of applications came to the wire, and how many probes."""
    host.settle()
    return host.network.packets.total(), host.network.probes.total()


@pytest.mark.parametrize("body", [REMARKS, REMARKS_MARKED], ids=["every", "marked"])
@pytest.mark.parametrize("order", Order)
def test_a_program_that_rewrites_marks_makes_no_duplicates(
    make_host: MakeHost, compiler: Compiler, order: Order, body: str
) -> None:
    host = make_host(PathOptions(rate=100_000, timeout=60, order=order))
    host.controller.trace(PEER[4])
    flow = host.open()
    with before(compiler, body, host):
        send(host, flow)
        assert arrived(host) == (DATAGRAMS, 0)
    assert host.network.doubled == []
    host.controller.export("path")
    rows = host.rows()
    assert set(outcomes_of(rows)) == {ProbeOutcome.DROPPED}
    assert len(rows) > 50
    # A busy machine may be late with a window, which is another warning.
    (told,) = (each for each in host.told("warning") if "rewrites packet marks" in each)
    assert host.network.wire.name in told
    assert host.told("error") == []
    send(host, flow)  # the program is gone, and tracing goes on
    assert arrived(host)[1] > 50


@pytest.mark.parametrize("body", [PASSES_MARKED, REDIRECTS_MARKED], ids=["passes", "redirects"])
def test_tracing_stops_when_a_program_lets_a_clone_go_past(
    make_host: MakeHost, compiler: Compiler, body: str
) -> None:
    """One duplicate is sent before that is known, and no second one."""
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    flow = host.open()
    with before(compiler, body, host):
        send(host, flow)
        packets, probes = arrived(host)
        assert probes == 0
        assert DATAGRAMS <= packets <= DATAGRAMS + 1
    (traced,) = host.controller.traced()
    assert traced.sent == 1
    host.controller.export("path")
    (told,) = host.told("error")
    assert f"tracing of {PEER[4]} stopped" in told
    send(host, flow)
    host.controller.trace(PEER[4], TracedFlow(UDP, 1, 2))  # one more flow does not resume it
    send(host, flow)
    assert arrived(host) == (packets + 2 * DATAGRAMS, 0)
    host.controller.untrace(PEER[4])
    host.controller.trace(PEER[4])
    send(host, flow)
    assert arrived(host)[1] > 50
    host.controller.export("path")
    assert len(host.told("error")) == 1


def test_a_program_that_drops_clones_costs_probes_only(
    make_host: MakeHost, compiler: Compiler
) -> None:
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    with before(compiler, DROPS_MARKED, host):
        send(host, host.open())
        assert arrived(host) == (DATAGRAMS, 0)
    host.controller.export("path")
    assert set(outcomes_of(host.rows())) == {ProbeOutcome.DROPPED}
    assert host.told("warning") == host.told("error") == []


@pytest.mark.parametrize("order", Order)
def test_a_program_that_mirrors_sends_each_packet_twice_and_no_clone(
    make_host: MakeHost, compiler: Compiler, order: Order
) -> None:
    """Its copies of clones, which have another mark, come while a clone is under way."""
    host = make_host(PathOptions(rate=100_000, timeout=60, order=order))
    host.controller.trace(PEER[4])
    with before(compiler, MIRRORS, host):
        send(host, host.open(), copies=2)
        packets, probes = arrived(host)
    assert packets == 2 * DATAGRAMS
    assert probes > 50


def test_packets_pass_while_another_cpu_sends_a_clone(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    host.probe._maps[0].view()["clones"] = 1  # as that CPU has it for a microsecond or two
    send(host, host.open())
    packets, probes = arrived(host)
    assert packets == DATAGRAMS
    assert probes > 50
