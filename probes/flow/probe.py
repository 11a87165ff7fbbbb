"""The flow probe: programs on its hooks, two generations each, swapped and drained together."""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpf.abi import MapType
from bpf.arrays import Array, Rows
from bpf.attach.attachment import Hook
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import ProbedeckError
from bpf.machine import numbered_cpus
from bpf.maps.kinds import map_memory
from bpf.maps.ring import RingReader
from bpf.programs.program import Program, make_map
from bpf.syscall import MapSpec
from probes.builtin import BuiltinProbe, Generation
from probes.flow.clock import FlowClock, flow_clock
from probes.flow.filter import FlowFilter
from probes.flow.hook import FUNCTION, HALVES, SIDES, SOURCE, FlowHook, FlowTables
from probes.flow.interfaces import Peaks, totals
from probes.flow.kinds import INTERFACES, REPEATED
from probes.flow.options import FlowOptions
from probes.flow.records import DATAGRAMS, FLOW, FlowDirection, TableSizes, largest, once
from probes.hooks import Hooks
from probes.life import Bundle
from probes.memory_limit import default_limit, flow_share
from probes.reports import Fate
from probes.snapshot import Event, Item, Loss, LossReason, Snapshot, add_losses
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.config.model import Side

_FACTORS = 7
_ALL = sys.maxsize
_MAP_SIZES = ("RECORDS", "SETS", "CPUS", "OVERFLOW_PAGES", "DATAGRAMS", "BIN_WORDS")
_ALARM = MapSpec("alarm", MapType.RINGBUF, 0, 0, mmap.PAGESIZE)
"""As flow.c declares it; both hooks and all generations share one."""
_DATAGRAMS = MapSpec("datagrams", MapType.LRU_HASH, 40, 16, DATAGRAMS)
"""As fragment.h declares it; shared as the alarm is."""


def has_wide_keys(interface: Interface, tunnels: Tunnels) -> bool:
    """Whether the key of a flow has a sixth word."""
    return tunnels is not Tunnels.OUTER or isinstance(interface, InterfaceGroup)


@dataclass(slots=True)
class _Drained:
    """Rows and losses of one table, from the drains of a window."""

    rows: list[Array] = field(default_factory=list)
    losses: dict[LossReason, Loss] = field(default_factory=dict)


class FlowProbe(BuiltinProbe[Bundle[Program]]):
    """Flows of an interface, ingress and egress, in windows (S4.1 to S4.5)."""

    name = "flow"
    function = FUNCTION
    sources: Mapping[Side, Path] = dict.fromkeys(SIDES.values(), SOURCE)
    metric = ("flows", "records")
    needed: Mapping[Side, Sequence[str]] = dict.fromkeys(SIDES.values(), (FUNCTION,))
    fates: Mapping[str, Fate] = {"records": Fate.WINDOW}
    """Each window starts empty in any case."""
    _basis: FlowFilter

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        where: Sequence[tuple[Hook, FlowDirection]],
        hooks: Hooks,
        options: FlowOptions = FlowOptions(),  # noqa: B008 - immutable
        sizes: TableSizes | None = None,
        *,
        memory: int | None = None,
        clock: FlowClock | None = None,
    ) -> None:
        """Join the chains of the hooks `where`; raises ProbedeckError, and leaves nothing behind.

        The tables take at most `memory` bytes: by default their share of the default limit.
        `sizes` are chosen accordingly if None. `clock`: the best one of this kernel if None.
        """
        super().__init__(compiler, interface, options.interval)
        self._basis = self.capture = options.filter
        """Which flows are counted; all others are counted as filtered."""
        self._memory = flow_share(default_limit()) if memory is None else memory
        self._tunnels = Tunnels(options.tunnels)
        wide = has_wide_keys(interface, self._tunnels)
        self._sizes = sizes or TableSizes.within(self._memory, wide=wide)
        self._cpus = self._sizes.cpus
        """CPUs that the tables were to be made for; fewer have records if memory was short."""
        again = [REPEATED] if isinstance(interface, InterfaceGroup) else []
        self._drained = {table: _Drained() for table in ("", *again)}
        """By the name of the table."""
        self._occupancy = 0.0
        self.most_rows: Callable[[], int] = lambda: _ALL
        """Returns how many rows a window may have, when it ends; 1 or more. The smaller flows are
        a loss for the budget."""
        self._off = False
        self._hooks: list[FlowHook] = []
        self._clock = clock or flow_clock()
        self._owned.callback(self._clock.close)
        self._start(hooks, {SIDES[direction]: hook for hook, direction in where})

    def _make_maps(self, sides: Mapping[Side, Compiled]) -> None:
        self.alarm_fd = _made(_ALARM, self._owned)
        self._alarm = RingReader(self.alarm_fd, _ALARM.max_entries, np.dtype("u4"))
        self._owned.callback(self._alarm.close)
        key_size = self._sizes.record["key"].itemsize
        self._datagrams_fd = _made(replace(_DATAGRAMS, key_size=key_size), self._owned)
        self._peaks = Peaks(self._clock, self._sizes)
        self._owned.callback(self._peaks.close)
        self._shared = {
            **self._clock.fds, "alarm": self.alarm_fd, "datagrams": self._datagrams_fd,
            "bins": self._peaks.fd,
        }  # fmt: skip
        for direction, side in SIDES.items():
            if side in sides:
                hook = FlowHook(self._slots[side], direction, sides[side], self._sizes)
                self._owned.callback(hook.tables.close)
                self._hooks.append(hook)

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[Bundle[Program]]:
        return (hook.load(sides[hook.side], self._shared) for hook in self._hooks)

    def _reached(self) -> Iterator[tuple[Side, Program, int]]:
        hooks = zip(self._hooks, self._current.parts, strict=False)  # No parts if it is closed.
        return ((hook.side, hook.active, hook.memory()) for hook, _ in hooks)

    def poll(self) -> Snapshot:
        """Swap every hook, wait until the old programs are done, and take their windows."""
        with self._lock:
            snapshot = super().export()[0]
            assert isinstance(snapshot, Snapshot)
            return snapshot

    def export(self) -> tuple[Item, ...]:
        """The window's tables, first the one that `poll` gives, and events of the kernel's."""
        with self._lock:
            return (*self._follow_cpus(), *super().export())

    def relieve(self) -> bool:
        with self._lock:
            most = self.most_rows()
            if most >= self._sizes.alarm_at:
                return False
            self._turn_over(self._current, most)
            return True

    def turn_off(self, off: bool) -> None:
        """Count all packets as a loss for the budget, or in flows again, from now on."""
        with self._lock:
            self._off = off
            for hook in self._hooks:
                for tables in hook.tables:
                    tables.turn_off(off)

    def reconfigure(self, capture: FlowFilter) -> float:
        """Capture other flows from now on; no packet is lost (S4.3). Returns seconds it took.

        Raises CompileError or UsageError, and then everything runs on as before.
        """
        started = time.perf_counter()
        with self._lock:
            sources = self._current.sources
            self._basis = capture
            try:
                with self._compiled(sources) as compiled:
                    loaded = Generation(sources, Bundle(self._parts(compiled)))
            except BaseException:
                self._basis = self.capture
                raise
            # The window goes on: packets of the old programs come with the next poll.
            self._turn_over(loaded, self.most_rows())
            self._forget_previous()
            self._current.close()
            self._current, self.capture = loaded, capture
            self.generation += 1
        return time.perf_counter() - started

    def memory(self) -> int:
        own = map_memory(self._datagrams_fd) + map_memory(self._peaks.fd)
        return own + sum(program.memory for program in self.programs())

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
                sizes = TableSizes.within(self._memory, cpus, wide=sizes.wide)
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
            with self._compiled(self._current.sources) as compiled:
                for _ in range(HALVES):
                    for hook in self._hooks:
                        hook.resize(compiled[hook.side], sizes, self._shared)
                    self.turn_off(self._off)
                    self._turn_over(self._current, self.most_rows())
        except BaseException:
            self._sizes = before
            raise

    def _join(self) -> None:
        for side, program, _ in self._reached():
            slot = self._slots[side]
            slot.point.chain.before_gate(slot.stage, program.fd)

    def _turn_over(self, loaded: Generation[Bundle[Program]], most: int) -> None:
        """Let packets reach the other halves, and take the tables that were active."""
        ended = self._direct(loaded)
        self.wait_for_packets()
        self._collect(ended, most)

    def _direct(self, new: Generation[Bundle[Program]]) -> list[tuple[FlowHook, FlowTables]]:
        """Let packets reach the other half of every hook."""
        self._alarm.read()
        hooks = zip(self._hooks, new.parts, strict=True)
        return [(hook, hook.swap(programs)) for hook, programs in hooks]

    def _end_window(
        self, ended: Sequence[tuple[FlowHook, FlowTables]], started_ns: int
    ) -> tuple[Snapshot, ...]:
        end_ns = self._now()
        self.wait_for_packets()
        quiet = time.monotonic_ns()
        most = self.most_rows()
        self._collect(ended, most)
        self.window += 1
        self.latest = tuple(self._tables(end_ns, quiet, quiet - started_ns, most))
        self._occupancy = 0.0
        self._start_ns = end_ns
        return self.latest

    def _tables(self, end_ns: int, quiet_ns: int, swap_ns: int, most: int) -> Iterator[Snapshot]:
        points = self.points().values()
        peaks = tuple(self._peaks.of(self.interface, self._start_ns, end_ns))
        found: list[Rows[FLOW]] = []
        for table, drained in self._drained.items():
            rows = _joined(drained.rows)
            if len(drained.rows) > len(self._hooks):
                rows = once(rows)
            found.append(rows)
            rows, rest = largest(rows, most)
            if len(rest):
                lost = Loss(*(int(rest[unit].sum()) for unit in ("packets", "bytes")))
                add_losses(drained.losses, {LossReason.BUDGET: lost})
            # A time may be before or after its packet by a part of the clock's step.
            for name in ("first_ns", "last_ns"):
                np.clip(rows[name], self._start_ns, end_ns, out=rows[name])
            yield self._snapshot(
                rows, end_ns, points, quiet_ns=quiet_ns, swap_ns=swap_ns,
                losses=drained.losses, occupancy=self._occupancy, table=table,
                peaks=() if len(self._drained) > 1 else peaks,
            )  # fmt: skip
            self._drained[table] = _Drained()
        if len(found) > 1:
            yield self._snapshot(
                totals(*found), end_ns, points, quiet_ns=quiet_ns, table=INTERFACES, peaks=peaks
            )

    def _collect(self, quiet: Sequence[tuple[FlowHook, FlowTables]], most: int) -> None:
        """Take the contents of tables that no CPU writes any more: `most` records of each CPU."""
        self._clock.update()
        for hook, tables in quiet:
            self._occupancy = max(self._occupancy, tables.occupancy())
            parts = hook.drain(tables, self._clock, most)
            for drained, (rows, losses) in zip(self._drained.values(), parts, strict=True):
                drained.rows.append(rows)
                add_losses(drained.losses, losses)

    def _compile(self, side: Side, source: str) -> Compiled:
        """Compile with hash factors that nobody knows."""
        sizes = self._sizes
        macros = {
            "RECORDS_PER_CPU": sizes.records,
            "SETS_PER_CPU": sizes.sets,
            "ALARM_AT": sizes.alarm_at,
            "BIN_SHIFT": self._clock.bin_shift,
            "BIN_DIRECTION": list(SIDES.values()).index(side),
            "BIN_INTERFACES": sizes.interfaces,
            "TUNNELS": self._tunnels.macro,
            # The compiler's own tables need no room: only the verifier looks at them.
            **dict.fromkeys(_MAP_SIZES, 1),
            **self._clock.macros,
            **{f"HASH_{i}": f"{secrets.randbits(64) | 1:#x}ULL" for i in range(_FACTORS)},
        }
        return self._compile_with(side, source, macros, {"capture.h": self._basis.to_c()})


def _joined(parts: Sequence[Array]) -> Rows[FLOW]:
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
