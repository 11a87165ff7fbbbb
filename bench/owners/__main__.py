"""CPU of the probe of sockets for a window, and the share of a workload that it owns.

A new namespace has so many idle TCP connections over loopback, and made windows of flows name some
of them. The bench counts no packets: only the probe of sockets works.
"""

from __future__ import annotations

import itertools
import resource
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np

from app.lab.netns import fresh, inside
from bench.runner.cases import Case, Effort, Group, at_most
from bpf.arrays import Array
from bpf.attach.interface import find
from bpf.maps.kinds import unlock
from probes.flow.records import FLOW
from probes.snapshot import Snapshot
from probes.sockets.probe import SocketsProbe


def connections(count: int, net: int = 1) -> list[socket.socket]:
    """Open half as many connections as sockets are wanted: both ends are here."""
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(4)]
    found = list(listeners)
    for number in range(count // 2):
        # Each source address has its own ports.
        end = socket.socket()
        end.bind((f"127.0.{net}.1", 0))
        end.connect(listeners[number % 4].getsockname())
        found += [end, listeners[number % 4].accept()[0]]
    return found


def window_of(ends: Sequence[socket.socket], number: int) -> Snapshot:
    """Make a window with a flow for each socket."""
    rows: Array = np.zeros(len(ends), FLOW)
    for row, end in zip(rows, ends, strict=True):
        for name, (address, port) in (
            ("source", end.getsockname()),
            ("destination", end.getpeername()),
        ):
            row[name][:4] = list(socket.inet_aton(address))
            row[f"{name}_port"] = port
    rows["protocol"], rows["version"], rows["direction"] = 6, 4, 1
    rows["packets"], rows["bytes"] = 10, 1000
    now = time.monotonic_ns()
    return Snapshot("flow", "lo", number, 1, now - 10**9, now, 0, rows, {}, 0.0, 0, 0)


def windows(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """CPU of a window by the number of sockets, and by the number of flows."""
    sockets, flows = effort.of((10_000, 1000), (100, 20))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stack.enter_context(inside(fresh()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unlock()
    ends = connections(min(sockets, (hard - 1000) // 2))
    for end in ends:
        stack.callback(end.close)
    probe = stack.enter_context(closing(SocketsProbe(effort.compiler, find("lo"))))
    rng, number = np.random.default_rng(7), itertools.count(1)
    told: list[float] = [0.0]

    def window() -> float:
        """Return the CPU milliseconds of a window."""
        chosen = [ends[at] for at in 4 + rng.choice(len(ends) - 4, flows, replace=False)]
        probe.take(window_of(chosen, next(number)))
        begin = time.thread_time()
        items = probe.export()
        taken = (time.thread_time() - begin) * 1e3
        (ownership,) = (
            item.rows for item in items if isinstance(item, Snapshot) and item.metric == "ownership"
        )
        told.append(sum(int(row["flows"]) for row in ownership if not int(row["reason"])))
        return taken

    name = f"owners of {flows} flows, {sockets} sockets"
    yield Case(f"{name}: a window", "ms of CPU", window, goal=at_most(50))
    yield Case(f"{name}: flows that have an owner", "flows", lambda: told[-1])


GROUPS = (Group("windows", windows, 9),)
