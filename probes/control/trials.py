"""Trials of a probe's programs on test frames, before a packet of an interface reaches them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from bpf.attach.attachment import Hook
from bpf.compiler import CompiledProgram
from bpf.errors import UsageError
from bpf.programs import trial
from bpf.programs.program import VERDICT_PASS
from probes.control.running_probe import RunningProbe, Verdicts
from probes.life import CompiledConfig
from probes.reports import Compatibility, Cost, ProgramInfo
from probes.snapshot import Event

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side

T = TypeVar("T")


class CutError(UsageError):
    """A change that is not forced and would let no packet of an interface pass."""

    def __init__(self, name: str, cuts: Sequence[str]) -> None:
        super().__init__(f"{name}: {cuts[0]}", hint="use --force to run it anyway")


def verdicts_of(compiled: CompiledConfig) -> Verdicts:
    """Run the test frames through each program that has no effect outside."""
    return dict(_tried(compiled, lambda program: trial.verdicts(program.loaded())))


def passes(programs: Iterable[ProgramInfo]) -> Verdicts:
    """Return the verdicts of programs that pass every frame, without a trial."""
    return {
        program.side: dict.fromkeys(trial.FRAMES, VERDICT_PASS[Hook(program.hook).prog_type])
        for program in programs
    }


def costs_of(compiled: CompiledConfig) -> tuple[Cost, ...]:
    """Measure the run time of each program that has no effect outside."""
    measured = _tried(compiled, lambda program: trial.cost(program.loaded(), program.type))
    return tuple(Cost(side, ns) for side, ns in measured)


def _tried(
    compiled: CompiledConfig, run: Callable[[CompiledProgram], T]
) -> Iterator[tuple[Side, T]]:
    for side, program in compiled.programs():
        if trial.is_harmless(program.instructions):
            with suppress(OSError):
                yield side, run(program)


def _changes(before: Verdicts, after: Verdicts) -> Iterator[str]:
    """Yield a warning for each changed verdict: seldom does an operator mean such a change."""
    for side, said in after.items():
        for frame, verdict in said.items():
            old = before.get(side, {}).get(frame, verdict)
            if verdict != old:
                yield f"{side}: {frame} gets verdict {verdict}, was {old}"


def cuts(
    running: RunningProbe | None, compiled: CompiledConfig, verdicts: Verdicts
) -> tuple[str, ...]:
    """Return the directions of `compiled` that let no test frame pass, each as a sentence.

    The operator must confirm them. Directions whose verdicts are those of `running` do not count,
    and applications do not either: the monitor ignores their verdicts.
    """
    if compiled.config.is_application:
        return ()
    if running and running.probe.builtin and not running.verdicts:
        return ()  # The verdicts of the monitor and of path tracing are never tried.
    before = running.verdicts if running else {}
    directions = dict(compiled.config.directions())
    found: list[str] = []
    for side, program in compiled.programs():
        said = verdicts.get(side)
        if said is None or said == before.get(side):
            continue
        endings = {trial.ending(program.type, verdict) for verdict in said.values()}
        if "" not in endings:
            moved = "sends" if side == "egress" else "receives"
            found.append(
                f"{side} lets none of the test frames pass ({', '.join(sorted(endings))}): "
                f"{directions[side].interface} {moved} nothing then"
            )
    return tuple(found)


def refuse_cuts(
    running: RunningProbe | None, compiled: CompiledConfig, verdicts: Verdicts, force: bool
) -> tuple[str, ...]:
    """Return the cuts of a forced change. Raises CutError if the change is not forced."""
    found = cuts(running, compiled, verdicts)
    if found and not force:
        raise CutError(compiled.config.name, found)
    return found


def compare(running: RunningProbe, compiled: CompiledConfig, verdicts: Verdicts) -> Compatibility:
    """Return the probe's report, with a warning for each changed verdict."""
    report = running.probe.compare(compiled)
    return replace(report, warnings=(*report.warnings, *_changes(running.verdicts, verdicts)))


def warnings(compiled: CompiledConfig, cut: Sequence[str]) -> Iterator[Event]:
    """Yield an event for each forced cut and each warning of the compiler."""
    for text in cut:
        yield Event.now("warning", compiled.config.name, text)
    for diagnostic in compiled.diagnostics:
        if diagnostic.severity == "warning":
            text = str(diagnostic.renamed(compiled.config.files()))
            yield Event.now("warning", compiled.config.name, text)


class LastCheck:
    """Keeps one compiled configuration until a change takes it."""

    def __init__(self, changing: threading.RLock) -> None:
        """`changing` is the lock of changes."""
        self._changing = changing
        self._against: RunningProbe | None = None
        self.compiled: CompiledConfig | None = None

    def keep(self, compiled: CompiledConfig, against: RunningProbe | None) -> None:
        """Keep a result, and the probe that ran under its name. The result before it is closed."""
        with self._changing:
            self.forget()
            self._against, self.compiled = against, compiled

    def take(self, config: ProbeConfig, against: RunningProbe | None) -> CompiledConfig | None:
        """Give the caller the result, if it is of this configuration and this running probe."""
        with self._changing:
            compiled = self.compiled
            if compiled is None or self._against is not against or compiled.config != config:
                return None
            self._against = self.compiled = None
            return compiled

    def forget(self) -> None:
        """Close the result."""
        if self.compiled is not None:
            self.compiled.close()
            self._against = self.compiled = None
