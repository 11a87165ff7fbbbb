"""Path tracing's programs on both hooks, and their shared tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bpf.abi import MapType
from bpf.compiler import Compiled
from bpf.errors import UsageError
from bpf.programs.program import Program
from bpf.syscall import prog_array_set
from probes.builtin import ProbeMaps

if TYPE_CHECKING:
    from probes.config.model import Side

FUNCTION = "path"
SOURCES: Mapping[Side, Path] = {
    side: Path(__file__).with_name(f"{side}.c") for side in ("ingress", "egress")
}
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
STEPS: Mapping[Side, tuple[str, ...]] = {
    "ingress": ("deliver", "arrive"),
    "egress": ("send4", "send6", "edit4", "edit6"),
}
"""In the order of the indices in the sources."""
_SENDING = ("send4", "send6", "arrive")
"""These steps pass the packet on to the next probe. Other probes see neither a clone that became a
probe, nor an answer that the host gets."""
PROGRAMS: Mapping[Side, tuple[str, ...]] = {
    side: (FUNCTION, *steps) for side, steps in STEPS.items()
}
SHARED_MAPS = (
    "addresses", "shared", "senders", "targets", "slots", "exchanges", "samples", "sampled",
)  # fmt: skip
"""Maps that both directions and all generations share."""


class SideProgram:
    """The program of one direction, and its steps."""

    def __init__(self, side: Side, compiled: Compiled, tables: ProbeMaps, next_fd: int) -> None:
        """Load the programs. Raises as `Program` does, and then leaves nothing behind."""
        steps = STEPS[side]
        _check_steps(compiled, len(steps))
        self.main = Program(compiled, FUNCTION, shared=tables.fds, next_fd=next_fd)
        self._steps: list[Program] = []
        own = {name: self.main.map_fd(name) for name in compiled.maps}
        try:
            for at, name in enumerate(steps):
                onward = next_fd if name in _SENDING else None
                self._steps.append(Program(compiled, name, shared=own, next_fd=onward))
                prog_array_set(own["steps"], at, self._steps[-1].fd)
        except BaseException:
            self.close()
            raise

    def memory(self) -> int:
        return self.main.memory()

    def close(self) -> None:
        for step in self._steps:
            step.close()
        self.main.close()


def _check_steps(compiled: Compiled, count: int) -> None:
    """Raises UsageError if the program array of the steps is missing or too small."""
    steps = compiled.maps.get("steps")
    if not (steps and steps.spec.type is MapType.PROG_ARRAY and steps.spec.max_entries >= count):
        raise UsageError(f"the source must have the program array steps of {count}")


@dataclass(frozen=True, slots=True)
class PathGeneration:
    """One generation: its sources and loaded programs."""

    sources: Mapping[Side, str]
    programs: Mapping[Side, SideProgram]

    def close(self) -> None:
        for program in self.programs.values():
            program.close()
