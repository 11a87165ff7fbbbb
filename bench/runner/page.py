"""The page of ratios, bench/README.md: made of the files of results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.runner.charts import slug, svg
from bench.runner.checkout import ROOT
from bench.runner.results import BenchRun, Result, charts, curves, number

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "bench" / "README.md"
_HEAD = """# Measurements

`probedeck bench` makes this page of the files in `{folder}`. Each number stands there, with its
interval, its machine and its commit. Ratios compare two things in the same rounds, by turns: they
hold for other machines better than times do.

    sudo ./probedeck bench                         # all benches: some two hours
    sudo ./probedeck bench flow monitor            # some of them
    sudo ./probedeck bench flow --against v0.6.0   # this checkout beside a commit, by turns
    sudo ./probedeck bench --list

An interval has the median in 95 of 100 runs; of fewer than six rounds it is their range. An
exponent k tells that a cost grows as size^k: 0 is flat, 1 is proportional.
"""
_TABLE = "| case | ours | peer | ratio | 95 % | goal | |\n|---|--:|--:|--:|--:|---|---|"
_VERDICTS = {True: "met", False: "**missed**", None: ""}


def read_all(folder: Path) -> list[BenchRun]:
    """Return the results of all benches. Comparisons of commits stand in other files."""
    paths = sorted(folder.glob("*.json"))
    return [BenchRun.read(path) for path in paths if not path.name.endswith(".against.json")]


def draw(folder: Path, run: BenchRun) -> Iterator[tuple[str, str]]:
    """Yield title and file of each chart of a bench, after writing it."""
    for title, lines in charts(run.results).items():
        first = next(iter(lines.values()))[0]
        path = folder / f"{run.bench}-{slug(title)}.svg"
        path.write_text(svg(title, first.x, first.unit, curves(lines)), encoding="utf-8")
        yield title, path.name


def page(runs: Iterable[BenchRun], folder: str) -> str:
    """Return the page; `folder` is the one of the results, seen from the page."""
    kept = list(runs)
    parts = [_HEAD.format(folder=folder), "## Beside the papers\n", _papers(kept)]
    for run in kept:
        parts.append(f"\n## {run.bench}\n\n{_about(run)}\n")
        if run.results:
            told = (_row(each) for each in run.results if each.told)
            parts.append("\n".join([_TABLE, *told]))
        parts += [f"\n![{title}]({folder}/{run.bench}-{slug(title)}.svg)"
                  for title in charts(run.results)]  # fmt: skip
        parts += [f"\nNot measured: {each}." for each in run.missing]
        parts += [f"\nFailed: {each}." for each in run.failures]
        if run.text:
            parts.append(f"\n```text\n{run.text.strip()}\n```")
    return "\n".join(parts) + "\n"


def _about(run: BenchRun) -> str:
    machine = run.machine
    noise = f" The machine was not quiet: {run.noise}." if run.noise else ""
    at = f"{run.date[:10]}, commit {run.commit or 'unknown'}"
    return f"{at}: {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}.{noise}"


def _row(each: Result) -> str:
    between = " to ".join(map(number, each.interval)) if each.interval and each.rounds > 1 else ""
    peer = f"{number(each.peer)} {each.against}" if each.peer is not None else ""
    cells = (
        each.name, f"{number(each.ours)} {each.unit}", peer,
        number(each.ratio) if each.ratio is not None else "", between, each.goal,
        _VERDICTS[each.met],
    )  # fmt: skip
    return f"| {' | '.join(map(str.strip, cells))} |"


def _papers(runs: Sequence[BenchRun]) -> str:
    """Return a table of the cases that repeat a figure, with the results of the papers."""
    found = [each for run in runs for each in run.results if each.figure]
    rows = ["| figure | case | ours | ratio | the paper | |", "|---|---|--:|--:|---|---|"]
    for each in sorted(found, key=lambda each: each.figure):
        ratio = number(each.ratio) if each.ratio is not None else ""
        cells = (each.figure, each.name, f"{number(each.ours)} {each.unit}", ratio, each.paper,
                 _VERDICTS[each.met])  # fmt: skip
        rows.append(f"| {' | '.join(map(str.strip, cells))} |")
    return "\n".join(rows)


def write(folder: Path) -> Path:
    """Write the charts and the page of a folder of results; return the page."""
    target = PAGE if folder.resolve() == RESULTS else folder / "README.md"
    runs = read_all(folder)
    for run in runs:
        list(draw(folder, run))
    text = page(runs, os.path.relpath(folder, target.parent))
    target.write_text(text, encoding="utf-8")
    return target
