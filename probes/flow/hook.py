"""The flow probe on one hook: two halves, each with tables and a program, swapped and drained."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpf.arrays import Array
from bpf.attach.group import InterfaceGroup
from bpf.compiler import Compiled
from bpf.maps.layout import round_up
from bpf.maps.map import Map
from bpf.maps.ring import RingReader
from bpf.programs.program import Program, sized
from probes.builtin import ProbeMaps
from probes.flow.clock import FlowClock
from probes.flow.records import FlowDirection, TableSizes, cut, rows_of, split_again
from probes.hooks import ChainSlot
from probes.hooks.interface_hook import InterfaceHook
from probes.life import Bundle
from probes.losses import read_losses
from probes.snapshot import Loss, Losses, LossReason

if TYPE_CHECKING:
    from probes.config.model import Side

NAMES = ("records", "sets", "cpus", "losses", "overflow")
"""Maps of flow.c that are a half's own."""


class FlowTables:
    """Records, index and overflow ring. Programs come and go; the tables stay."""

    def __init__(self, compiled: Compiled, sizes: TableSizes) -> None:
        """Create them. Raises KernelError if the kernel refuses."""
        entries = sizes.entries
        self._sizes = sizes
        with ExitStack() as undo:
            owned = ProbeMaps(compiled, NAMES, entries)
            undo.callback(owned.close)
            self.fds = owned.fds
            """Descriptors by map name; they stay the tables' own."""
            self._maps: dict[str, Map] = {}
            for name in NAMES[1:-1]:
                declared = compiled.maps[name]
                spec = sized(declared.spec, entries.get(name))
                fd = os.dup(self.fds[name])
                opened = Map(fd, spec, declared.key, declared.value)
                self._maps[name] = undo.enter_context(opened)
            self._overflow = RingReader(self.fds["overflow"], sizes.ring, sizes.record)
            undo.callback(self._overflow.close)
            self.memory = owned.memory
            self._undo = undo.pop_all()
        self._sets = self._maps["sets"].view().view("u8").reshape(sizes.cpus, -1)
        states = self._maps["cpus"].view()
        self._used, self._off = states["records"], states["off"]

    def occupancy(self) -> float:
        """How full the fullest CPU's records are, 0 to 1."""
        return int(self._used.max()) / self._sizes.records

    def records(self) -> Iterator[Array]:
        """The counted records, of dtype `sizes.record`: kernel memory, valid until `clear`."""
        record = self._sizes.record
        for cpu in np.flatnonzero(self._used):
            # Not kept: a process's resident memory has all pages of a mapping.
            begin = int(cpu) * self._sizes.records * record.itemsize
            within = begin % mmap.ALLOCATIONGRANULARITY
            count = int(self._used[cpu])
            size = round_up(within + count * record.itemsize, mmap.PAGESIZE)
            memory = mmap.mmap(self.fds["records"], size, offset=begin - within)
            yield np.frombuffer(memory, record, count, within)
        if len(overflow := self._overflow.read()):
            yield overflow

    def losses(self) -> dict[LossReason, Loss]:
        """Packets in no record; the counters start again from 0."""
        return read_losses(self._maps["losses"])

    def clear(self) -> None:
        """Forget the records; a record's own memory is written anew when it is used again."""
        for cpu in np.flatnonzero(self._used):
            self._sets[cpu] = 0
            self._used[cpu] = 0

    def turn_off(self, off: bool) -> None:
        """Have programs count all packets in no flow, but in sums, or in flows again."""
        self._off[:] = off

    def close(self) -> None:
        """Give the memory back; no array of `records` may be in use."""
        del self._sets, self._used, self._off
        self._undo.close()


FUNCTION = "flow"
SOURCE = Path(__file__).with_name("flow.c")
SIDES: Mapping[FlowDirection, Side] = {
    FlowDirection.INGRESS: "ingress",
    FlowDirection.EGRESS: "egress",
}
"""A direction's name in a configuration."""
HALVES = 2
"""Of a hook: one is written while the other is read."""


class FlowHook:
    """The probe on one hook.

    Packets reach the program of one half. The tables of the other half are empty between two
    polls, so a new program (of another filter or another source) takes them over unchanged.
    """

    def __init__(
        self,
        slot: ChainSlot[InterfaceHook],
        direction: FlowDirection,
        compiled: Compiled,
        sizes: TableSizes,
    ) -> None:
        """Create the tables. Raises KernelError if memory is short."""
        self._slot = slot
        self._direction = direction
        self.side = SIDES[direction]
        """The direction's name in a configuration."""
        self.tables = Bundle(FlowTables(compiled, sizes) for _ in range(HALVES))
        self._programs = Bundle[Program]()
        self._active = 0

    def load(self, compiled: Compiled, shared: Mapping[str, int]) -> Bundle[Program]:
        """Load a program for each half; no packet reaches them yet. Raises as `Program` does.

        `shared`: descriptors, by name, of the maps that all hooks share.
        """

        def halves(partner: Program | None = None) -> Iterator[Program]:
            for tables in self.tables:
                partner = self._load(compiled, tables, shared, partner)
                yield partner

        programs = Bundle(halves())
        self._programs = self._programs or programs
        return programs

    @property
    def active(self) -> Program:
        """The program that packets reach."""
        return self._programs[self._active]

    def memory(self) -> int:
        tables = sum(tables.memory() for tables in self.tables)
        return tables + sum(program.memory() for program in self._programs)

    def swap(self, programs: Bundle[Program]) -> FlowTables:
        """Let packets reach the other half, and there its program of these.

        Returns the tables that were active: to be drained after a grace period.
        """
        old = self.tables[self._active]
        self._active ^= 1
        self._programs = programs
        self._slot.replace(self.active.fd)
        return old

    def resize(self, compiled: Compiled, sizes: TableSizes, shared: Mapping[str, int]) -> None:
        """Give the half that is not active tables of other sizes, with a program for them."""
        idle = self._active ^ 1
        tables = FlowTables(compiled, sizes)
        try:
            program = self._load(compiled, tables, shared, self.active)
        except BaseException:
            tables.close()
            raise
        self._programs[idle].close()
        self.tables[idle].close()
        self._programs[idle], self.tables[idle] = program, tables

    def drain(
        self, tables: FlowTables, clock: FlowClock, most: int
    ) -> Sequence[tuple[Array, Losses]]:
        """Take out rows of dtype FLOW, one a flow, and losses: of counted packets, and of packets
        that another interface has counted. Of each CPU's records the `most` largest become rows;
        the others are rows of sums, see `cut`.

        Exact only when no CPU runs the tables' program any more.
        """
        losses = tables.losses()
        again = losses.pop(LossReason.OVERRUN, Loss())  # as flow.c has it
        interface = self._slot.point.interface
        if not isinstance(interface, InterfaceGroup):
            found = [(list(tables.records()), losses)]
        else:
            first, later = split_again(tables.records())
            lost = {LossReason.TABLE_FULL: again} if again.packets else {}
            found = [(first, losses), (later, lost)]
        drained = [
            (
                rows_of(
                    [part for records in parts for part in cut(records, most)],
                    self._direction, clock, interface,
                ),
                lost,
            )
            for parts, lost in found
        ]  # fmt: skip
        tables.clear()
        return drained

    def _load(
        self,
        compiled: Compiled,
        tables: FlowTables,
        shared: Mapping[str, int],
        partner: Program | None,
    ) -> Program:
        """Load the program of a half. It shares the maps that a user added with `partner`: both
        halves count into the same map."""
        maps, next_fd = {**shared, **tables.fds}, self._slot.stage.next_fd
        return Program(compiled, FUNCTION, shared=maps, next_fd=next_fd, partner=partner)
