"""`probedeck bench`: runs benches, prints their results, and writes their files and page."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.runner import page
from bench.runner.charts import terminal
from bench.runner.machine import facts
from bench.runner.results import BenchRun, charts, curves
from bench.runner.running import Plan, Runner
from bench.support.table import BENCHES, Bench
from bpf.errors import KernelError, UsageError

_BROKEN, _MISSED = 1, 3


def listed() -> Iterator[str]:
    """Yield a line for each bench: its name, and the first sentence of its module."""
    for each in BENCHES:
        yield f"{each.name:16}  {(ast.get_docstring(ast.parse(each.source)) or '').splitlines()[0]}"


def chosen(names: Sequence[str]) -> list[Bench]:
    """Return the named benches; without names, each that measures. Raises UsageError for others."""
    known = {each.name: each for each in BENCHES}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no bench {name!r}", hint="--list shows all")
    return [known[name] for name in names] or [each for each in BENCHES if not each.by_name]


def run(
    names: Sequence[str], *, quick: bool, as_json: bool, only_page: bool, against: str,
    rounds: int, folder: str,
) -> int:  # fmt: skip
    """Run benches. Returns 0, 1 if one did not reach its end, or 3 if one missed a goal.

    Results go to `folder`. Without a folder, results of whole runs go to bench/results.
    """
    benches = chosen(names)
    results = Path(folder) if folder else page.RESULTS
    if only_page:
        print(page.write(results))
        return 0
    if os.geteuid():
        raise KernelError("the benches load programs into the kernel", hint="run it with sudo")
    # As ctrl-C does, it removes namespaces and the other checkout.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs, keeps = [], bool(folder) or not (quick or rounds)
    with Runner(Plan(quick, rounds, against)) as runner:
        for bench in benches:
            runs.append(runner.run(bench))
            if not as_json:
                _show(runs[-1])
            if keeps:
                runs[-1].write(results, against)
    if keeps and not against:
        print(f"written: {page.write(results)}", file=sys.stderr)
    if as_json:
        _print_json(runs)
    return _exit_code(runs)


def _show(run: BenchRun) -> None:
    print(f"{run.bench}")
    if run.noise:
        print(f"  the machine is not quiet, so distrust these numbers: {run.noise}")
    told = (str(each) for each in run.results if each.told)
    for line in (*told, *run.text.splitlines()):
        print(f"  {line}")
    for each in run.missing:
        print(f"  not measured: {each}")
    for each in run.failures:
        print(f"  FAILED: {each}")
    for title, lines in charts(run.results).items():
        first = next(iter(lines.values()))[0]
        print(terminal(title, first.x, first.unit, curves(lines)))
    sys.stdout.flush()


def _print_json(runs: Sequence[BenchRun]) -> None:
    results = [
        {
            "name": each.name, "ours": each.ours, "peer": each.peer, "unit": each.unit,
            "ratio": each.ratio, "goal": each.goal or None, "met": each.met,
            "interval": each.interval, "bench": run.bench, "figure": each.figure or None,
        }
        for run in runs for each in run.results
    ]  # fmt: skip
    noise = sorted({run.noise for run in runs} - {""})
    failures = [f"{run.bench}: {each}" for run in runs for each in run.failures]
    machine = {**facts(), "noise": noise}
    print(json.dumps({"machine": machine, "results": results, "failures": failures}, indent=1))


def _exit_code(runs: Sequence[BenchRun]) -> int:
    if any(run.failures for run in runs):
        return _BROKEN
    return _MISSED if any(each.met is False for run in runs for each in run.results) else 0
