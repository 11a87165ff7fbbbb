"""CPU of the probe of sockets for a window, and the share of a workload that it owns.

    sudo .venv/bin/python -m bench.owners [--sockets 10000] [--flows 1000] [--windows 10]

A new namespace has so many idle TCP connections over loopback, and made windows of flows name some
of them. The bench counts no packets: only the probe of sockets works.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from app.lab.netns import fresh, inside
from bpf.arrays import Array
from bpf.attach.interface import find
from bpf.compiler import Compiler
from bpf.maps.kinds import unlock
from probes.flow.records import FLOW
from probes.snapshot import Snapshot
from probes.sockets.probe import SocketsProbe
from probes.sockets.records import Reason


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


def hold(count: int, net: int) -> Callable[[], None]:
    """Hold further sockets in a child process; returns what ends it."""
    ready_fd, told_fd = os.pipe()
    child = os.fork()
    if not child:
        held = connections(count, net)
        os.write(told_fd, b"x")
        while held:
            signal.pause()
    os.close(told_fd)
    os.read(ready_fd, 1)
    os.close(ready_fd)

    def end() -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    return end


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


def measure(sockets: int, flows: int, windows: int) -> None:
    unlock()
    ends = connections(sockets)
    connected = ends[4:]
    probe = SocketsProbe(Compiler(), find("lo"))
    spent = []
    rng = np.random.default_rng(7)
    for number in range(1, windows + 1):
        chosen = [connected[at] for at in rng.choice(len(connected), flows, replace=False)]
        probe.take(window_of(chosen, number))
        begin, start = time.thread_time(), time.monotonic()
        items = probe.export()
        spent.append((time.thread_time() - begin) * 1e3)
        (ownership,) = (
            item.rows for item in items if isinstance(item, Snapshot) and item.metric == "ownership"
        )
        reasons = {Reason(int(row["reason"])).column: int(row["flows"]) for row in ownership}
        print(
            f"window {number}: {spent[-1]:.1f} ms CPU, "
            f"{(time.monotonic() - start) * 1e3:.0f} ms, {reasons}"
        )
    probe.close()
    print(
        f"{sockets} sockets, {flows} flows: least {min(spent):.1f} ms, "
        f"median {np.median(spent):.1f} ms of CPU a window"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=10)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A process may not have all of them.
    own = min(options.sockets, (hard - 1000) // 2)
    with inside(fresh()), ExitStack() as stack:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for at in range(own, options.sockets, own):
            stack.callback(hold(min(own, options.sockets - at), 1 + at // own))
        measure(own, options.flows, options.windows)
    print(f"{options.sockets} sockets on the host")


if __name__ == "__main__":
    main()
