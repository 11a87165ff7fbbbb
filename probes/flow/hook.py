"""The flow probe on one hook: two halves, each with tables and a program, swapped and drained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bpf.attach.chain import Stage
from bpf.attach.hook import AnyHook
from bpf.compiler import Compiled
from bpf.programs.program import Program
from probes.builtin import check_maps, check_programs, shape_of
from probes.flow.clock import FlowClock
from probes.flow.records import Array, FlowDirection, rows_of
from probes.flow.sizes import TableSizes
from probes.flow.tables import FlowTables
from probes.hooks import InterfaceHook
from probes.map_reading import LentMap, lend
from probes.snapshot import Losses

if TYPE_CHECKING:
    from probes.config.model import Side

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

    def __init__(self, point: InterfaceHook, direction: FlowDirection) -> None:
        self._point = point
        self._direction = direction
        self._stage = Stage("flow")
        self._tables: list[FlowTables] = []
        self._programs: list[Program] = []
        self._shapes: dict[str, tuple[object, ...]] = {}
        self._active = 0

    def load(self, compiled: Compiled, shared: Mapping[str, int]) -> list[Program]:
        """A program for each half; no packet reaches them yet. Raises as `Program` does.

        `shared`: descriptors, by name, of the maps that all hooks share.
        """
        programs: list[Program] = []
        try:
            for tables in self._tables:
                partner = programs[0] if programs else None
                programs.append(self._load(compiled, tables, shared, partner))
        except BaseException:
            close_all(programs)
            raise
        return programs

    def start(
        self, compiled: Compiled, sizes: TableSizes, shared: Mapping[str, int]
    ) -> list[Program]:
        """Create the tables, load the programs, and join the hook's chain."""
        for _ in range(HALVES):
            self._tables.append(FlowTables(compiled, sizes))
        self._shapes = {name: shape_of(declared) for name, declared in compiled.maps.items()}
        programs = self.load(compiled, shared)
        try:
            self._point.chain.append(self._stage, programs[self._active].fd)
        except BaseException:
            close_all(programs)
            raise
        self._programs = programs
        return programs

    @property
    def side(self) -> Side:
        """The direction's name in a configuration."""
        return SIDES[self._direction]

    @property
    def kind(self) -> AnyHook:
        """XDP, TC ingress or TC egress."""
        return self._point.hook

    def check(self, compiled: Compiled) -> None:
        """Raises UsageError for a program that cannot work on these tables."""
        check_programs(compiled, self.side, (FUNCTION,))
        check_maps(compiled, self.side, self._shapes)

    @property
    def active(self) -> Program:
        """The program that packets reach."""
        return self._programs[self._active]

    def lend_maps(self) -> Iterator[LentMap]:
        """Lend the maps of the active program."""
        return lend(self.side, self.active, self._shapes)

    def occupancy(self) -> float:
        """How full the active half's tables are, 0 to 1."""
        return self._tables[self._active].occupancy()

    def memory(self) -> int:
        tables = sum(tables.memory() for tables in self._tables)
        return tables + sum(program.memory() for program in self._programs)

    def swap(self, programs: list[Program]) -> FlowTables:
        """Let packets reach the other half, and there its program of these.

        Returns the tables that were active: to be drained after a grace period.
        """
        old = self._tables[self._active]
        self._active ^= 1
        self._programs = programs
        self._point.chain.replace(self._stage, self.active.fd)
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
        self._tables[idle].close()
        self._programs[idle], self._tables[idle] = program, tables

    def drain(self, tables: FlowTables, clock: FlowClock) -> tuple[Array, Losses]:
        """Take out rows of dtype FLOW, one a flow, and losses.

        Exact only when no CPU runs the tables' program any more.
        """
        rows = rows_of(list(tables.records()), self._direction, clock)
        tables.clear()
        return rows, tables.losses()

    def close(self) -> None:
        """Leave the chain, and give the tables back. The programs are the caller's to close."""
        if self._programs:
            self._point.chain.remove(self._stage)
        self._stage.close()
        for tables in self._tables:
            tables.close()
        self._tables.clear()
        self._programs = []

    def _load(
        self,
        compiled: Compiled,
        tables: FlowTables,
        shared: Mapping[str, int],
        partner: Program | None,
    ) -> Program:
        """Load the program of a half. It shares the maps that a user added with `partner`: both
        halves count into the same map."""
        maps, next_fd = {**shared, **tables.fds}, self._stage.next_fd
        return Program(compiled, FUNCTION, shared=maps, next_fd=next_fd, partner=partner)


def close_all(programs: list[Program]) -> None:
    for program in programs:
        program.close()
