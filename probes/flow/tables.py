"""The flow tables of one half of a hook: kernel memory, and user space's view of it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from bpf.arrays import Array
from bpf.compiler import Compiled
from bpf.maps.layout import round_up
from bpf.maps.map import Map
from bpf.maps.ring import RingReader
from bpf.programs.program import sized
from probes.builtin import ProbeMaps
from probes.flow.sizes import TableSizes
from probes.losses import read_losses
from probes.snapshot import Loss, LossReason

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
        """Have programs count all packets as a loss for the budget, or in records again."""
        self._off[:] = off

    def close(self) -> None:
        """Give the memory back; no array of `records` may be in use."""
        del self._sets, self._used, self._off
        self._undo.close()
