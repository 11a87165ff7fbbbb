"""The flow probe: programs on its hooks, two generations each, swapped and drained together."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from bpf.abi import MapType
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import ProbedeckError
from bpf.machine import numbered_cpus
from bpf.maps.kinds import map_memory
from bpf.maps.ring import RingReader
from bpf.programs import grace
from bpf.programs.program import Program, make_map
from bpf.syscall import MapSpec
from probes.builtin import BuiltinProbe, CompiledSides
from probes.flow.clock import flow_clock
from probes.flow.filter import FlowFilter
from probes.flow.hook import FUNCTION, HALVES, SIDES, SOURCE, FlowHook, close_all
from probes.flow.records import FLOW, Array, FlowDirection
from probes.flow.sizes import DATAGRAMS, TableSizes
from probes.flow.tables import FlowTables
from probes.hooks import Hooks, InterfaceHook
from probes.map_reading import LentMap
from probes.memory_limit import default_limit, flow_share
from probes.reports import Compatibility, Fate, MapFate, ProgramInfo
from probes.snapshot import Event, Item, Loss, LossReason, Snapshot, add_losses
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side

_FACTORS = 7
_MAP_SIZES = ("RECORDS", "SETS", "CPUS", "OVERFLOW_PAGES", "DATAGRAMS")
_ALARM = MapSpec("alarm", MapType.RINGBUF, 0, 0, mmap.PAGESIZE)
"""As flow.c declares it; both hooks and all generations share one."""
_DATAGRAMS = MapSpec("datagrams", MapType.LRU_HASH, 40, 16, DATAGRAMS)
"""As fragment.h declares it; shared as the alarm is."""


@dataclass(frozen=True, slots=True)
class CompiledFlow(CompiledSides):
    """The flow probe with edited sources, and the filter that it was compiled with."""

    capture: FlowFilter


@dataclass(frozen=True, slots=True)
class FlowGeneration:
    """One generation of programs, which runs or ran before; the tables are the hooks' own."""

    sources: Mapping[Side, str]
    capture: FlowFilter
    hooks: Sequence[tuple[FlowHook, list[Program]]]

    def close(self) -> None:
        for _, programs in self.hooks:
            close_all(programs)


class FlowProbe(BuiltinProbe[FlowGeneration]):
    """Flows of an interface, ingress and egress, in windows (S4.1 to S4.5)."""

    name = "flow"
    function = FUNCTION

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        where: Sequence[tuple[Hook, FlowDirection]],
        hooks: Hooks,
        capture: FlowFilter = FlowFilter(),  # noqa: B008 - immutable
        sizes: TableSizes | None = None,
        *,
        memory: int | None = None,
        interval: float = 1.0,
        tunnels: Tunnels = Tunnels.OUTER,
    ) -> None:
        """Join the chains of the hooks `where`; raises ProbedeckError, and leaves nothing behind.

        The tables take at most `memory` bytes: by default their share of the default limit.
        `sizes` are chosen accordingly if None. `interval` is the configuration's; a Poller keeps
        to it.
        """
        super().__init__(compiler, interface, interval)
        self._memory = flow_share(default_limit()) if memory is None else memory
        self._tunnels = tunnels
        inside = tunnels is not Tunnels.OUTER
        self._sizes = sizes or TableSizes.within(self._memory, tunnels=inside)
        self._cpus = self._sizes.cpus
        """CPUs that the tables were to be made for; fewer have records if memory was short."""
        self._rows: list[Array] = []
        self._losses: dict[LossReason, Loss] = {}
        self._points: list[tuple[InterfaceHook, FlowDirection]] = []
        with ExitStack() as owned:
            for hook, direction in where:
                point = hooks.acquire(interface, hook)
                owned.callback(hooks.release, point)
                self._points.append((point, direction))
            self._clock = flow_clock()
            owned.callback(self._clock.close)
            self.alarm_fd = _made(_ALARM, owned)
            self._alarm = RingReader(self.alarm_fd, _ALARM.max_entries, np.dtype("u4"))
            owned.callback(self._alarm.close)
            key_size = self._sizes.record["key"].itemsize
            self._datagrams_fd = _made(replace(_DATAGRAMS, key_size=key_size), owned)
            self._owned = owned.pop_all()
        self._shared = {
            **self._clock.fds, "alarm": self.alarm_fd, "datagrams": self._datagrams_fd,
        }  # fmt: skip
        self._hooks = [FlowHook(point, direction) for point, direction in self._points]
        source = SOURCE.read_text(encoding="utf-8")
        self._current = FlowGeneration({SIDES[d]: source for _, d in where}, capture, ())
        try:
            self._start()
            # Last: what does not load must not touch the interface.
            for point, _ in self._points:
                hooks.attach(point)
        except BaseException:
            self.close()
            raise
        self._start_ns = self._now()

    def _start(self) -> None:
        made: list[tuple[FlowHook, list[Program]]] = []
        self._current = replace(self._current, hooks=made)
        with self._compiled(self._current.sources, self.capture) as compiled:
            for hook in self._hooks:
                programs = hook.start(compiled[hook.side], self._sizes, self._shared)
                made.append((hook, programs))

    def points(self) -> Mapping[Side, InterfaceHook]:
        return {SIDES[direction]: point for point, direction in self._points}

    @property
    def capture(self) -> FlowFilter:
        """Which flows are counted; all others are counted as filtered."""
        return self._current.capture

    @property
    def config(self) -> ProbeConfig:
        return self._described(self._current.sources, "flows", "records")

    def poll(self) -> Snapshot:
        """Swap every hook, wait until the old programs are done, and take their windows."""
        with self._lock:
            self._alarm.read()
            occupancy = max(hook.occupancy() for hook in self._hooks)
            started = time.monotonic_ns()
            swapped = _switch(self._current)
            return self._end_window(swapped, occupancy, started)

    def export(self) -> tuple[Item, ...]:
        """The window, as `poll` gives it, and events of its tables."""
        with self._lock:
            return (*self._follow_cpus(), self.poll())

    def reconfigure(self, capture: FlowFilter) -> float:
        """Capture other flows from now on; no packet is lost (S4.3). Returns seconds it took.

        Raises CompileError or UsageError, and then everything runs on as before.
        """
        started = time.perf_counter()
        with self._lock:
            sources = self._current.sources
            with self._compiled(sources, capture) as compiled:
                loaded = self._load(sources, capture, compiled)
            # The window goes on: packets of the old programs come with the next poll.
            self._turn_over(loaded)
            self._forget_previous()
            self._current.close()
            self._current = loaded
            self.generation += 1
        return time.perf_counter() - started

    def compile(self, config: ProbeConfig) -> CompiledFlow:
        capture = self.capture
        return CompiledFlow(config, FUNCTION, super().compile(config).sides, capture)

    def _check(self, side: Side, compiled: Compiled) -> None:
        (hook,) = (hook for hook in self._hooks if hook.side == side)
        hook.check(compiled)

    def compare(self, compiled: CompiledFlow) -> Compatibility:
        """Maps that `replace` would keep and lose: each window starts empty in any case."""
        fates = (MapFate(side, "records", Fate.WINDOW, "", 0) for side in compiled.sides)
        return Compatibility(tuple(fates), (), (), ())

    def replace(self, compiled: CompiledFlow) -> tuple[Item, ...]:
        """Replace the running programs by edited ones. Returns the window that so ended."""
        with self._lock:
            if compiled.capture is not self.capture:
                with closing(self.compile(compiled.config)) as fresh:
                    return self.replace(fresh)
            sources = {side: getattr(compiled.config, side).source for side in compiled.sides}
            return self._become(self._load(sources, self.capture, compiled.sides))

    def programs(self) -> tuple[ProgramInfo, ...]:
        with self._lock:
            return tuple(
                self._program_info(hook.side, hook.active, hook.memory()) for hook in self._hooks
            )

    def memory(self) -> int:
        own = map_memory(self._datagrams_fd)
        return own + sum(program.memory for program in self.programs())

    def _lent(self) -> Iterator[LentMap]:
        return chain.from_iterable(hook.lend_maps() for hook in self._hooks)

    def _become(self, new: FlowGeneration) -> tuple[Item, ...]:
        self._alarm.read()
        occupancy = max(hook.occupancy() for hook in self._hooks)
        started = time.monotonic_ns()
        snapshot = self._end_window(_switch(new), occupancy, started)
        self._forget_previous()
        self._previous, self._current = self._current, new
        self.generation += 1
        return (snapshot,)

    def _follow_cpus(self) -> tuple[Event, ...]:
        """Make larger tables if a CPU with a higher number than any before is online.

        Until then its packets go to the overflow ring. An error is an event, and stays so until
        yet another CPU comes.
        """
        cpus = numbered_cpus()
        if cpus <= self._cpus:
            return ()
        self._cpus = cpus
        sizes = replace(self._sizes, cpus=cpus)
        text = f"CPU {cpus - 1} is online"
        try:
            if sizes.memory > self._memory:
                sizes = TableSizes.within(self._memory, cpus, tunnels=sizes.tunnels)
            self._resize(sizes)
        except ProbedeckError as error:
            problem = f"{text}, and has no flow tables: {error}"
            return (Event.now("warning", self.name, problem),)
        return (Event.now("info", self.name, f"{text}: {sizes.summary}"),)

    def _resize(self, sizes: TableSizes) -> None:
        """Make all tables anew, one half of a hook after the other; no packet is lost."""
        # Its programs are for the old tables.
        self._forget_previous()
        before, self._sizes = self._sizes, sizes
        try:
            with self._compiled(self._current.sources, self.capture) as compiled:
                for _ in range(HALVES):
                    for hook in self._hooks:
                        hook.resize(compiled[hook.side], sizes, self._shared)
                    self._turn_over()
        except BaseException:
            self._sizes = before
            raise

    def _turn_over(self, loaded: FlowGeneration | None = None) -> None:
        """Let packets reach the other halves, and take the tables that were active."""
        swapped = _switch(loaded or self._current)
        grace.wait()
        self._collect(swapped)

    def _end_window(
        self, swapped: Sequence[tuple[FlowHook, FlowTables]], occupancy: float, started_ns: int
    ) -> Snapshot:
        end_ns = self._now()
        grace.wait()
        quiet = time.monotonic_ns()
        self._collect(swapped)
        rows, losses = _joined(self._rows), self._losses
        self._rows, self._losses = [], {}
        # A time may be before or after its packet by a part of the clock's step.
        for name in ("first_ns", "last_ns"):
            np.clip(rows[name], self._start_ns, end_ns, out=rows[name])
        self.window += 1
        snapshot = self._snapshot(
            rows, end_ns, losses, occupancy, quiet_ns=quiet, swap_ns=quiet - started_ns
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
            self._current = replace(self._current, hooks=())
            self._hooks, self._points = [], []
            self._owned.close()

    def _collect(self, quiet: Sequence[tuple[FlowHook, FlowTables]]) -> None:
        """Take the contents of tables that no CPU writes any more."""
        self._clock.update()
        for hook, tables in quiet:
            rows, losses = hook.drain(tables, self._clock)
            self._rows.append(rows)
            add_losses(self._losses, losses)

    def _load(
        self, sources: Mapping[Side, str], capture: FlowFilter, compiled: Mapping[Side, Compiled]
    ) -> FlowGeneration:
        """Load programs for every hook, or raise and load none."""
        loaded: list[tuple[FlowHook, list[Program]]] = []
        try:
            for hook in self._hooks:
                loaded.append((hook, hook.load(compiled[hook.side], self._shared)))  # noqa: PERF401
        except BaseException:
            FlowGeneration(sources, capture, loaded).close()
            raise
        return FlowGeneration(sources, capture, loaded)

    @contextmanager
    def _compiled(
        self, sources: Mapping[Side, str], capture: FlowFilter
    ) -> Iterator[dict[Side, Compiled]]:
        """The sources, compiled; the descriptors are closed at the end of the block."""
        with ExitStack() as stack:
            yield {
                side: stack.enter_context(self._compile(side, source, capture))
                for side, source in sources.items()
            }

    def _compile(self, side: Side, source: str, capture: FlowFilter | None = None) -> Compiled:
        """Compile with hash factors that nobody knows; `capture` is by default the current one."""
        sizes = self._sizes
        macros = {
            "RECORDS_PER_CPU": sizes.records,
            "SETS_PER_CPU": sizes.sets,
            "ALARM_AT": sizes.alarm_at,
            "TUNNELS": self._tunnels.macro,
            # The compiler's own tables need no room: only the verifier looks at them.
            **dict.fromkeys(_MAP_SIZES, 1),
            **self._clock.macros,
            **{f"HASH_{i}": f"{secrets.randbits(64) | 1:#x}ULL" for i in range(_FACTORS)},
        }
        headers = {"capture.h": (self.capture if capture is None else capture).to_c()}
        return self._compile_with(side, source, macros, headers)


def _switch(loaded: FlowGeneration) -> list[tuple[FlowHook, FlowTables]]:
    """Let packets reach the other half of every hook; the tables to drain after a grace period."""
    return [(hook, hook.swap(programs)) for hook, programs in loaded.hooks]


def _joined(parts: Sequence[Array]) -> Array:
    """Rows of dtype FLOW of several drains; only copied where there are several."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    # Without the dtype numpy would turn ports to the machine's byte order.
    return np.concatenate([np.empty(0, FLOW), *filled], dtype=FLOW)


def _made(spec: MapSpec, owned: ExitStack) -> int:
    fd = make_map(spec)
    owned.callback(os.close, fd)
    return fd
