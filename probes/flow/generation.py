"""The flow probe's programs: on one hook two of them, each with its tables, swapped and drained."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpf.chain import Stage
from bpf.compiler import Compiled
from bpf.maps import Map
from bpf.program import Program
from bpf.ring import RingReader
from bpf.syscall import possible_cpus
from probes.builtin import check_maps, check_programs, shape_of
from probes.flow.records import RECORD, Array, Direction, TickClock, rows_of
from probes.hook import HookPoint
from probes.losses import read_losses
from probes.snapshot import Loss, Losses, LossReason

if TYPE_CHECKING:
    from probes.config import Side

FUNCTION = "flow"
SOURCE = Path(__file__).with_name("flow.c")
SIDES: Mapping[Direction, Side] = {Direction.INGRESS: "ingress", Direction.EGRESS: "egress"}
"""A direction's name in a configuration."""
_MEMORY = 64 << 20
"""Bytes of records that one hook's two generations may take together."""
_RECORDS_RANGE = (4096, 131072)


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
        self.program = Program(compiled, FUNCTION, shared={"alarm": alarm_fd}, next_fd=next_fd)
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
        self._declared = {name: shape_of(declared) for name, declared in compiled.maps.items()}
        overflow = compiled.maps["overflow"].spec
        self._overflow = RingReader(self.program.map_fd("overflow"), overflow.max_entries, RECORD)

    def check(self, compiled: Compiled, side: Side) -> None:
        """Raises UsageError for another program that could not take this one's place."""
        check_programs(compiled, side, (FUNCTION,))
        check_maps(compiled, side, self._declared)

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
        return read_losses(self._maps["losses"])

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
        self._stage = Stage("flow")
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
        self._point.chain.append(self._stage, generations[0].program.fd)
        self._generations = generations

    @property
    def generations(self) -> Sequence[Generation]:
        return self._generations

    @property
    def active(self) -> Generation:
        """The one that packets reach."""
        return self._generations[self._active]

    def occupancy(self) -> float:
        return self.active.occupancy()

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
        self._stage.close()


def close_all(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.close()
