"""CPU time and resident memory of `run --headless` until its first window, of all its processes.

    python -I -m bench.start [--against COMMIT]

Each run has a new network namespace, in which a ping makes a flow. `first` has an empty store
of programs, and compiles; `again` finds its programs there, as a run from a wheel does. `--against`
measures another commit in the same way: its first run compiles into nothing, if it has no store.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.support.report import Report

ROOT = Path(__file__).parents[2]
_MOST_CPU_S = 0.7
_MOST_MB = 120
_RUNS = 5
_IN_NAMESPACE = "ip link set lo up; ping -q -i 0.2 127.0.0.1 >/dev/null & exec {command}"
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


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out beside this tree, for a while."""
    with tempfile.TemporaryDirectory(prefix="probedeck-bench-") as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", folder, commit], check=True, capture_output=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def measure(tree: Path) -> tuple[Start, Start]:
    """Return the costs of the first start with an empty store, and medians of later ones."""
    with tempfile.TemporaryDirectory(prefix="probedeck-bench-") as cache:
        first = start(tree, cache)
        later = [start(tree, cache) for _ in range(_RUNS)]
    return first, Start(*(statistics.median(each) for each in zip(*later, strict=True)))


def text(cost: Start) -> str:
    return f"{cost.cpu_s:.2f} s of CPU, {cost.megabytes:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", default="")
    asked = parser.parse_args(sys.argv[1:])
    report = Report("run --headless to its first window, all processes")
    first, again = measure(ROOT)
    report.row("first, with the compiler", text(first))
    met = again.cpu_s <= _MOST_CPU_S and again.megabytes <= _MOST_MB
    report.target("again, from the store", text(again), met)
    if asked.against:
        with checkout(asked.against) as tree:
            before = measure(tree)[1]
        report.row(f"commit {asked.against[:12]}", text(before))
        share = again.cpu_s / before.cpu_s, again.megabytes / before.megabytes
        report.row("share of it", f"{share[0]:.2f} of the CPU, {share[1]:.2f} of the memory")
    report.end()


if __name__ == "__main__":
    main()
