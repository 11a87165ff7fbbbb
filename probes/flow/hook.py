"""The flow probe on one hook: two halves, each with tables and a program, swapped and drained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bpf.arrays import Array
from bpf.attach.group import InterfaceGroup
from bpf.compiler import Compiled
from bpf.programs.program import Program
from probes.flow.clock import FlowClock
from probes.flow.records import FlowDirection, largest, rows_of, split_again
from probes.flow.sizes import TableSizes
from probes.flow.tables import FlowTables
from probes.hooks import ChainSlot
from probes.hooks.interface_hook import InterfaceHook
from probes.life import Bundle
from probes.snapshot import Loss, Losses, LossReason, add_losses

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
        that another interface has counted. Of each CPU's records the `most` largest become rows,
        and the others a loss.

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
                    [cut(records, most, lost) for records in parts],
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


def cut(records: Array, most: int, losses: dict[LossReason, Loss]) -> Array:
    """Return the `most` largest of rows or records (n,), and add the others to `losses`."""
    kept, lost = largest(records, most)
    if lost.packets:
        add_losses(losses, {LossReason.BUDGET: lost})
    return kept
