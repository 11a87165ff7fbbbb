"""Costs of the console for an operator's machine and link, beside htop, btop and trippy:

    python -I -m bench.console [--trip PATH] [--size 120x40 ...] [--beside CHECKOUT]

All run under the same terminal, one after the other, in the same run. The console's windows come
from a thread, as a probe's do, and take the whole way through the state to the screen; only the
kernel is left out. Workloads, made by tests/support/console/feed.py:

    flows          10,000 flows of a busy server, all with packets in each second, in directions
    conversations  10,000 flows that are 5,000 conversations, with bars and sparklines
    hosts          the same by host
    worst          flows with rates thrown anew each second, so that every row is another flow
    hops           10 destinations of 15 hops, a window each quarter of a second, on screen 2
    idle           windows without packets
    compile        conversations, while a source is compiled again and again

CPU counts the process with all its threads and children, in percent of one core. The cost of the
made-up windows is measured alone and subtracted. `--beside` measures another checkout right after
each workload that it has, in the same run. Each missing peer has a line.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.console.feed import FakeController
from tests.support.console.terminal import Cost, Terminal
from tests.support.console.workload import DESTINATIONS, FLOWS, HOPS, windows

_MAX_KEY = {"p50": 0.005, "p99": 0.030}
_MAX_PAINT = 0.350
_KEYS = 150
_TOP = 2
"""The line of the first row."""
_PAINTED = r"STARTING|LIVE"
_HERE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Workload:
    """A load of the console, and its limits."""

    max_bytes: float
    """A second, to the terminal."""
    max_cpu: float
    """Percent of a core, without what makes up the windows."""
    ready: str
    """A pattern of its screen."""
    keys: bool = False
    """Whether keys are timed."""
    turn: str = "3"
    """Keys that turn to its screen."""


_INF = float("inf")
WORKLOADS = {
    "flows": Workload(3072, 2.0, f"{FLOWS} flows", turn="3V"),
    "conversations": Workload(3072, 2.0, f"{FLOWS} flows", keys=True),
    "hosts": Workload(3072, 2.0, f"{FLOWS} flows", turn="h"),
    "worst": Workload(_INF, _INF, f"{FLOWS} flows", keys=True),
    "hops": Workload(8192, 3.0, rf"{DESTINATIONS} destinations[\s\S]*10\.1\.0\.{HOPS}\b", turn="2"),
    "idle": Workload(0, 0.2, "LIVE"),
    "compile": Workload(_INF, _INF, f"{FLOWS} flows", keys=True),
}
PEERS = {"htop": ("htop", "-d", "10"), "btop": ("btop",), "trippy": ("trip", "{address}")}


def feeding(name: str) -> float:
    """Percent of a core that making up the windows takes."""
    make, interval = windows(name, FakeController())
    times = []
    for number in range(8):
        # As rarely as in a run: other work in between evicts it from the CPU's caches.
        time.sleep(interval)
        now = time.monotonic_ns()
        started = time.thread_time()
        make(number, now - round(interval * 1e9), now)
        times.append(time.thread_time() - started)
    return statistics.median(times) / interval * 100


def python(checkout: str, module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs a module of a checkout."""
    code = (
        f"import runpy, sys; sys.path.insert(0, {checkout!r});"
        f" runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return sys.executable, "-I", "-c", code, *arguments


def first_paint(checkout: str, size: tuple[int, int], times: int) -> float:
    """Median seconds from exec of the real command to the first full screen."""
    # In a new namespace with an idle loopback.
    real = ("unshare", "--net", *python(checkout, "app", "run", "-i", "lo"))
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        with Terminal(real, columns=size[0], rows=size[1]) as terminal:
            taken.append(terminal.wait(_PAINTED, 10) - started)
            terminal.send("q")
            terminal.wait_exit()
    return statistics.median(taken)


def latencies(terminal: Terminal) -> list[float]:
    """Seconds from a key to its row being drawn, spread over the second between windows."""
    taken = []
    for _, pause in zip(range(_KEYS), itertools.cycle((0.013, 0.029, 0.047)), strict=False):
        # From the top, where the cursor stays whatever the rows do, to the row below and back.
        taken.append(terminal.latency("j", lambda _: _cursor(terminal) == _TOP + 1))
        time.sleep(pause)
        terminal.send("\x1b[H")
        terminal.wait(lambda _: _cursor(terminal) == _TOP)
        time.sleep(pause)
    return sorted(taken)


def _cursor(terminal: Terminal) -> int:
    """The line that is painted as the cursor's: the one row with another ground."""
    cells = terminal.emulator.cells
    rows = range(_TOP, terminal.emulator.rows - 4)
    grounds = [cells[y][0][1][2] for y in rows]
    usual = max(grounds, key=grounds.count)
    return next((y for y, ground in zip(rows, grounds, strict=True) if ground != usual), -1)


def ours(name: str, size: tuple[int, int], seconds: float, checkout: str) -> list[bool]:
    """Measure one workload; whether each target is met."""
    workload = WORKLOADS[name]
    command = python(checkout, "tests.support.console.workload", name)
    fed = feeding(name)
    with Terminal(command, columns=size[0], rows=size[1]) as terminal:
        terminal.wait(_PAINTED, 10)
        terminal.send(workload.turn)
        terminal.wait(workload.ready, 15)
        time.sleep(seconds)
        cost = terminal.cost(seconds=seconds, windows=3)
        keys = latencies(terminal) if workload.keys else []
    label = "probedeck" if checkout == _HERE else Path(checkout).name
    _line(f"{label} {name}", cost, fed)
    checks = [
        cost.bytes_per_second <= workload.max_bytes,
        cost.cpu_percent - fed <= workload.max_cpu,
    ]
    if keys:
        found = {"p50": statistics.median(keys), "p99": keys[int(len(keys) * 0.99)]}
        words = ", ".join(f"{each} {value * 1e3:.1f} ms" for each, value in found.items())
        print(f"    key to screen       {words}")
        checks += [found[each] <= most for each, most in _MAX_KEY.items()]
    if not all(checks):
        print("    MISS")
    return checks


def theirs(name: str, command: Sequence[str], size: tuple[int, int]) -> None:
    """Measure another program without input."""
    with Terminal(command, columns=size[0], rows=size[1]) as terminal:
        time.sleep(4.0)
        _line(name, terminal.cost(seconds=5.0, windows=3), 0.0)


def _line(name: str, cost: Cost, fed: float) -> None:
    print(
        f"  {name:<24} {cost.cpu_percent - fed:6.2f} % of a core {cost.bytes_per_second:9.0f} B/s "
        f"{cost.frames_per_second:5.1f} frames/s {cost.rss_mb:6.1f} MB",
        flush=True,
    )


def main() -> int:
    """Measure; the exit code is 1 where a target is missed."""
    from app.lab import Lab

    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--size", nargs="*", default=["120x40", "80x24"], metavar="COLUMNSxROWS")
    options.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--trip", default="trip", help="where trippy is")
    options.add_argument("--seconds", type=float, default=5.0, help="of each of three windows")
    options.add_argument("--paints", type=int, default=9, help="first paints")
    options.add_argument("--beside", default="", help="another checkout, to compare with")
    given = options.parse_args()
    passed: list[bool] = []
    checkouts = [_HERE, given.beside] if given.beside else [_HERE]
    known = Path(checkouts[-1], "bench/console.py").read_text(encoding="utf-8")
    with Lab(traffic=False) as network:
        network.enter()
        for text in given.size:
            columns, rows = map(int, text.split("x"))
            size = columns, rows
            paints = [first_paint(each, size, given.paints) for each in checkouts]
            passed.append(paints[0] <= _MAX_PAINT)
            shown = ", before ".join(f"{paint * 1e3:.0f} ms" for paint in paints)
            print(f"{text}: first paint {shown}{'' if passed[-1] else ' MISS'}", flush=True)
            for name in given.only:
                passed += ours(name, size, given.seconds, _HERE)
                if given.beside and f'"{name}": Workload' in known:
                    ours(name, size, given.seconds, given.beside)
            for name, command in PEERS.items():
                program = given.trip if name == "trippy" else command[0]
                if shutil.which(program) is None:
                    print(f"  {name} is not installed")
                    continue
                rest = (word.format(address=network.server_ipv4) for word in command[1:])
                theirs(name, (program, *rest), size)
    print("PASS" if all(passed) else "FAIL")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
