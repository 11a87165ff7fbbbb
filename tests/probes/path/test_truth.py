"""Path tracing against what is known of the lab: S3.3, S3.8, S3.9, S3.20, S3.22."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from app.lab import netns
from app.lab.network import Lab
from app.lab.plan import Detour, LabPlan
from bpf.arrays import Array
from probes.control.controller import Controller
from probes.path.options import PathOptions
from probes.path.records import HOPS_TABLE
from probes.snapshot import Event, Item, Snapshot

pytestmark = pytest.mark.timing

PORT = 9
UDP = 17


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
