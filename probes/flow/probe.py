"""The flow probe: programs on its hooks, two generations each, swapped and drained together."""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bpf import grace
from bpf.abi import MapType
from bpf.attach import Hook
from bpf.compiler import Compiled, Compiler
from bpf.interface import Interface
from bpf.maps import Map, reduce_cpus
from bpf.program import Program
from bpf.ring import RingReader
from bpf.syscall import MapSpec, map_create, possible_cpus
from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW, RECORD, Array, Direction, TickClock, rows_of
from probes.hook import HookPoint
from probes.probe import UtcClock
from probes.snapshot import Loss, Losses, LossReason, Snapshot, add_losses

SOURCE = Path(__file__).with_name("flow.c")
_MEMORY = 64 << 20
"""Bytes of records that one hook's two generations may take together."""
_RECORDS_RANGE = (4096, 131072)
_OVERFLOW_PAGES = 2048
_FACTORS = 6
_ALARM = MapSpec("alarm", MapType.RINGBUF, 0, 0, mmap.PAGESIZE)
"""As flow.c declares it; both hooks and all generations share one."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the tables of one CPU in one generation; powers of two."""

    records: int
    cpus: int = field(default_factory=possible_cpus)

    @classmethod
    def for_memory(cls, memory: int = _MEMORY) -> Geometry:
        """As many records as fit: 64 bytes each, 4 more in the index, two generations."""
        fitting = memory // (2 * possible_cpus() * (RECORD.itemsize + 4))
        smallest, largest = _RECORDS_RANGE
        return cls(max(smallest, min(largest, 1 << fitting.bit_length() - 1)))

    @property
    def sets(self) -> int:
        """8-way sets, a way for each record: at the alarm one set in 4000 has overflowed."""
        return self.records // 8

    @property
    def alarm_at(self) -> int:
        """Records in use at which user space is woken to swap early.

        What is left has to last until it has come, and has drained the other generation.
        """
        return self.records // 4


class Generation:
    """One of a hook's two programs, and user space's view of its tables."""

    def __init__(self, compiled: Compiled, geometry: Geometry, next_fd: int, alarm_fd: int) -> None:
        self.program = Program(compiled, "flow", shared={"alarm": alarm_fd}, next_fd=next_fd)
        self._maps = {
            name: Map(
                os.dup(self.program.map_fd(name)), declared.spec, declared.key, declared.value
            )
            for name, declared in compiled.maps.items()
            if name in ("records", "sets", "cpus", "losses")
        }
        self._records = self._maps["records"].view().view(RECORD).reshape(geometry.cpus, -1)
        self._sets = self._maps["sets"].view().view("u8").reshape(geometry.cpus, -1)
        self._used = self._maps["cpus"].view()["records"]
        self._geometry = geometry
        overflow = compiled.maps["overflow"].spec
        self._overflow = RingReader(self.program.map_fd("overflow"), overflow.max_entries, RECORD)

    def occupancy(self) -> float:
        """How full the fullest CPU's records are, 0 to 1."""
        return int(self._used.max()) / self._geometry.records

    def records(self) -> Iterator[Array]:
        """What was counted, of dtype RECORD: the kernel's own memory, valid until `clear`."""
        for cpu in np.flatnonzero(self._used):
            yield self._records[cpu, : self._used[cpu]]
        if len(overflow := self._overflow.read()):
            yield overflow

    def losses(self) -> dict[LossReason, Loss]:
        """What is in no record; counted from 0 again."""
        counted = reduce_cpus(self._maps["losses"].read(clear=True).values)
        return {
            reason: Loss(int(counted["packets"][reason]), int(counted["bytes"][reason]))
            for reason in LossReason
            if counted["packets"][reason]
        }

    def clear(self) -> None:
        """Forget the records; a record's own memory is written anew when it is used again."""
        for cpu in np.flatnonzero(self._used):
            self._sets[cpu] = 0
            self._used[cpu] = 0

    def close(self) -> None:
        self._overflow.close()
        for owned in self._maps.values():
            owned.close()
        self.program.close()


class FlowHook:
    """The probe on one hook."""

    def __init__(self, point: HookPoint, direction: Direction, geometry: Geometry) -> None:
        self._point = point
        self._direction = direction
        self._geometry = geometry
        self._stage = point.chain.new_stage()
        self._generations: list[Generation] = []
        self._active = 0

    def load(self, compiled: Compiled, alarm_fd: int) -> list[Generation]:
        """Two new generations, which no packet reaches yet."""
        first = Generation(compiled, self._geometry, self._stage.next_fd, alarm_fd)
        try:
            second = Generation(compiled, self._geometry, self._stage.next_fd, alarm_fd)
        except BaseException:
            first.close()
            raise
        return [first, second]

    def start(self, generations: list[Generation]) -> None:
        """Join the hook's chain with the first of two generations."""
        self._generations = generations
        self._point.chain.append(self._stage, generations[0].program.fd)

    @property
    def generations(self) -> Sequence[Generation]:
        return self._generations

    def occupancy(self) -> float:
        return self._generations[self._active].occupancy()

    def swap(self) -> Generation:
        """Have the other generation written; returns the one that was, to drain after grace."""
        old = self._generations[self._active]
        self._active ^= 1
        self._point.chain.replace(self._stage, self._generations[self._active].program.fd)
        return old

    def replace(self, generations: list[Generation]) -> list[Generation]:
        """Have other generations written from now on; returns the old ones, to drain."""
        old = self._generations
        self._generations = generations
        self._active = 0
        self._point.chain.replace(self._stage, generations[0].program.fd)
        return old

    def drain(self, generation: Generation, clock: TickClock) -> tuple[Array, Losses]:
        """Take out rows of dtype FLOW, one a flow, and losses.

        Exact only when no CPU runs the generation's program any more.
        """
        rows = rows_of(list(generation.records()), self._direction, clock)
        generation.clear()
        return rows, generation.losses()

    def close(self) -> None:
        if self._generations:
            self._point.chain.remove(self._stage)
        else:
            self._stage.close()
        _close_all(self._generations)


class FlowProbe:
    """Flows of an interface, ingress and egress, in windows (S4.1 to S4.5).

    `poll` and `reconfigure` may be called from different threads.
    """

    name = "flow"

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        points: Sequence[tuple[HookPoint, Direction]],
        capture: FlowFilter = FlowFilter(),  # noqa: B008 - immutable
        geometry: Geometry | None = None,
    ) -> None:
        self.interface = interface
        self.capture = capture
        """Which flows are counted; all others are counted as filtered."""
        self.generation = 1
        self.window = 0
        self._compiler = compiler
        self._geometry = geometry or Geometry.for_memory()
        self._points = points
        self._lock = threading.Lock()
        self._clock = TickClock()
        self._utc = UtcClock()
        self._rows: list[Array] = []
        self._losses: dict[LossReason, Loss] = {}
        self.alarm_fd = map_create(_ALARM)
        self._alarm = RingReader(self.alarm_fd, _ALARM.max_entries, np.dtype("u4"))
        self._hooks = [FlowHook(p, direction, self._geometry) for p, direction in points]
        try:
            for hook, generations in self._load(capture):
                hook.start(generations)
        except BaseException:
            self.close()
            raise
        self._start_ns = time.monotonic_ns()

    def poll(self) -> Snapshot:
        """Swap every hook, wait until the old programs are done, and take their windows."""
        with self._lock:
            self._alarm.read()
            occupancy = max(hook.occupancy() for hook in self._hooks)
            started = time.monotonic_ns()
            swapped = [(hook, hook.swap()) for hook in self._hooks]
            end_ns = time.monotonic_ns()
            grace.wait()
            quiet = time.monotonic_ns()
            self._collect(swapped)
            rows, losses = self._rows, self._losses
            self._rows, self._losses = [], {}
            self.window += 1
            snapshot = Snapshot(
                probe=self.name,
                interface=self.interface.name,
                window=self.window,
                generation=self.generation,
                start_ns=self._start_ns,
                end_ns=end_ns,
                end_utc_ns=self._utc.utc_ns(end_ns),
                rows=_joined(rows),
                losses=losses,
                occupancy=occupancy,
                swap_ns=quiet - started,
                drain_ns=time.monotonic_ns() - quiet,
            )
            self._start_ns = end_ns
            return snapshot

    def reconfigure(self, capture: FlowFilter) -> float:
        """Capture other flows from now on; no packet is lost (S4.3). Returns seconds it took.

        Raises CompileError or UsageError, and then everything runs on as before.
        """
        started = time.perf_counter()
        loaded = self._load(capture)
        with self._lock:
            # The window goes on: what the old programs counted comes with the next poll.
            replaced = [(hook, old) for hook, new in loaded for old in hook.replace(new)]
            grace.wait()
            self._collect(replaced)
            _close_all([old for _, old in replaced])
            self.capture = capture
            self.generation += 1
        return time.perf_counter() - started

    def memory(self) -> int:
        """Bytes of kernel memory of all its maps."""
        with self._lock:
            return sum(g.program.memory() for hook in self._hooks for g in hook.generations)

    def close(self) -> None:
        with self._lock:
            for hook in self._hooks:
                hook.close()
            self._hooks = []
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

    def _load(self, capture: FlowFilter) -> list[tuple[FlowHook, list[Generation]]]:
        """New generations for every hook, or an error and none at all."""
        loaded: list[tuple[FlowHook, list[Generation]]] = []
        try:
            for hook, (point, _) in zip(self._hooks, self._points, strict=True):
                with self._compile(point.hook, capture) as compiled:
                    loaded.append((hook, hook.load(compiled, self.alarm_fd)))
        except BaseException:
            _close_all([generation for _, made in loaded for generation in made])
            raise
        return loaded

    def _compile(self, hook: Hook, capture: FlowFilter) -> Compiled:
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
            SOURCE.read_text(encoding="utf-8"),
            hook.prog_type,
            name=SOURCE.name,
            headers={"capture.h": capture.to_c()},
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        )


def _joined(parts: Sequence[Array]) -> Array:
    """Rows of dtype FLOW of several drains; only copied where there are several."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    # Without the dtype numpy would turn ports to the machine's byte order.
    return np.concatenate([np.empty(0, FLOW), *filled], dtype=FLOW)


def _close_all(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.close()
