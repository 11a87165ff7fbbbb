"""A lab whose paths are traced, and applications that send through it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from app.lab import netns
from app.lab.network import Lab
from app.lab.plan import LabPlan
from bench.support.application import closing_fd, running
from bpf.arrays import Array
from probes.control.controller import Controller
from probes.path.options import PathOptions
from probes.path.records import HOP, HOPS_TABLE, ProbeOutcome
from probes.snapshot import Event, Item, Snapshot


class Collected:
    """Items that a controller published."""

    def __init__(self) -> None:
        self.tables: list[Snapshot] = []
        self.events: list[tuple[int, Event]] = []

    def __call__(self, item: Item) -> None:
        if isinstance(item, Snapshot):
            self.tables.append(item)
        else:
            self.events.append((time.monotonic_ns(), item))

    def rows(self, metric: str = HOPS_TABLE) -> Array:
        parts = [table.rows for table in self.tables if table.metric == metric]
        return np.concatenate(parts) if parts else np.empty(0, HOP)


@contextmanager
def network(plan: LabPlan) -> Iterator[Lab]:
    """A lab without traffic; its client may open sockets for pings."""
    with Lab(plan, traffic=False) as lab:
        with closing_fd(lab.open_namespace()) as client:
            netns.write_sysctls(client, {"net/ipv4/ping_group_range": "0 2147483647"})
        yield lab


@contextmanager
def traced(lab: Lab, *addresses: str, **options: Any) -> Iterator[tuple[Controller, Collected]]:
    """The addresses traced from the lab's client."""
    client = lab.open_namespace()
    with netns.inside(client), Controller() as controller:
        collected = Collected()
        controller.listen(collected)
        controller.paths.configure(lab.interface, PathOptions(**options))
        for address in addresses:
            controller.trace(address)
        yield controller, collected


@contextmanager
def application(lab: Lab, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process in the lab's client, and one in its server that takes what it sends."""
    with (
        closing_fd(lab.open_namespace("server")) as server,
        closing_fd(lab.open_namespace()) as here,
        running("serve", node_fd=server),
        running(*arguments, node_fd=here) as process,
    ):
        yield process


def rtts(rows: Array, hop: int, version: int) -> Array:
    """Nanoseconds (n,) of the answers from a hop."""
    found = rows[(rows["hop"] == hop) & (rows["version"] == version)]
    found = found[found["outcome"] == ProbeOutcome.ANSWERED]
    result: Array = found["received_ns"] - found["sent_ns"]
    return result
