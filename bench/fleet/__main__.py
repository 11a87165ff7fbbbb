"""Cost of a hub that follows simulated controllers over loopback:

    python -I -m bench.fleet [--hosts 100 1000] [--top 500] [--seconds 20] [--recording FILE]

A process simulates the hosts: it sends the windows of a recording again, one a second from each,
with the times of now. The process that is measured runs the hub alone, without screens. A recording
has the bytes of a stream: `curl -sN --unix-socket PATH http://localhost/v1/stream?top=500 > FILE`.
Without a file it is made up: windows of `--top` flows, of the monitor and of four policies.

CPU is of one core. Latency is from the end of a window to the call of the hub's listener.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import numpy as np

from app.api import wire
from app.api.address import Remote
from app.fleet.hosts import FleetHost
from app.fleet.hub import Hub
from probes.snapshot import Item, Snapshot
from tests.support.fleet.simulated_hosts import Recording, Simulator, made

_PATIENCE_S = 60.0
_SETTLE_S = 4.0
"""Until the connections are made, and the windows of the simulator have their rhythm."""
_MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument(
        "--top", type=int, default=500, help="flows of a window of a made-up stream"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--recording", default="", metavar="FILE")
    parser.add_argument("--simulate", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate:
        return _simulate(options.simulate, _recording(options))
    print("hosts  up s   CPU %  windows/s  MB/s   MiB  KiB/host  p50 ms  p99 ms  max ms  behind")
    return max(_measure(count, options) for count in options.hosts)


def _recording(options: argparse.Namespace) -> Recording:
    if not options.recording:
        return made(options.top, 10_000 - options.top if options.top < 10_000 else 0)
    records = wire.Decoder().feed(Path(options.recording).read_bytes())
    tables = [record for record in records if isinstance(record, Snapshot)]
    return [list(window) for _, window in groupby(tables, key=lambda table: table.end_ns // 10**9)]


def _simulate(count: int, recording: Recording) -> int:
    """Simulate hosts until standard input ends; print their ports."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Simulator(count, recording) as simulator:
        print(*(host.port for host in simulator.hosts), flush=True)
        sys.stdin.read()
    return 0


def _measure(count: int, options: argparse.Namespace) -> int:
    """Print a line; return 1 if a window of any host did not arrive."""
    arguments = ["--simulate", str(count), "--top", str(options.top)]
    arguments += ["--recording", options.recording] if options.recording else []
    with subprocess.Popen(
        [sys.executable, "-I", "-m", "bench.fleet", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
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
                    raise SystemExit(f"{[one for one in hub.states() if one.reason][:1]}")
            up = time.monotonic() - started
            time.sleep(_SETTLE_S)
            latencies.clear()
            began, cpu = time.monotonic(), time.process_time()
            time.sleep(options.seconds)
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            found, states, used = np.array(latencies) / 1e6, hub.states(), _rss() - before
        simulator.stdin.close()
    received = sum(one.received_s for one in states) / 1e6
    behind = sum(one.behind for one in states) + sum(not one.state.counts for one in states)
    p50, p99 = np.percentile(found, [50, 99])
    rates = f"{100 * cpu / seconds:7.1f} {len(found) / seconds:10.0f} {received:5.1f}"
    memory = f"{used / _MIB:5.0f} {used / 1024 / count:9.0f}"
    latency = f"{p50:7.1f} {p99:7.1f} {found.max():7.0f}"
    print(f"{count:5} {up:5.1f} {rates} {memory} {latency} {behind:7}")
    return 1 if behind else 0


def _rss() -> int:
    """Resident bytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
