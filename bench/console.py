"""Costs of the console for an operator's machine and link, beside htop, btop and trippy.

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
made-up windows is measured alone and subtracted.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.console.live.flows import LiveFlows
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, Line, MissingError, at_most
from tests.support.console.feed import FakeController, Flows, window
from tests.support.console.terminal import Terminal
from tests.support.console.workload import DESTINATIONS, FLOWS, HOPS, windows

_MOST_MB = 110
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


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs a module of this checkout."""
    code = (
        f"import runpy, sys; sys.path.insert(0, {_HERE!r});"
        f" runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return sys.executable, "-I", "-c", code, *arguments


def first_paint(size: tuple[int, int]) -> float:
    """Milliseconds from exec of the real command to the first full screen."""
    # In a new namespace with an idle loopback.
    real = ("unshare", "--net", *python("app", "run", "-i", "lo"))
    started = time.perf_counter()
    with Terminal(real, columns=size[0], rows=size[1]) as terminal:
        taken = terminal.wait(_PAINTED, 10) - started
        terminal.send("q")
        terminal.wait_exit()
    return taken * 1e3


def latencies(terminal: Terminal, count: int) -> list[float]:
    """Seconds from a key to its row being drawn, spread over the second between windows."""
    taken = []
    for _, pause in zip(range(count), itertools.cycle((0.013, 0.029, 0.047)), strict=False):
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


def feeding(name: str) -> float:
    """Percent of a core that making up the windows takes."""
    make, interval = windows(name, FakeController())
    taken = []
    for number in range(8):
        # As rarely as in a run: other work in between evicts it from the CPU's caches.
        time.sleep(interval)
        now = time.monotonic_ns()
        started = time.thread_time()
        make(number, now - round(interval * 1e9), now)
        taken.append(time.thread_time() - started)
    return statistics.median(taken) / interval * 100


def paint(columns: int, rows: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    run = partial(first_paint, (columns, rows))
    yield Case(f"console {columns}x{rows}, first paint", "ms", run, goal=at_most(350))


def load(name: str, columns: int, rows: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Yield the costs of one workload; making its windows up does not count."""
    if effort.quick and (name, columns) != ("conversations", 120):
        return  # One workload passes the same code as all of them.
    workload, seconds = WORKLOADS[name], effort.of(5.0, 1.0)
    fed = 0.0 if effort.quick else feeding(name)
    command = python("tests.support.console.workload", name)
    with Terminal(command, columns=columns, rows=rows) as terminal:
        terminal.wait(_PAINTED, 10)
        terminal.send(workload.turn)
        terminal.wait(workload.ready, 15)
        time.sleep(seconds)
        cost = terminal.cost(seconds=seconds, windows=effort.of(3, 1))
        keys = latencies(terminal, effort.of(_KEYS, 2)) if workload.keys else []
    shown = f"console {columns}x{rows}, {name}"
    yield Case(f"{shown}: CPU", "% of a core", constant(cost.cpu_percent - fed),
               goal=at_most(workload.max_cpu) if workload.max_cpu < _INF else None)  # fmt: skip
    yield Case(f"{shown}: to the terminal", "B/s", constant(cost.bytes_per_second),
               goal=at_most(workload.max_bytes) if workload.max_bytes < _INF else None)  # fmt: skip
    limit = at_most(_MOST_MB) if name == "flows" else None
    yield Case(f"{shown}: memory", "MB", constant(cost.rss_mb), goal=limit)
    if keys:
        middle, late = statistics.median(keys) * 1e3, keys[int(len(keys) * 0.99)] * 1e3
        yield Case(f"{shown}: key to screen, median", "ms", constant(middle), goal=at_most(5))
        yield Case(f"{shown}: key to screen, 99th percentile", "ms", constant(late),
                   goal=at_most(30))  # fmt: skip


def peers(columns: int, rows: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Yield the costs of other programs without input."""
    from app.lab.network import Lab

    lacking = []
    with Lab(traffic=False) as network:
        network.enter()
        for name, command in PEERS.items():
            if shutil.which(command[0]) is None:
                lacking.append(name)
                continue
            words = [word.format(address=network.server_ipv4) for word in command]
            with Terminal(words, columns=columns, rows=rows) as terminal:
                time.sleep(effort.of(4.0, 0.5))
                cost = terminal.cost(seconds=effort.of(5.0, 1.0), windows=effort.of(3, 1))
            shown = f"{name} {columns}x{rows}"
            yield Case(f"{shown}: CPU", "% of a core", constant(cost.cpu_percent))
            yield Case(f"{shown}: to the terminal", "B/s", constant(cost.bytes_per_second))
            yield Case(f"{shown}: memory", "MB", constant(cost.rss_mb))
    if lacking:
        raise MissingError(f"{', '.join(lacking)}: not installed")


def rows(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The console's state after a window, by its flows; a table draws the rows that it shows."""
    line = Line("A window in the console's state by rows", "state", "rows", at_most(1.1))
    for count in effort.of((1, 100, 10_000, 100_000, 1_000_000), (1, 1000)):
        made, live = Flows(count, churn=False), LiveFlows()
        live.begin(late=False)

        def take(made: Flows = made, live: LiveFlows = live) -> float:
            now = time.monotonic_ns()
            snapshot = window(made.next(now), end_ns=now)
            started = time.thread_time()
            live.add(snapshot)
            live.view()
            return (time.thread_time() - started) * 1e3

        yield Case(f"a window in the console's state, {count} rows", "ms of CPU", take, line=line,
                   size=count)  # fmt: skip


_SIZES = ((120, 40), (80, 24))
GROUPS = (
    *(Group(f"first paint, {c}x{r}", partial(paint, c, r)) for c, r in _SIZES),
    *(
        Group(f"{name}, {c}x{r}", partial(load, name, c, r), 1, warm=False)
        for c, r in _SIZES for name in WORKLOADS
    ),
    Group("rows", rows, 5),
    Group("others", partial(peers, *_SIZES[0]), 1, warm=False),
)  # fmt: skip
