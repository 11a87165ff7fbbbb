"""What the console costs an operator's machine and link: `python -I -m bench.console`.

The console runs under a terminal of 120x40 with 10,000 flows that all change each second. They come
from a thread, as windows of a probe do, and take the whole way through the state to the screen;
only the kernel is left out. Two workloads, of bench.feed: a busy server, whose rates wander, is
judged; rates thrown anew each second, so that every row is another flow, is the worst case.

CPU is of the whole process with all its threads, and includes making up the windows, which is
measured by itself and named. It is judged with that taken off.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import TYPE_CHECKING, cast

from bench.pty import Cost, Terminal

if TYPE_CHECKING:
    pass

COLUMNS, ROWS = 120, 40
_FLOWS = 10_000
_MAX_CPU = 3.0
_MAX_BYTES = 4096.0
_MAX_KEY = 0.050
_MAX_PAINT = 0.350
_KEYS = 150
_TOP = 2
"""The line of the first row."""
_PAINTED = r"probedeck|STARTING|LIVE"


def command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-m", "bench.console", "--console", *arguments)


def console(flows: int, churn: bool) -> int:
    """Be the console, over made-up flows."""
    from app.console.app import ConsoleApp
    from bench.feed import FakeController, Feeder, Flows
    from probes.flow import FlowFilter
    from probes.plane import ControlPlane

    controller = FakeController()

    feeder = Feeder(controller, Flows(flows, churn=churn))
    app = ConsoleApp(cast("ControlPlane", controller), feeder.start, "eth0", 1.0, FlowFilter())
    return app.run() or 0


def feeding(churn: bool) -> float:
    """Percent of a core that making up the windows takes."""
    from bench.feed import Flows, window

    flows = Flows(_FLOWS, churn=churn)
    times = []
    for number in range(20):
        started = time.thread_time()
        window(flows.next(time.monotonic_ns()), number)
        times.append(time.thread_time() - started)
    return statistics.median(times) * 100


def first_paint(times: int = 7) -> float:
    """Median seconds from exec of the real command to the first full screen."""
    # In a namespace of its own, whose loopback is nobody's.
    real = ("unshare", "--net", sys.executable, "-I", "-m", "app", "run", "-i", "lo")
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        with Terminal(real, columns=COLUMNS, rows=ROWS) as terminal:
            taken.append(terminal.wait(_PAINTED, 10) - started)
            terminal.send("q")
            terminal.wait_exit()
    return statistics.median(taken)


def running(*arguments: str) -> Terminal:
    terminal = Terminal(command(*arguments), columns=COLUMNS, rows=ROWS)
    terminal.wait(f"{_FLOWS} flows", 10)
    time.sleep(3.0)
    return terminal


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
    """The line that is painted as the cursor's: the one bold row below the header."""
    cells = terminal.emulator.cells
    return next((y for y in range(_TOP, ROWS - 1) if "1" in cells[y][2][1][0]), -1)


def main() -> int:
    """Measure; the exit code is 1 where a target is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--console", action="store_true", help="be the console that is measured")
    options.add_argument("--flows", type=int, default=_FLOWS)
    options.add_argument("--churn", action="store_true", help="new rates each second")
    given = options.parse_args()
    if given.console:
        return console(given.flows, given.churn)

    passed = [_report("first paint", first_paint() * 1e3, _MAX_PAINT * 1e3, "ms")]
    for churn in (False, True):
        feed = feeding(churn)
        with running(*(["--churn"] if churn else [])) as terminal:
            cost = terminal.cost(seconds=5.0, windows=3)
            keys = latencies(terminal)
        checks = _checks(cost, feed, keys, "worst case" if churn else "busy server")
        if not churn:
            passed += checks
    print("PASS" if all(passed) else "FAIL")
    return 0 if all(passed) else 1


def _checks(cost: Cost, feed: float, keys: list[float], name: str) -> list[bool]:
    print(f"{name}: {_FLOWS} flows at 1 Hz, {COLUMNS}x{ROWS}; {feed:.1f} % of a core feeds it")
    checks = [
        _report("CPU of a core", cost.cpu_percent - feed, _MAX_CPU, "%"),
        _report("to the terminal", cost.bytes_per_second, _MAX_BYTES, "B/s"),
        _report("key to screen, p99", keys[int(len(keys) * 0.99)] * 1e3, _MAX_KEY * 1e3, "ms"),
    ]
    print(f"        key to screen, p50  {statistics.median(keys) * 1e3:8.1f} ms")
    print(f"        frames              {cost.frames_per_second:8.1f} /s")
    print(f"        resident memory     {cost.rss_mb:8.1f} MB")
    return checks


def _report(what: str, value: float, limit: float, unit: str) -> bool:
    good = value <= limit
    print(f"  {'ok  ' if good else 'MISS'}  {what:<18} {value:8.1f} {unit:<4} (target {limit:g})")
    return good


if __name__ == "__main__":
    sys.exit(main())
