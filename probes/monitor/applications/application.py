"""An application as a probe: a user's probe whose windows are searched for findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from bpf.compiler import Compiler
from bpf.programs import trial
from probes.hooks import Hooks
from probes.monitor.applications import catalog
from probes.monitor.applications.views import findings
from probes.program.compiled import CompiledProbe
from probes.program.loading import Clone, LoadedSide
from probes.program.probe import ProgramGeneration, ProgramProbe
from probes.snapshot import Event, Item


class ApplicationProbe(ProgramProbe):
    """A probe behind the monitor of its interface; it gets the packets that policies select
    (S2.16)."""

    def __init__(self, compiler: Compiler, compiled: CompiledProbe, hooks: Hooks) -> None:
        self._reported: frozenset[str] = frozenset()
        """Subjects of the last window's findings."""
        self.ns = math.nan
        """Nanoseconds a packet, measured once; NaN if that failed."""
        for _, program in compiled.programs():
            with suppress(OSError):
                self.ns = trial.cost(program.fd, program.type)
        super().__init__(compiler, compiled, hooks)

    def _end_window(
        self,
        generation: ProgramGeneration,
        ended: Sequence[tuple[LoadedSide, Clone]],
        started_ns: int,
    ) -> tuple[Item, ...]:
        items = super()._end_window(generation, ended, started_ns)
        found = findings(self.name, catalog.defines(generation.config), self.latest)
        # By subject, the first word: the numbers change with every window.
        about = {text.partition(" ")[0]: text for text in reversed(found)}
        new = [text for subject, text in reversed(about.items()) if subject not in self._reported]
        self._reported = frozenset(about)
        return (*items, *(Event.now("warning", self.name, text) for text in new))
