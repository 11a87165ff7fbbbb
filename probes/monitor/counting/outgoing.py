"""The program on egress that counts outgoing packets for conditions, while a policy needs them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.programs import grace
from bpf.programs.program import Program
from probes.hooks import ChainSlot, Hooks
from probes.hooks.interface_hook import InterfaceHook
from probes.life import Bundle
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.programs import MonitorPrograms, SketchHalf, macros_of, own_macros
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
        self._slot: ChainSlot[InterfaceHook] | None = None
        self._halves: Sequence[SketchHalf] = ()
        """The halves of the monitor that have the counters of these programs."""
        self._programs = Bundle[Program]()

    @property
    def possible(self) -> bool:
        """Whether packets have a direction. Mirrored packets, records and captures have none."""
        return self._options.input is Input.REGULAR and self._interface.index != 0

    def see(self, metrics: Iterable[SelectedMetric], monitor: MonitorPrograms) -> None:
        """Attach the program if a metric needs it; packets count in the active half of `monitor`.

        Raises ProbedeckError, and then leaves nothing behind.
        """
        if self._slot or not self.possible or not any(each.leaves for each in metrics):
            return
        point = self._hooks.acquire(self._interface, Hook.TC_EGRESS)
        slot = self._slot = ChainSlot(self._hooks, point, _FUNCTION)
        try:
            self._halves, self._programs = monitor.halves, self._load(monitor.halves, slot)
            point.chain.append(slot.stage, self._programs[monitor.active].fd)
            self._hooks.attach(point)
        except BaseException:
            self.close()
            raise
        self._counters.sees_outgoing = True

    def settle(self) -> None:
        """Detach the program once no policy needs it."""
        if not self._counters.leaving:
            self.close()

    def swap(self, monitor: MonitorPrograms) -> None:
        """Count in the active half from now on. The other one is complete after a grace period."""
        if not self._slot:
            return
        old, is_new = self._programs, monitor.halves is not self._halves
        if is_new:
            self._halves, self._programs = monitor.halves, self._load(monitor.halves, self._slot)
        self._slot.replace(self._programs[monitor.active].fd)
        if is_new:
            grace.wait()
            old.close()

    def close(self) -> None:
        """Leave the hook."""
        self._counters.sees_outgoing = False
        if self._slot:
            self._slot.close()
            self._slot = None
        self._programs.close()

    def _load(
        self, halves: Sequence[SketchHalf], slot: ChainSlot[InterfaceHook]
    ) -> Bundle[Program]:
        """Load a program for each half, or none and raise."""
        with compile_source(self._compiler, self._interface, self._options) as compiled:

            def load(number: int, half: SketchHalf) -> Program:
                maps = {**self._shared, **self._counters.maps_of(number)}
                maps["sketches"] = half.program.map_fd("sketches")
                shared = {name: fd for name, fd in maps.items() if name in compiled.maps}
                return Program(compiled, _FUNCTION, shared=shared, next_fd=slot.stage.next_fd)

            return Bundle(itertools.starmap(load, enumerate(halves)))


def compile_source(compiler: Compiler, interface: Interface, options: MonitorOptions) -> Compiled:
    """Compile the program. Raises KernelError."""
    hook = Hook.TC_EGRESS
    macros = {**macros_of(options, interface, hook), **own_macros(options)}
    return compiler.compile(
        _SOURCE.read_text(encoding="utf-8"),
        hook.prog_type,
        name="monitor.egress.c",
        cflags=[f"-D{name}={value}" for name, value in macros.items()],
    )
