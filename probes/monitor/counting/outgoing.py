"""The program on egress that counts outgoing packets for conditions, while a policy needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.compiler import Compiler
from bpf.programs import grace
from bpf.programs.program import Program
from probes.hooks import Hooks, InterfaceHook
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.programs import SketchHalf, macros_of, own_macros
from probes.monitor.selected import SelectedMetric
from probes.monitor.selected_counters import SelectedCounters

_FUNCTION = "outgoing"
_SOURCE = Path(__file__).with_name("outgoing.c")


class Outgoing:
    """Counts for the conditions of a monitor. For one thread at a time."""

    def __init__(
        self,
        compiler: Compiler,
        point: InterfaceHook,
        hooks: Hooks,
        options: MonitorOptions,
        shared: Mapping[str, int],
        counters: SelectedCounters,
    ) -> None:
        """`point` is the monitor's hook, and `shared` has the maps that its halves share."""
        self._compiler = compiler
        self._interface = point.interface
        self._hooks = hooks
        self._options = options
        self._shared = shared
        self._counters = counters
        self._point: InterfaceHook | None = None
        self._stage: Stage | None = None
        self._programs: list[Program] = []

    @property
    def possible(self) -> bool:
        """Whether packets have a direction. Mirrored packets, records and captures have none."""
        return self._options.input is Input.REGULAR and self._interface.index != 0

    def see(
        self, metrics: Iterable[SelectedMetric], halves: Sequence[SketchHalf], active: int
    ) -> None:
        """Attach the program if a metric needs it; packets count in the active one of `halves`.

        Raises ProbedeckError, and then leaves nothing behind.
        """
        if self._point or not self.possible or not any(each.leaves for each in metrics):
            return
        self._stage = Stage(_FUNCTION)
        self._point = self._hooks.acquire(self._interface, Hook.TC_EGRESS)
        try:
            self._programs = self._load(halves)
            self._point.chain.append(self._stage, self._programs[active].fd)
            self._hooks.attach(self._point)
        except BaseException:
            self.close()
            raise
        self._counters.sees_outgoing = True

    def settle(self) -> None:
        """Detach the program once no policy needs it."""
        if not self._counters.leaving:
            self.close()

    def reload(self, halves: Sequence[SketchHalf], active: int) -> None:
        """Count in the halves of another generation of the monitor."""
        if self._point:
            old, self._programs = self._programs, self._load(halves)
            self.swap(active)
            grace.wait()
            _close(old)

    def swap(self, active: int) -> None:
        """Count in this half from now on. The other one is complete after a grace period."""
        if self._point and self._stage:
            self._point.chain.replace(self._stage, self._programs[active].fd)

    def close(self) -> None:
        """Leave the hook."""
        self._counters.sees_outgoing = False
        if self._point and self._stage:
            if self._stage.prog_fd >= 0:
                self._point.chain.remove(self._stage)
            self._stage.close()
            self._hooks.release(self._point)
        self._point = None
        _close(self._programs)

    def _load(self, halves: Sequence[SketchHalf]) -> list[Program]:
        """A program for each half, or none and an exception."""
        assert self._stage
        hook = Hook.TC_EGRESS
        macros = {
            **macros_of(self._options, self._interface, hook), **own_macros(self._options)
        }  # fmt: skip
        programs: list[Program] = []
        with self._compiler.compile(
            _SOURCE.read_text(encoding="utf-8"),
            hook.prog_type,
            name="monitor.egress.c",
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        ) as compiled:
            try:
                for number, half in enumerate(halves):
                    maps = {**self._shared, **self._counters.maps_of(number)}
                    maps["sketches"] = half.program.map_fd("sketches")
                    shared = {name: fd for name, fd in maps.items() if name in compiled.maps}
                    programs.append(
                        Program(compiled, _FUNCTION, shared=shared, next_fd=self._stage.next_fd)
                    )
            except BaseException:
                _close(programs)
                raise
        return programs


def _close(programs: list[Program]) -> None:
    for each in programs:
        each.close()
    programs.clear()
