"""Runs benches: groups of cases by rounds, or the program of a bench without cases."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec

from bench.runner.cases import Group
from bench.runner.checkout import ROOT, head, same_benches
from bench.runner.machine import Noise, facts
from bench.runner.results import BenchRun, Measured, Result, growth
from bench.runner.worker import Remote, Sample, Worker
from bench.support.table import Bench
from bpf.errors import ProbedeckError

_ENOUGH_S = 1.0
"""Between two messages of the progress."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a run of benches."""

    quick: bool = False
    rounds: int = 0
    """0: as many as each group has."""
    against: str = ""
    """A commit to compare with."""


class Progress:
    """The state of a run on standard error: one line of a terminal, or a line a group."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._group, self._at = "", 0.0

    def say(self, group: str, detail: str) -> None:
        if self._terminal and time.monotonic() > self._at + _ENOUGH_S:
            print(f"\r\x1b[K{group}: {detail}", end="", file=sys.stderr, flush=True)
            self._at = time.monotonic()
        elif not self._terminal and group != self._group:
            print(group, file=sys.stderr, flush=True)
        self._group = group

    def end(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Runner:
    """Runs benches one after the other; closes what it opened at the end of `with`."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._stack = plan, ExitStack()
        self._machine, self._commit = facts(), head()
        self.progress = Progress()
        try:
            self._worker = self._stack.enter_context(Worker(plan.quick))
            self._other = None
            if plan.against:
                tree = self._stack.enter_context(same_benches(plan.against))
                self._other = self._stack.enter_context(Remote(tree, plan.quick))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.end()
        self._stack.close()

    def run(self, bench: Bench) -> BenchRun:
        """Measure a bench. A group that breaks is a failure of the run, and ends no other group."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        run = BenchRun(bench.name, self._machine, self._commit, now, self._plan.quick)
        noise = Noise()
        if bench.needs and find_spec(bench.needs) is None:
            run.missing.append(f"{bench.needs} is not there; ./probedeck bench installs it")
        elif bench.has_cases:
            for number, group in enumerate(self._worker.groups(bench.module)):
                try:
                    run.results += self._group(bench, number, group, noise)
                    if lacks := self._worker.lacks:
                        run.missing.append(f"{group.name}: {lacks}")
                except ProbedeckError as error:
                    run.failures.append(f"{group.name}: {error}")
                except Exception:
                    run.failures.append(f"{group.name}: {traceback.format_exc()}")
        else:
            self._program(bench, run)
        run.noise = str(noise)
        self.progress.end()
        return run

    def _group(self, bench: Bench, number: int, group: Group, noise: Noise) -> list[Result]:
        title = f"{bench.name}: {group.name}"
        self.progress.say(title, "set-up")
        measured = [Measured(case) for case in self._worker.open(bench.module, number)]
        if self._other:
            self._other.open(bench.module, number)
        plan = self._plan
        rounds = plan.rounds if plan.rounds and group.rounds > 1 else group.rounds
        rounds = 1 if plan.quick and not plan.rounds else rounds
        warm = group.warm and not plan.quick
        for turn in range(-warm, rounds):
            self.progress.say(title, f"round {turn + 1} of {rounds}")
            noise.calibrate()
            samples, theirs = self._round(turn)
            if turn >= 0:
                for each in measured:
                    _add(each, samples[each.case.name], theirs)
        results = [each.result(plan.against) for each in measured]
        return results if plan.against else [*results, *growth(measured)]

    def _round(self, turn: int) -> tuple[Mapping[str, Sample], Mapping[str, float]]:
        """Measure both checkouts. Each other round is backwards: no one always comes first."""
        backwards = bool(turn % 2)
        if not self._other:
            return self._worker.round(backwards=backwards), {}
        theirs = self._other.round(backwards=backwards) if backwards else {}
        samples = self._worker.round(backwards=backwards, peers=False)
        return samples, theirs or self._other.round(backwards=backwards)

    def _program(self, bench: Bench, run: BenchRun) -> None:
        """Run a bench that prints text. A missed target is its exit code 1."""
        if self._plan.quick and bench.quick is None:
            run.missing.append("it has no quick form")
            return
        if self._plan.against:
            run.missing.append("it has no cases to compare two commits by")
            return
        self.progress.say(f"{bench.name}: text", "running")
        words = (bench.quick or "").split() if self._plan.quick else ()
        command: Sequence[str] = (
            sys.executable,
            "-I",
            "-m",
            bench.module.removesuffix(".__main__"),
            *words,
        )
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        run.text = done.stdout
        if lacking := re.search(r"UsageError: (.+ is not installed)", done.stderr):
            run.missing.append(lacking[1])
        elif done.returncode not in (0, 1) or "Traceback" in done.stderr:
            run.failures.append(f"exit code {done.returncode}\n{done.stderr}")
        elif found := re.findall(r"^  (PASS|FAIL) (.+)$", done.stdout, re.MULTILINE):
            missed = sum(verdict == "FAIL" for verdict, _ in found)
            run.results.append(
                Result(f"{bench.name}: missed targets of its text", missed, None, "targets",
                       goal="0", met=not missed)
            )  # fmt: skip


def _add(measured: Measured, sample: Sample, theirs: Mapping[str, float]) -> None:
    """Add a round; the peer is the other checkout if there is one and it has the case."""
    measured.ours.append(sample.ours)
    peer = theirs.get(measured.case.name) if theirs else sample.peer
    if peer is not None:
        measured.peers.append(peer)
