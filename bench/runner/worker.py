"""A checkout at work: it opens groups of cases and measures them, a round at a time.

    python -I -m bench.runner.worker

As a program it obeys lines of JSON on standard input: `--against` runs it in another checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.runner.cases import Case, Effort, Group, Measure, MissingError
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError

_START = "import sys; sys.path.insert(0, {!r}); from bench.runner.worker import main; main()"


class Sample(NamedTuple):
    """One round of a case, above its floor."""

    ours: float
    peer: float | None


class Worker:
    """Cases of this checkout."""

    def __init__(self, quick: bool) -> None:
        self._all, self._open = ExitStack(), ExitStack()
        self._effort = Effort(quick, self._all.enter_context(Compiler()))
        self._cases: list[Case] = []
        self.lacks = ""
        """The unmeasured part of the open group, with the reason."""

    def groups(self, module: str) -> Sequence[Group]:
        return list(import_module(module).GROUPS)

    def open(self, module: str, number: int) -> Sequence[Case]:
        """Set a group up, after the last one is closed."""
        self._open.close()
        self._cases, self.lacks = [], ""
        try:
            for case in self.groups(module)[number].make(self._open, self._effort):
                self._cases.append(case)
        except MissingError as error:
            self.lacks = str(error)
        return self._cases

    def round(self, *, backwards: bool, peers: bool = True) -> dict[str, Sample]:
        """Measure each case once; by its name."""
        wanted: dict[Measure, float] = {}
        for case in self._cases:
            for measure in (case.floor, case.peer if peers else None, case.ours):
                if measure is not None:
                    wanted.setdefault(measure, 0.0)
        for measure in reversed(list(wanted)) if backwards else list(wanted):
            wanted[measure] = float(measure())
        found = {}
        for case in self._cases:
            floor = wanted[case.floor] if case.floor else 0.0
            peer = wanted[case.peer] - floor if case.peer and peers else None
            found[case.name] = Sample(wanted[case.ours] - floor, peer)
        return found

    def close(self) -> None:
        self._open.close()
        self._all.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Remote:
    """A worker of another checkout, in another process."""

    def __init__(self, checkout: Path, quick: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(str(checkout))],
            cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._ask(quick=quick)

    def open(self, module: str, number: int) -> None:
        """Set a group up. Raises ProbedeckError if that checkout cannot."""
        self._ask(module=module, number=number)

    def round(self, *, backwards: bool) -> Mapping[str, float]:
        """Measure ours of each case once; by its name."""
        found: dict[str, float] = self._ask(backwards=backwards)
        return found

    def _ask(self, **request: object) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise ProbedeckError("the other checkout's process ended; its last words are above")
        answer = json.loads(line)
        if error := answer.get("error"):
            raise ProbedeckError(f"the other checkout: {error}")
        return answer["value"]

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """Obey requests until standard input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # A bench may print.
    with Worker(json.loads(sys.stdin.readline())["quick"]) as worker:
        print(json.dumps({"value": None}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            answer: dict[str, Any] = {"value": None}
            try:
                if "module" in request:
                    worker.open(request["module"], request["number"])
                else:
                    samples = worker.round(backwards=request["backwards"], peers=False)
                    answer["value"] = {name: sample.ours for name, sample in samples.items()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
