"""Path tracing's programs on both hooks, and their shared tables."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpf.abi import MapType
from bpf.compiler import Compiled
from bpf.errors import UsageError
from bpf.programs.program import Program
from bpf.syscall import prog_array_set
from probes.builtin import ProbeMaps
from probes.life import Bundle
from probes.path.marks import PROBE_MAGIC
from probes.path.options import Guard, Order, PathOptions, Per
from probes.path.round_trips import EXPIRY_NS
from probes.path.slots import SLOT

if TYPE_CHECKING:
    from bpf.attach.interface import Interface
    from probes.config.model import Side

FUNCTION = "path"
SOURCES: Mapping[Side, Path] = {
    side: Path(__file__).with_name(f"{side}.c") for side in ("ingress", "egress")
}
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
STEPS: Mapping[Side, tuple[tuple[str, bool], ...]] = {
    "ingress": (("deliver", False), ("arrive", True)),
    "egress": (
        ("send4", True), ("send6", True), ("edit4", False), ("edit6", False),
        ("send4", False), ("send6", False), ("deliver", False),
    ),
}  # fmt: skip
"""Function, and whether it passes the packet on to the next probe, in the order of the indices in
the sources. Other probes see neither a clone that became a probe, nor a packet of the tracer's own,
nor an answer that the host gets."""
PROGRAMS: Mapping[Side, tuple[str, ...]] = {
    side: (FUNCTION, *dict(steps)) for side, steps in STEPS.items()
}
MEMORY = 32 << 20
"""Bytes that all slots take together, unless the options ask for more destinations."""
_TARGETS = (4, 64)
"""Fewest and most destinations within these bytes."""
_SLOTS = (1024, 65536)
"""Slots of one destination; a packet's sequence number distinguishes 65536."""
_TYPICAL_HOPS = 16
_GUARDS = {Guard.NONE: 0, Guard.CHECKSUM: 1, Guard.DISCARD: 2}
SHARED_MAPS = (
    "addresses", "shared", "senders", "targets", "slots", "exchanges", "samples", "sampled",
)  # fmt: skip
"""Maps that both directions and all generations share."""


class SideProgram:
    """The program of one direction, and its steps."""

    def __init__(self, side: Side, compiled: Compiled, tables: ProbeMaps, next_fd: int) -> None:
        """Load the programs. Raises as `Program` does, and then leaves nothing behind."""
        steps, array = STEPS[side], compiled.maps.get("steps")
        spec = array.spec if array else None
        if not (spec and spec.type is MapType.PROG_ARRAY and spec.max_entries >= len(steps)):
            raise UsageError(f"the source must have the program array steps of {len(steps)}")
        self.side = side
        self.main = Program(compiled, FUNCTION, shared=tables.fds, next_fd=next_fd)
        own = {name: self.main.map_fd(name) for name in compiled.maps}
        self._steps = Bundle[Program]()
        try:
            for at, (name, passes_on) in enumerate(steps):
                onward = next_fd if passes_on else None
                self._steps.append(Program(compiled, name, shared=own, next_fd=onward))
                prog_array_set(own["steps"], at, self._steps[-1].fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._steps.close()
        self.main.close()


def memory_of(options: PathOptions, memory: int) -> int:
    """Return the bytes that the slots take: at most `memory`, or as few as destinations need."""
    slots, targets = sizes_of(options, memory)
    return slots * targets * SLOT.itemsize


def sizes_of(options: PathOptions, memory: int) -> tuple[int, int]:
    """Return the slots of a destination, and how many destinations there can be."""
    hops = min(options.max_hops, _TYPICAL_HOPS) if options.per is Per.HOP else 1
    in_flight = int(options.rate * hops * options.timeout)
    least, most = _SLOTS
    slots = max(least, min(most, 1 << in_flight.bit_length()))
    fewest, most = _TARGETS
    targets = max(fewest, min(most, min(memory, MEMORY) // (slots * SLOT.itemsize)))
    if targets < options.destinations:
        targets = options.destinations
        # With fewer slots, more probes are overrun, and counted as such.
        while slots > least and targets * slots * SLOT.itemsize > memory:
            slots //= 2
    return slots, targets


def macros(options: PathOptions, interface: Interface, slots: int, key: int) -> dict[str, Any]:
    """Return the macros of the programs; `key` is the secret of marks."""
    id_factor = secrets.randbits(16) | 1
    return {
        "LINK_ETHERNET": int(interface.ethernet),
        "SLOTS": slots,
        # Secret, so that no application's packet is taken for a clone, and no answer to another
        # tracer for one to a probe.
        "MARK": f"{secrets.randbits(32) | 1:#x}",
        "KEY": f"{key:#x}ULL",
        "MAGIC": f"{PROBE_MAGIC:#x}",
        "ID_FACTOR": f"{id_factor:#x}U",
        "ID_INVERSE": f"{pow(id_factor, -1, 1 << 16):#x}U",
        "BURST": options.burst,
        "APPLICATION_FIRST": int(options.order is Order.APPLICATION),
        "GUARD": _GUARDS[options.guard],
        # The compiler's own maps: the probe makes larger ones.
        "ALL_TARGETS": 1,
        "ALL_SLOTS": 1,
        "ALL_EXCHANGES": 1,
        "EXPIRY_NS": round(options.timeout * 1e9) + EXPIRY_NS,
        "PASS_ANSWERS": int(options.pass_answers),
    }
