"""Trials of a probe's programs on test frames, before a packet of an interface reaches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from bpf.programs import trial
from bpf.programs.verdict import VERDICT_PASS
from probes.compiled_config import CompiledConfig
from probes.control.running_probe import RunningProbe, Verdicts
from probes.control_plane import Cost
from probes.reports import ProgramInfo


class CutError(UsageError):
    """A change that is not forced and would let no packet of an interface pass."""

    def __init__(self, name: str, cuts: Sequence[str]) -> None:
        super().__init__(f"{name}: {cuts[0]}", hint="use --force to run it anyway")


def verdicts_of(compiled: CompiledConfig) -> Verdicts:
    """Run the test frames through each program that has no effect outside."""
    found: dict[str, Mapping[str, int]] = {}
    for side, program in compiled.programs():
        if trial.is_harmless(program.instructions):
            with suppress(OSError):
                found[side] = trial.verdicts(program.fd)
    return found


def passes(programs: Iterable[ProgramInfo]) -> Verdicts:
    """Return the verdicts of programs that pass every frame, without a trial."""
    return {
        program.side: dict.fromkeys(trial.FRAMES, VERDICT_PASS[Hook(program.hook).prog_type])
        for program in programs
    }


def costs_of(compiled: CompiledConfig) -> tuple[Cost, ...]:
    """Measure the run time of each program that has no effect outside."""
    costs: list[Cost] = []
    for side, program in compiled.programs():
        if trial.is_harmless(program.instructions):
            with suppress(OSError):
                costs.append(Cost(side, trial.cost(program.fd, program.type)))
    return tuple(costs)


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
    return tuple(_cuts(compiled, running.verdicts if running else {}, verdicts))


def _cuts(compiled: CompiledConfig, before: Verdicts, after: Verdicts) -> Iterator[str]:
    directions = dict(compiled.config.directions())
    for side, program in compiled.programs():
        said = after.get(side)
        if said is None or said == before.get(side):
            continue
        endings = {trial.ending(program.type, verdict) for verdict in said.values()}
        if "" not in endings:
            of = directions[side].interface
            moved = "sends" if side == "egress" else "receives"
            yield (
                f"{side} lets none of the test frames pass ({', '.join(sorted(endings))}): "
                f"{of} {moved} nothing then"
            )
