"""Probes and their answers are no traffic: neither flow tables nor the monitor count them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.flow.records import FlowDirection
from probes.monitor.options import MonitorOptions
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.path.options import Order, PathOptions
from probes.snapshot import Item, Snapshot
from tests.probes.path.conftest import Host, MakeHost
from tests.probes.path.wire.frames import ECHO, OTHER_SECRETS, PEER, Frugal
from tests.support.compiling import Shared
from tests.support.kernel import name_of

FEW = 20


def published(items: list[Item], probe: str, table: str = "") -> Array:
    """Rows of all windows of one table."""
    return np.concatenate(
        [
            item.rows
            for item in tuple(items)
            if isinstance(item, Snapshot) and (item.probe, item.metric) == (probe, table)
        ]
    )


def sent_to_peer(rows: Array) -> int:
    """Packets of IPv4 that a flow table counted on the way out."""
    out = rows[(rows["direction"] == FlowDirection.EGRESS) & (rows["version"] == 4)]
    return int(out["packets"].sum())


def send(host: Host, *more: Controller) -> None:
    """Send datagrams until each controller has sent some probes and has matched answers."""
    flow, deadline = host.open(), time.monotonic() + 30
    while any(each.traced()[0].matched < FEW for each in (host.controller, *more)):
        assert time.monotonic() < deadline
        host.send(0.2, flow)
    host.settle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ingress", "order", "passes"),
    [
        (Hook.XDP, Order.PROBE, False),
        (Hook.XDP, Order.APPLICATION, True),
        (Hook.TC_INGRESS, Order.APPLICATION, False),
        (Hook.TC_INGRESS, Order.PROBE, True),
    ],
)
def test_probes_and_answers_are_not_counted(
    make_host: MakeHost, ingress: Hook, order: Order, passes: bool
) -> None:
    """Whichever probe started first, and also if the host gets the answers."""
    options = PathOptions(rate=100_000, timeout=5, order=order, pass_answers=passes)
    host = make_host(options, ethernet=True, ingress=ingress)
    host.network.back = host.network.routers  # each datagram has an answer
    name, controller = host.network.wire.name, host.controller
    controller.start(FLOW_PROBE, name, FlowOptions(interval=300, ingress=name_of(ingress)))
    controller.trace(PEER[4])
    controller.watch_metrics(name, MonitorOptions(bits=8, interval=300, ingress=ingress))
    send(host)
    for probe in ("path", "flow", PROBE):
        controller.remove(probe)
    rows = host.rows()
    assert (rows["received_ns"] > 0).sum() == host.network.answers
    flows = published(host.items, "flow")
    assert sent_to_peer(flows) == host.network.packets.total()
    assert not ((flows["protocol"] == ECHO[4]) & (flows["version"] == 4)).any()
    metrics = published(host.items, PROBE, METRICS_TABLE)
    assert metrics["icmp_packets"].sum() == 0
    assert metrics["udp_packets"].sum() == host.network.packets.total()  # the answers


@pytest.mark.slow
@pytest.mark.parametrize("order", list(Order), ids=str)
def test_other_processes_do_not_count_probes(make_host: MakeHost, order: Order) -> None:
    """Whether their hooks come before path tracing or after it."""
    host = make_host(PathOptions(rate=100_000, timeout=5, order=order), ethernet=True)
    name = host.network.wire.name
    options = FlowOptions(interval=300, ingress="tc")
    with ExitStack() as stack:
        others = []
        for traces in (False, True, False):
            if traces:
                host.controller.trace(PEER[4])
                continue
            other = stack.enter_context(Controller())
            items: list[Item] = []
            other.listen(items.append)
            other.start(FLOW_PROBE, name, options)
            others.append((other, items))
        send(host)
        for other, _ in others:
            other.remove("flow")
    for _, items in others:
        assert sent_to_peer(published(items, "flow")) == host.network.packets.total()


@pytest.mark.slow
def test_answers_to_another_tracer_are_not_counted(
    make_host: MakeHost, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hook sees the answers to both, and each flow table is behind one of them."""
    paths = PathOptions(rate=100_000, timeout=5)
    host = make_host(paths, ethernet=True, ingress=Hook.TC_INGRESS)
    host.network.back = host.network.routers
    name = host.network.wire.name
    frugal = cast(Compiler, Frugal(compiler, OTHER_SECRETS))
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(frugal))
    with Controller() as other:
        items: list[Item] = []
        other.listen(items.append)
        other.paths.configure(name, replace(paths, ingress=Hook.TC_INGRESS))
        for controller in (host.controller, other):
            options = FlowOptions(interval=300, ingress="tc")
            controller.start(FLOW_PROBE, name, options)
            controller.trace(PEER[4])
        send(host, other)
        for controller in (host.controller, other):
            assert controller.traced()[0].foreign >= FEW
            controller.remove("flow")
    for seen in (host.items, items):
        flows = published(seen, "flow")
        assert not ((flows["protocol"] == ECHO[4]) & (flows["version"] == 4)).any()
        assert sent_to_peer(flows) == host.network.packets.total()
