"""Trials of a probe's programs on test frames, before a packet of an interface reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from bpf.attach.attachment import Hook
from bpf.compiler import CompiledProgram
from bpf.errors import UsageError
from bpf.programs import trial
from bpf.programs.verdict import VERDICT_PASS
from probes.compiled_config import CompiledConfig
from probes.control.running_probe import RunningProbe, Verdicts
from probes.control_plane import Cost
from probes.reports import ProgramInfo

if TYPE_CHECKING:
    from probes.config.model import Side

T = TypeVar("T")


class CutError(UsageError):
    """A change that is not forced and would let no packet of an interface pass."""

    def __init__(self, name: str, cuts: Sequence[str]) -> None:
        super().__init__(f"{name}: {cuts[0]}", hint="use --force to run it anyway")


def verdicts_of(compiled: CompiledConfig) -> Verdicts:
    """Run the test frames through each program that has no effect outside."""
    return dict(_tried(compiled, lambda program: trial.verdicts(program.fd)))


def passes(programs: Iterable[ProgramInfo]) -> Verdicts:
    """Return the verdicts of programs that pass every frame, without a trial."""
    return {
        program.side: dict.fromkeys(trial.FRAMES, VERDICT_PASS[Hook(program.hook).prog_type])
        for program in programs
    }


def costs_of(compiled: CompiledConfig) -> tuple[Cost, ...]:
    """Measure the run time of each program that has no effect outside."""
    measured = _tried(compiled, lambda program: trial.cost(program.fd, program.type))
    return tuple(Cost(side, ns) for side, ns in measured)


def _tried(
    compiled: CompiledConfig, run: Callable[[CompiledProgram], T]
) -> Iterator[tuple[Side, T]]:
    for side, program in compiled.programs():
        if trial.is_harmless(program.instructions):
            with suppress(OSError):
                yield side, run(program)


def changes(before: Verdicts, after: Verdicts) -> Iterator[str]:
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
