"""Path tracing against what is known of the lab: S3.3, S3.8, S3.9, S3.20, S3.22."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from app.lab import Lab, netns
from app.lab.plan import Detour, LabPlan
from bpf.arrays import Array
from probes.control.controller import Controller
from probes.path.options import PathOptions, TracedFlow
from probes.path.records import HOPS_TABLE, ProbeOutcome
from probes.snapshot import Event, Item, Snapshot
from tests.support.lab_truth import delay, hops, interface_counters

pytestmark = pytest.mark.timing

PORT = 9
UDP = 17
TCP_SINK = 5201


class Tracing:
    """A controller in the lab's client, and its published items."""

    def __init__(self, lab: Lab, controller: Controller) -> None:
        self.lab = lab
        self.controller = controller
        self.events: list[tuple[int, str]] = []
        self.sent = 0
        """Probes, by the kernel's own count, when `finish` was called."""
        self._hops: list[Array] = []
        controller.listen(self._take)
        controller.paths.configure(lab.interface, PathOptions())

    def _take(self, item: Item) -> None:
        if isinstance(item, Snapshot) and item.metric == HOPS_TABLE:
            self._hops.append(item.rows)
        elif isinstance(item, Event) and item.source == "path":
            self.events.append((time.monotonic_ns(), item.text))

    def finish(self) -> Array:
        """Stop; all rows of dtype HOP."""
        told = self.controller.traced()
        for one in told:
            self.controller.untrace(one.destination)
        self.sent = sum(one.sent for one in told)
        return np.concatenate(self._hops, dtype=self._hops[0].dtype)


@contextmanager
def tracing(plan: LabPlan) -> Iterator[Tracing]:
    with Lab(plan, traffic=False) as lab:
        client = lab.open_namespace()
        try:
            with netns.inside(client), Controller() as controller:
                yield Tracing(lab, controller)
        finally:
            os.close(client)


@contextmanager
def sending(*sockets: socket.socket, every: float = 0.001) -> Iterator[None]:
    """A datagram by each, a thousand times a second."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every):
            for out in sockets:
                with suppress(OSError):  # the port is closed, and ICMP says so now and then
                    out.send(bytes(160))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for out in sockets:
            out.close()


def udp_to(address: str, port: int = PORT) -> socket.socket:
    out = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((address, port))
    return out


def text(row: Array) -> str:
    size = 4 if row["version"] == 4 else 16
    return str(ipaddress.ip_address(row["responder"].tobytes()[:size]))


@pytest.mark.slow
def test_times_are_those_of_the_cables_and_every_probe_is_told() -> None:
    plan = LabPlan(bottleneck_bits=0, delays={1: 0.005, 3: 0.01, 5: 0.002})
    with tracing(plan) as traced:
        servers = (traced.lab.server_ipv4, traced.lab.server_ipv6)
        for server in servers:
            traced.controller.trace(server)
        with sending(*map(udp_to, servers)):
            time.sleep(2.5)
        rows = traced.finish()
    assert abs(len(rows) - traced.sent) <= 4  # `sent` was read a moment earlier
    assert not np.isin(rows["outcome"], (ProbeOutcome.OVERRUN, ProbeOutcome.UNANSWERED)).any()
    beyond = rows[np.isin(rows["outcome"], (ProbeOutcome.BEYOND_PATH, ProbeOutcome.IN_FLIGHT))]
    assert (rows["hop"][rows["outcome"] == ProbeOutcome.BEYOND_PATH] > 6).all()
    assert (beyond["hop"] > 6).sum() > 5
    for version in (4, 6):
        for hop, (name, *_) in enumerate(hops(plan)[:-1], 1):
            mine = rows[(rows["version"] == version) & (rows["hop"] == hop)]
            answers = mine[mine["outcome"] == ProbeOutcome.ANSWERED]
            assert len(answers) > 0.9 * len(mine)
            addresses = plan.addresses(name)
            expected = addresses.ipv4 if version == 4 else addresses.ipv6
            assert {text(row) for row in answers} == {expected}
            rtts = (answers["received_ns"] - answers["sent_ns"]) / 1e6
            error = float(np.median(rtts)) - delay(plan, hop) * 1e3
            print(f"IPv{version} hop {hop}: {len(answers)} answers, median {error:+.3f} ms")
            assert abs(error) < 0.7


@pytest.mark.slow
def test_a_detour_is_told_within_a_second_and_a_silent_hop_is_hardly_asked() -> None:
    plan = LabPlan(bottleneck_bits=0, detour=Detour(3), silent=("r2",))
    with tracing(plan) as traced:
        lab = traced.lab
        traced.controller.trace(lab.server_ipv4)
        with sending(udp_to(lab.server_ipv4)):
            time.sleep(4)  # until the path counts as known
            before = len(traced.events)
            changed_ns = lab.detour(True)
            time.sleep(2)
        events = traced.events[before:]
        rows = traced.finish()
    new, old = plan.addresses("d1").ipv4, plan.addresses("r4").ipv4
    first, *more = [(moment, said) for moment, said in events if "route changed" in said]
    assert first[0] - changed_ns < 1_100_000_000
    assert f"{lab.server_ipv4}: route changed at hops 4-6 for udp " in first[1]
    assert f">{PORT}: by {new}, was {old}" in first[1]
    assert any("2 hops longer" in said for _, said in (first, *more))
    # One cause makes one event; the length may follow.
    assert len(events) == 1 + len(more) <= 2

    late = rows[rows["sent_ns"] > changed_ns - 1_000_000_000]
    assert 1 <= (late["hop"] == 2).sum() <= 6  # in 3 seconds
    others = [int((late["hop"] == hop).sum()) for hop in (1, 3, 4)]
    assert min(others) > 100


@pytest.mark.slow
def test_each_flow_is_told_the_way_that_it_takes() -> None:
    plan = LabPlan(bottleneck_bits=0, twin=3)
    with tracing(plan) as traced:
        lab = traced.lab
        traced.controller.trace(lab.server_ipv4)
        by_twin: dict[int, bool] = {}
        for _ in range(8):
            out = udp_to(lab.server_ipv4)
            port = out.getsockname()[1]
            before = interface_counters(lab, "r3b", "left").received_packets
            with sending(out):
                time.sleep(0.3)
            moved = interface_counters(lab, "r3b", "left").received_packets - before
            by_twin[port] = moved > 100
        rows = traced.finish()
    third = rows[(rows["hop"] == 3) & (rows["outcome"] == ProbeOutcome.ANSWERED)]
    told = {port: {text(row) for row in third[third["source_port"] == port]} for port in by_twin}
    names = {True: "r3b", False: "r3"}
    assert told == {port: {plan.addresses(names[twin]).ipv4} for port, twin in by_twin.items()}


@pytest.mark.slow
def test_a_queue_is_told_at_its_hop() -> None:
    """Of a gentle flow, while a transfer fills the bottleneck at r3."""
    with tracing(LabPlan()) as traced:
        lab = traced.lab
        with _sink(lab):
            gentle = udp_to(lab.server_ipv4)
            flow = TracedFlow(UDP, gentle.getsockname()[1], PORT)
            traced.controller.trace(lab.server_ipv4, flow)
            with sending(gentle, every=0.002):
                time.sleep(2)
                transfer = socket.create_connection((lab.server_ipv4, TCP_SINK))
                transfer.setblocking(False)
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    with suppress(BlockingIOError):
                        transfer.send(bytes(1 << 16))
                    time.sleep(0.002)
                transfer.close()
        rows = traced.finish()
    queues = [said for _, said in traced.events if "queue of" in said]
    assert queues
    assert all(said.startswith(f"{lab.server_ipv4} hop 4: queue of ") for said in queues)
    third, fourth = (traced.lab.plan.addresses(name).ipv4 for name in ("r3", "r4"))
    assert f"between {third} (hop 3) and {fourth} (hop 4)" in queues[0]
    assert f"for udp {flow.source_port}>{PORT}" in queues[0]
    answers = rows[rows["outcome"] == ProbeOutcome.ANSWERED]
    rtts = (answers["received_ns"] - answers["sent_ns"]) / 1e6
    longest = {hop: float(rtts[answers["hop"] == hop].max()) for hop in range(1, 7)}
    print("longest, ms:", {hop: round(ms, 1) for hop, ms in longest.items()})
    assert max(longest[hop] for hop in (1, 2, 3)) < 30
    assert all(100 < longest[hop] < 260 for hop in (4, 5, 6))


@contextmanager
def _sink(lab: Lab) -> Iterator[None]:
    """Takes what one connection brings, in the lab's server."""
    server = lab.open_namespace("server")
    with netns.inside(server):
        listening = socket.create_server(("", TCP_SINK))
    os.close(server)

    def run() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            while connection.recv(1 << 18):
                pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.close()
