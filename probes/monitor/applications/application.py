"""An application as a probe: a user's probe whose windows are searched for findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from bpf.compiler import Compiler
from bpf.programs import trial
from probes.config.model import Side
from probes.hooks import Hooks
from probes.monitor.applications import catalog
from probes.monitor.applications.views import findings
from probes.program.compiled import CompiledProbe
from probes.program.loading import Clone, LoadedSide
from probes.program.probe import ProgramProbe
from probes.snapshot import Event, Item, Snapshot


class ApplicationProbe(ProgramProbe):
    """A probe behind the monitor of its interface; it gets the packets that policies select
    (S2.16). A program for egress runs only while a policy that wakes it is active."""

    def __init__(self, compiler: Compiler, compiled: CompiledProbe, hooks: Hooks) -> None:
        self._awake = self._held = self._lacks = False
        self._reported: frozenset[str] = frozenset()
        """Subjects of the last window's findings."""
        self.ns = math.nan
        """Nanoseconds a packet, measured once; NaN if that failed."""
        for _, program in compiled.programs():
            with suppress(OSError):
                self.ns = trial.cost(program.loaded(), program.type)
        super().__init__(compiler, compiled, hooks)

    def wake(self, on: bool, *, held: bool = False) -> None:
        """Attach the program for egress, or detach it. `held`: for the CPU budget, the application
        gets none of the packets that a policy selects; its windows of that time are cut.

        Raises ProbedeckError if the interface refuses it; the application then runs without.
        """
        with self._lock:
            self._held = held
            self._lacks |= held
            if on == self._awake:
                return
            self._awake = on
            outgoing = [side for side in self._current.sides if side.side == "egress"]
            for slot in [self._slots[side.hook_key] for side in outgoing]:
                if on:
                    self._hooks.attach(slot.point)
                else:
                    slot.leave()
                    self._hooks.rest(slot.point)
            if on:
                self._join(outgoing)

    def _is_wanted(self, side: Side) -> bool:
        return self._awake or side == "ingress"

    def _end_window(
        self, ended: Sequence[tuple[LoadedSide, Clone]], started_ns: int
    ) -> tuple[Item, ...]:
        items = super()._end_window(ended, started_ns)
        self._lacks = self._held
        found = findings(self.name, catalog.defines(self.config), self.latest)
        # By subject, the first word: the numbers change with every window.
        about = {text.partition(" ")[0]: text for text in reversed(found)}
        new = [text for subject, text in reversed(about.items()) if subject not in self._reported]
        self._reported = frozenset(about)
        return (*items, *(Event.now("warning", self.name, text) for text in new))

    def _convert(self, table: Snapshot) -> Snapshot:
        return replace(table, cut=True) if self._lacks else table
