"""Kernel memory of maps: a plain run, a filter change, and after the probe is removed.

    python -I -m bench.memory [--real]

The first part is measured on this machine: another process adds up the maps of this one and of the
compile helper, every few milliseconds. The second part, left out with --real, is computed for
other numbers of CPUs with the default of --memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Self

from app.lab import netns
from bench.support.report import Report
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.filter import FlowFilter
from probes.flow.options import FlowOptions
from tests.support.veth import veth_pair

_MB = 1e6
_MOST_AT_PEAK = 1.05
"""Of the steady memory, while a filter is changed."""
_CPUS = (2, 8, 64, 128, 256, 512)
_SAMPLER = """
import os, select, sys
def maps(pid):
    try:
        entries = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return
    for entry in entries:
        try:
            text = open(f"/proc/{pid}/fdinfo/{entry}").read()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if "map_id" in fields:
            yield int(fields["map_id"]), int(fields["memlock"])
def held(root):
    tasks = os.listdir(f"/proc/{root}/task")
    children = [open(f"/proc/{root}/task/{task}/children").read().split() for task in tasks]
    found = dict(maps(root))
    for child in {int(pid) for pids in children for pid in pids} - {os.getpid()}:
        found.update(maps(child))
    return sum(found.values())
root, peak = int(sys.argv[1]), 0
while True:
    try:
        peak = max(peak, held(root))
    except OSError:
        continue  # a thread or a helper has just ended
    if select.select([0], [], [], 0)[0]:
        if not sys.stdin.readline():
            break
        print(held(root), peak, flush=True)
        peak = 0
"""


class Sampler:
    """Adds up the maps of this process and of its compile helper, in another process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SAMPLER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> tuple[float, float]:
        """Megabytes now, and the most since the last call."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        now, peak = map(int, self._process.stdout.readline().split())
        return now / _MB, peak / _MB

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def measure(report: Report) -> None:
    """Measure the kernel memory that a run takes on this machine."""
    with (
        veth_pair() as (_, end),
        netns.inside(end.ns),
        Controller() as controller,
        Sampler() as sampler,
    ):
        before, _ = sampler.read()
        controller.start(FLOW_PROBE, end.ifname, FlowOptions(interval=0.1))
        time.sleep(0.5)
        _, start = sampler.read()
        steady, _ = sampler.read()
        report.row("plain run, MB", f"{steady:.1f}; {start:.1f} at its start")
        controller.reconfigure(FlowFilter.parse("proto:tcp"))
        after, peak = sampler.read()
        report.target(
            f"filter change, MB at the peak (at most {_MOST_AT_PEAK} times)",
            f"{peak:.1f}; {after:.1f} afterwards",
            peak < _MOST_AT_PEAK * steady,
        )
        config = controller.probes()[0].config
        assert config.egress
        controller.replace(config.with_source("egress", config.egress.source + "\n"))
        after, peak = sampler.read()
        report.target(
            "edited source, MB at the peak",
            f"{peak:.1f}; {after:.1f} afterwards",
            peak < _MOST_AT_PEAK * steady,
        )
        controller.remove("flow")
        left, _ = sampler.read()
        report.target("removed, MB", f"{left:.1f}; {before:.1f} before", left <= before)


def compute(report: Report) -> None:
    """Compute the kernel memory of a run on machines with other numbers of CPUs."""
    from probes import memory_limit as memory
    from probes.flow.records import TableSizes

    for cpus in _CPUS:
        limit = memory.usual_limit(cpus)
        sizes = TableSizes.within(memory.flow_share(limit, cpus), cpus)
        taken = sizes.memory / _MB
        records = f"{sizes.records} records a CPU"
        report.row(f"{cpus} CPUs, MB (limit {memory.size_text(limit)})", f"{taken:.0f}; {records}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="only what this machine's kernel holds")
    options = parser.parse_args()
    report = Report("kernel memory of maps")
    measure(report)
    if not options.real:
        compute(report)
    report.end()


if __name__ == "__main__":
    main()
