"""The flow probe: programs on its hooks, two generations each, swapped and drained together."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bpf import grace
from bpf.abi import MapType
from bpf.attach import Hook
from bpf.compiler import Compiled, Compiler
from bpf.interface import Interface
from bpf.ring import RingReader
from bpf.syscall import MapSpec, map_create
from probes.builtin import BuiltinProbe, CompiledSides, refuse_other_changes
from probes.flow.filter import FlowFilter
from probes.flow.generation import (
    FUNCTION,
    SIDES,
    SOURCE,
    FlowHook,
    Generation,
    Geometry,
    close_all,
)
from probes.flow.records import FLOW, Array, Direction, TickClock
from probes.hook import Hooks
from probes.plane import Compatibility, Fate, MapFate, ProgramInfo
from probes.snapshot import Item, Loss, LossReason, Snapshot, add_losses

if TYPE_CHECKING:
    from probes.config import ProbeConfig, Side

_OVERFLOW_PAGES = 2048
_FACTORS = 6
_ALARM = MapSpec("alarm", MapType.RINGBUF, 0, 0, mmap.PAGESIZE)
"""As flow.c declares it; both hooks and all generations share one."""


@dataclass(frozen=True, slots=True)
class CompiledFlow(CompiledSides):
    """The flow probe with edited sources, and the filter that it was compiled with."""

    capture: FlowFilter


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the flow probe runs, or ran before."""

    sources: Mapping[Side, str]
    capture: FlowFilter
    hooks: Sequence[tuple[FlowHook, list[Generation]]]

    def close(self) -> None:
        close_all([generation for _, made in self.hooks for generation in made])


class FlowProbe(BuiltinProbe[Loaded]):
    """Flows of an interface, ingress and egress, in windows (S4.1 to S4.5)."""

    name = "flow"

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        where: Sequence[tuple[Hook, Direction]],
        hooks: Hooks,
        capture: FlowFilter = FlowFilter(),  # noqa: B008 - immutable
        geometry: Geometry | None = None,
        *,
        interval: float = 1.0,
    ) -> None:
        """Join the chains of the hooks `where`; raises DeckError, and leaves nothing behind.

        `interval` is what its configuration says; a Poller keeps to it.
        """
        super().__init__(interface)
        self._interval = interval
        self._compiler = compiler
        self._geometry = geometry or Geometry.for_memory()
        self._registry = hooks
        self._points = [(hooks.acquire(interface, hook), direction) for hook, direction in where]
        self._clock = TickClock()
        self._rows: list[Array] = []
        self._losses: dict[LossReason, Loss] = {}
        self.alarm_fd = map_create(_ALARM)
        self._alarm = RingReader(self.alarm_fd, _ALARM.max_entries, np.dtype("u4"))
        self._hooks = [FlowHook(p, direction, self._geometry) for p, direction in self._points]
        source = SOURCE.read_text(encoding="utf-8")
        self._current = Loaded({SIDES[d]: source for _, d in where}, capture, ())
        try:
            self._current = self._load(self._current.sources, capture)
            for hook, generations in self._current.hooks:
                hook.start(generations)
            # Last: what does not load must not touch the interface.
            for point, _ in self._points:
                hooks.attach(point)
        except BaseException:
            self.close()
            raise
        self._start_ns = time.monotonic_ns()

    @property
    def capture(self) -> FlowFilter:
        """Which flows are counted; all others are counted as filtered."""
        return self._current.capture

    @property
    def config(self) -> ProbeConfig:
        """As a user's probe would be described; of it, the sources can be replaced."""
        from probes import config  # pydantic, which the first paint does without

        sides: dict[str, Any] = {
            SIDES[direction]: config.Direction(
                interface=self.interface.name,
                hook="xdp" if point.hook is Hook.XDP else "tc",
                source=self._current.sources[SIDES[direction]],
                metrics=(config.Metric(name="flows", map="records", snapshot=True),),
            )
            for point, direction in self._points
        }
        return config.ProbeConfig(name=self.name, interval=self._interval, **sides)

    def poll(self) -> Snapshot:
        """Swap every hook, wait until the old programs are done, and take their windows."""
        with self._lock:
            self._alarm.read()
            occupancy = max(hook.occupancy() for hook in self._hooks)
            started = time.monotonic_ns()
            swapped = [(hook, hook.swap()) for hook in self._hooks]
            return self._end_window(swapped, occupancy, started)

    def export(self) -> tuple[Snapshot]:
        """The window, as `poll` gives it."""
        return (self.poll(),)

    def reconfigure(self, capture: FlowFilter) -> float:
        """Capture other flows from now on; no packet is lost (S4.3). Returns seconds it took.

        Raises CompileError or UsageError, and then everything runs on as before.
        """
        started = time.perf_counter()
        with self._lock:
            loaded = self._load(self._current.sources, capture)
            # The window goes on: what the old programs counted comes with the next poll.
            replaced = _switch(loaded)
            grace.wait()
            self._collect(replaced)
            self._forget_previous()
            self._current.close()
            self._current = loaded
            self.generation += 1
        return time.perf_counter() - started

    def compile(self, config: ProbeConfig) -> CompiledFlow:
        """Compile other sources. Raises CompileError, and UsageError for what can't change."""
        refuse_other_changes(self.config, config)
        capture = self.capture
        sides: dict[Side, Compiled] = {}
        try:
            for (point, direction), (_, running) in zip(
                self._points, self._current.hooks, strict=True
            ):
                side = SIDES[direction]
                source = getattr(config, side).source
                sides[side] = self._compile(point.hook, capture, source, side)
                running[0].check(sides[side], side)
        except BaseException:
            CompiledFlow(config, FUNCTION, sides, capture).close()
            raise
        return CompiledFlow(config, FUNCTION, sides, capture)

    def compare(self, compiled: CompiledFlow) -> Compatibility:
        """What `replace` would keep and lose: each window starts empty in any case."""
        fates = (MapFate(side, "records", Fate.WINDOW, "", 0) for side in compiled.sides)
        return Compatibility(tuple(fates), (), (), ())

    def replace(self, compiled: CompiledFlow) -> tuple[Item, ...]:
        """Put edited programs in the place of those that run; the window that so ended."""
        with self._lock:
            if compiled.capture is not self.capture:
                with closing(self.compile(compiled.config)) as fresh:
                    return self.replace(fresh)
            sources = {side: getattr(compiled.config, side).source for side in compiled.sides}
            return self._become(self._load(sources, self.capture, compiled.sides))

    def programs(self) -> tuple[ProgramInfo, ...]:
        """What of it is in the kernel."""
        with self._lock:
            return tuple(
                ProgramInfo(
                    SIDES[direction],
                    self.interface.name,
                    point.hook.value,
                    point.mode,
                    "flow",
                    hook.active.program.info().id,
                    sum(g.program.memory() for g in hook.generations),
                )
                for (point, direction), hook in zip(self._points, self._hooks, strict=True)
            )

    def memory(self) -> int:
        """Bytes of kernel memory of all its maps."""
        return sum(program.memory for program in self.programs())

    def _become(self, new: Loaded) -> tuple[Item, ...]:
        self._alarm.read()
        occupancy = max(hook.occupancy() for hook in self._hooks)
        started = time.monotonic_ns()
        snapshot = self._end_window(_switch(new), occupancy, started)
        self._forget_previous()
        self._previous, self._current = self._current, new
        self.generation += 1
        return (snapshot,)

    def _end_window(
        self, swapped: Sequence[tuple[FlowHook, Generation]], occupancy: float, started_ns: int
    ) -> Snapshot:
        """The window of programs that were swapped out just now."""
        end_ns = time.monotonic_ns()
        grace.wait()
        quiet = time.monotonic_ns()
        self._collect(swapped)
        rows, losses = self._rows, self._losses
        self._rows, self._losses = [], {}
        self.window += 1
        snapshot = self._snapshot(
            _joined(rows), end_ns, losses, occupancy, quiet_ns=quiet, swap_ns=quiet - started_ns
        )
        self._start_ns = end_ns
        self.latest = (snapshot,)
        return snapshot

    def close(self) -> None:
        with self._lock:
            self._forget_previous()
            for hook in self._hooks:
                hook.close()
            self._current.close()
            for point, _ in self._points:
                self._registry.release(point)
            self._hooks, self._points = [], []
            self._alarm.close()
            os.close(self.alarm_fd)
            self._clock.close()

    def _collect(self, quiet: Sequence[tuple[FlowHook, Generation]]) -> None:
        """Take the contents of generations that no CPU runs any more."""
        self._clock.update()
        for hook, generation in quiet:
            rows, losses = hook.drain(generation, self._clock)
            self._rows.append(rows)
            add_losses(self._losses, losses)

    def _load(
        self,
        sources: Mapping[Side, str],
        capture: FlowFilter,
        compiled: Mapping[Side, Compiled] | None = None,
    ) -> Loaded:
        """New generations for every hook, or an error and none at all.

        What is not in `compiled` is compiled; that stays the caller's.
        """
        loaded: list[tuple[FlowHook, list[Generation]]] = []
        try:
            for hook, (point, direction) in zip(self._hooks, self._points, strict=True):
                side = SIDES[direction]
                if compiled:
                    loaded.append((hook, hook.load(compiled[side], self.alarm_fd)))
                    continue
                with self._compile(point.hook, capture, sources[side], side) as fresh:
                    loaded.append((hook, hook.load(fresh, self.alarm_fd)))
        except BaseException:
            Loaded(sources, capture, loaded).close()
            raise
        return Loaded(sources, capture, loaded)

    def _compile(self, hook: Hook, capture: FlowFilter, source: str, side: Side) -> Compiled:
        """The program for a hook, with hash factors that nobody knows."""
        geometry = self._geometry
        macros = {
            hook.macro: 1,
            "LINK_ETHERNET": int(self.interface.ethernet),
            "CPUS": geometry.cpus,
            "RECORDS_PER_CPU": geometry.records,
            "SETS_PER_CPU": geometry.sets,
            "ALARM_AT": geometry.alarm_at,
            "OVERFLOW_PAGES": _OVERFLOW_PAGES,
            **{f"HASH_{i}": f"{secrets.randbits(64) | 1:#x}ULL" for i in range(_FACTORS)},
        }
        return self._compiler.compile(
            source,
            hook.prog_type,
            name=f"{self.name}.{side}.c",
            headers={"capture.h": capture.to_c()},
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        )


def _switch(loaded: Loaded) -> list[tuple[FlowHook, Generation]]:
    """Have other generations written on every hook; those that were, to drain after grace."""
    return [(hook, old) for hook, new in loaded.hooks for old in hook.replace(new)]


def _joined(parts: Sequence[Array]) -> Array:
    """Rows of dtype FLOW of several drains; only copied where there are several."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    # Without the dtype numpy would turn ports to the machine's byte order.
    return np.concatenate([np.empty(0, FLOW), *filled], dtype=FLOW)
