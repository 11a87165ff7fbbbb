"""Cost of a hub that follows simulated controllers over loopback.

    python -I -m bench.fleet HOSTS [--recording FILE]

As a program it only simulates the hosts: it sends the windows of a recording again, one a second
from each, with the times of now. The bench runs the hub, without screens. A recording has the bytes
of a stream: `curl -sN --unix-socket PATH http://localhost/v1/stream?top=500 > FILE`. Without a file
it is made up: windows of 500 flows, of the monitor and of four policies.

CPU is of one core. Latency is from the end of a window to the call of the hub's listener.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import numpy as np

from app.api import wire
from app.api.address import Remote
from app.fleet.hosts import FleetHost
from app.fleet.hub import Hub
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, Line, at_most, exactly
from bpf.errors import ProbedeckError
from probes.snapshot import Item, Snapshot
from tests.support.fleet.simulated_hosts import Recording, Simulator, made

_PATIENCE_S = 60.0
_SETTLE_S = 4.0
"""Until the connections are made, and the windows of the simulator have their rhythm."""
_TOP = 500
"""Flows of a window of a made-up stream."""


def main() -> None:
    """Simulate hosts: the benches start this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", type=int)
    parser.add_argument("--recording", default="", metavar="FILE")
    options = parser.parse_args()
    _simulate(options.hosts, _recording(options.recording))


def _recording(file: str) -> Recording:
    if not file:
        return made(_TOP, 10_000 - _TOP)
    records = wire.Decoder().feed(Path(file).read_bytes())
    tables = [record for record in records if isinstance(record, Snapshot)]
    return [list(window) for _, window in groupby(tables, key=lambda table: table.end_ns // 10**9)]


def _simulate(count: int, recording: Recording) -> None:
    """Simulate hosts until standard input ends; print their ports."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Simulator(count, recording) as simulator:
        print(*(host.port for host in simulator.hosts), flush=True)
        sys.stdin.read()


def hub(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Yield the costs of a hub by its hosts; each number runs alone."""
    line = Line("CPU of a hub by hosts", "hub", "hosts", at_most(1))
    for count in effort.of((1, 10, 100, 1000), (1, 2)):
        yield from _measure(count, effort.of(20.0, 1.0), line)


def _measure(count: int, wanted_s: float, line: Line) -> Iterator[Case]:
    command = [sys.executable, "-I", "-m", "bench.fleet", str(count)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    ) as simulator:  # fmt: skip
        assert simulator.stdin is not None
        assert simulator.stdout is not None
        ports = simulator.stdout.readline().split()
        hosts = [FleetHost(f"sim-{p}", Remote(f"http://127.0.0.1:{p}")) for p in ports]
        before = _rss()
        latencies: list[int] = []

        def heard(_: str, item: Item) -> None:
            if isinstance(item, Snapshot) and item.probe == "flow":
                latencies.append(time.time_ns() - item.end_utc_ns)

        started = time.monotonic()
        with Hub(hosts) as hub:
            hub.listen(heard)
            while not all(one.state.counts for one in hub.states()):
                time.sleep(0.1)
                if time.monotonic() - started > _PATIENCE_S:
                    raise ProbedeckError(f"{[one for one in hub.states() if one.reason][:1]}")
            up = time.monotonic() - started
            time.sleep(min(_SETTLE_S, wanted_s))
            latencies.clear()
            began, cpu = time.monotonic(), time.process_time()
            time.sleep(wanted_s)
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            found, states, used = np.array(latencies) / 1e6, hub.states(), _rss() - before
        simulator.stdin.close()
    behind = sum(one.behind for one in states) + sum(not one.state.counts for one in states)
    name = f"a hub of {count} hosts, {_TOP} flows each"
    yield Case(f"{name}: CPU", "% of a core", constant(100 * cpu / seconds), line=line, size=count)
    yield Case(f"{name}: windows that did not arrive", "windows", constant(behind),
               goal=exactly(0))  # fmt: skip
    for words, unit, value in (
        ("until all are connected", "s", up), ("windows", "windows/s", len(found) / seconds),
        ("memory of a host", "KiB", used / 1024 / count),
        ("latency, median", "ms", float(np.median(found))),
        ("latency, 99th percentile", "ms", float(np.percentile(found, 99))),
    ):  # fmt: skip
        yield Case(f"{name}: {words}", unit, constant(value))


def _rss() -> int:
    """Resident bytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


GROUPS = (Group("hub", hub, 1, warm=False),)

if __name__ == "__main__":
    main()
