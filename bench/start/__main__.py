"""CPU time and resident memory of `run --headless` until its first window, of all its processes.

    python -I -m bench.start [--against COMMIT]

Each run has a new network namespace, in which a ping makes a flow. `first` has an empty store
of programs, and compiles; `again` finds its programs there, as a run from a wheel does. `--against`
measures another commit in the same way: its first run compiles into nothing, if it has no store.

The floor is a Python that imports numpy, and the kernel's work for the programs of the run: to
verify and to translate them.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.runner.checkout import ROOT, checkout
from bench.support.report import Report

_MOST_CPU_S = 0.7
_MOST_MB = 120
_RUNS = 5
_IN_NAMESPACE = "ip link set lo up; ping -q -i 0.2 127.0.0.1 >/dev/null & exec {command}"
_LOADS = """
import atexit, sys, time
sys.path.insert(0, '.')
from bpf import syscall
call, seconds = syscall.call, [0.0]
def timed(command, attr):
    begin = time.thread_time()
    try:
        return call(command, attr)
    finally:
        seconds[0] += (command.name == 'PROG_LOAD') * (time.thread_time() - begin)
syscall.call = timed
atexit.register(lambda: print(seconds[0], file=sys.stderr))
"""
_COMMAND = (
    "import sys; sys.path.insert(0, '.'); import runpy;"
    " sys.argv[:] = 'probedeck run -i lo --headless --format jsonl -o -'.split();"
    " runpy.run_module('app', run_name='__main__')"
)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Start(NamedTuple):
    """Costs of a start."""

    cpu_s: float
    """User and system time."""
    megabytes: float
    """Resident, with pages that processes share counted in each."""


def processes(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            yield from processes(int(child))


def cost_of(pid: int) -> Start:
    """Return the costs of a process so far, with the children that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Start(sum(map(int, fields[11:15])) * _TICK_S, pages * os.sysconf("SC_PAGESIZE") / 1e6)


def start(tree: Path, cache: str) -> Start:
    """Start a run from a tree, and end it after its first window."""
    python = ROOT / ".venv/bin/python"
    environment = {**os.environ, "PROBEDECK_CONFIG": "none", "CACHE_DIRECTORY": cache}
    command = f'{python} -I -c "{_COMMAND}"'
    with subprocess.Popen(
        ["unshare", "-n", "sh", "-c", _IN_NAMESPACE.format(command=command)],
        cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        assert run.stdout
        run.stdout.readline()
        found = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in processes(run.pid)}
        costs = [cost_of(pid) for pid, name in found.items() if name != "ping\n"]
        pings = [pid for pid, name in found.items() if name == "ping\n"]
        for pid in (run.pid, *pings):
            os.kill(pid, signal.SIGTERM)
    return Start(*(sum(each) for each in zip(*costs, strict=True)))


def medians(starts: Sequence[Start]) -> Start:
    return Start(*(statistics.median(each) for each in zip(*starts, strict=True)))


def floor(cache: str) -> tuple[float, float]:
    """Return the CPU seconds of a Python that imports numpy, and of loads in the kernel."""
    python = str(ROOT / ".venv/bin/python")
    environment = {**os.environ, "PROBEDECK_CONFIG": "none", "CACHE_DIRECTORY": cache}
    used = [resource.getrusage(resource.RUSAGE_CHILDREN)]
    bare = {**environment, "OPENBLAS_NUM_THREADS": "1"}
    for _ in range(_RUNS):
        subprocess.run([python, "-I", "-c", "import numpy"], env=bare, check=True)
    used.append(resource.getrusage(resource.RUSAGE_CHILDREN))
    before, after = (each.ru_utime + each.ru_stime for each in used)
    command = _COMMAND.replace("-o -", "-o - --duration 0.1")
    run = subprocess.run(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$0" -I -c "$1"', python,
         _LOADS + command],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return (after - before) / _RUNS, float(run.stderr.split()[-1])


def text(cost: Start) -> str:
    return f"{cost.cpu_s:.2f} s of CPU, {cost.megabytes:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", default="")
    asked = parser.parse_args(sys.argv[1:])
    report = Report("run --headless to its first window, all processes")
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory
        trees = [ROOT, *([stack.enter_context(checkout(asked.against))] if asked.against else [])]
        caches = [stack.enter_context(folder(prefix="probedeck-bench-")) for _ in trees]
        first = [start(tree, cache) for tree, cache in zip(trees, caches, strict=True)]
        # By turns: the machine may become slower meanwhile.
        turns = [[start(*each) for each in zip(trees, caches, strict=True)] for _ in range(_RUNS)]
        python, verifier = floor(caches[0])
    again, *before = (medians(each) for each in zip(*turns, strict=True))
    report.row("first, with the compiler", text(first[0]))
    met = again.cpu_s <= _MOST_CPU_S and again.megabytes <= _MOST_MB
    report.target("again, from the store", text(again), met)
    report.row("floor: Python with numpy", f"{python:.2f} s of CPU")
    report.row("floor: loads of programs, in the kernel", f"{verifier:.2f} s of CPU")
    for other in before:
        report.row(f"commit {asked.against[:12]}", text(other))
        share = again.cpu_s / other.cpu_s, again.megabytes / other.megabytes
        report.row("share of it", f"{share[0]:.2f} of the CPU, {share[1]:.2f} of the memory")
    report.end()


if __name__ == "__main__":
    main()
