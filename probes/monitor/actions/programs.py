"""The kernel's side of actions: the last program of a hook, and its tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpf.arrays import Array
from bpf.attach.interface import AnyHook, Hook, Interface
from bpf.compiler import Compiled, Compiler
from bpf.programs.program import Program
from probes.builtin import ProbeMaps
from probes.filter.conjunction import Conjunction
from probes.hooks import ChainSlot, Hooks
from probes.hooks.interface_hook import InterfaceHook, macros_of
from probes.monitor.actions.action import ActionKind, PacketAction
from probes.monitor.selection import TABLES, Selections, place_of
from probes.program.metrics import open_map

MOST_ACTIONS = 8
"""As in act.c."""
MIRROR_RATE = 100_000.0
"""Most packets a second that are mirrored: a loop of cables ends there."""
_FUNCTION = "act"
_SOURCE = Path(__file__).with_name("act.c")
_OWN = ("actions", "meters", "acted", "seen", "spared")
_BURST_NS = 100_000_000
"""Time whose packets may pass at once."""
ACTION = np.dtype([
    ("until_ns", "u8"), ("packet_ns", "u8"), ("burst_ns", "u8"), ("kind", "u4"), ("side", "u4"),
    ("dry", "u4"), ("interface", "u4"),
])  # fmt: skip
"""`struct action` of act.c."""


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """ActionCounts of an action."""

    packets: int = 0
    """Dropped or mirrored; in a dry run, those that would have been."""
    bytes: int = 0
    spared: int = 0
    """Packets of this host's control connections, which passed."""
    failed: int = 0
    """Packets that could not be mirrored, or beyond MIRROR_RATE."""
    seen: int = 0
    """All packets of the hook while an action was active there."""

    def __sub__(self, before: ActionCounts) -> ActionCounts:
        return ActionCounts(*(getattr(self, n) - getattr(before, n) for n in self.__slots__))

    @property
    def share(self) -> float:
        """The share of all packets, 0 to 1. The kernel counts on while the counts are read."""
        return min(1.0, self.packets / self.seen) if self.seen else 0.0


class ActionPrograms:
    """The last programs of the hooks of an interface. For one thread at a time."""

    def __init__(
        self, compiler: Compiler, point: InterfaceHook, hooks: Hooks, tunnels: bool,
        datagrams_fd: int,
    ) -> None:  # fmt: skip
        """`point` is the hook of incoming packets; `datagrams_fd` is the map of the monitor that
        knows the ports of fragments."""
        self._compiler = compiler
        self._point = point
        self._hooks = hooks
        self._tunnels = tunnels
        self._shared = {"datagrams": datagrams_fd}
        self._own: ProbeMaps | None = None
        self._slots: dict[bool, ChainSlot[InterfaceHook]] = {}
        """By whether packets leave."""
        self._programs: dict[bool, Program] = {}
        self._begun: dict[int, PacketAction] = {}
        """Actions by their selections."""
        self._before: dict[int, ActionCounts] = {}
        """The kernel's counts at the begin of each."""

    def load(self, outgoing: bool) -> None:
        """Load the program of a direction, which no packet reaches yet. Raises ProbedeckError."""
        if outgoing in self._programs:
            return
        hook = Hook.TC_EGRESS if outgoing else self._point.hook
        point = self._hooks.acquire(self._point.interface, hook)
        slot = ChainSlot(self._hooks, point, _FUNCTION)
        slot.stage.last = True
        try:
            with compile_source(self._compiler, point.interface, hook, self._tunnels) as compiled:
                if self._own is None:
                    self._open(compiled)
                self._programs[outgoing] = Program(
                    compiled,
                    _FUNCTION,
                    shared={n: fd for n, fd in self._shared.items() if n in compiled.maps}
                    | {"chain_head": point.chain.head_fd},
                    next_fd=slot.stage.next_fd,
                )
        except BaseException:
            slot.close()
            raise
        self._slots[outgoing] = slot

    def begin(
        self, action: PacketAction, select: Sequence[Conjunction], until_ns: int, interface: int
    ) -> int:
        """Let an action act on the packets of `select`, to `until_ns` of CLOCK_MONOTONIC.

        `interface` is the index of the one that gets copies. Returns the number of its selection.
        Raises ProbedeckError, and then nothing acts.
        """
        number = self._selections.add_all(select)
        rate = MIRROR_RATE if action.kind is ActionKind.MIRROR else action.rate
        packet_ns = round(1e9 / rate) if rate else 0
        burst_ns = max(_BURST_NS, packet_ns)
        self._actions[place_of(number)] = (
            until_ns, packet_ns, burst_ns, action.kind, action.outgoing, action.dry, interface,
        )  # fmt: skip
        self._begun[number] = action
        self._before[number] = self._counted(number, action)
        try:
            self._join(action.outgoing)
        except BaseException:
            self.end(number)
            raise
        self._activate()
        return number

    def end(self, number: int) -> ActionCounts:
        """End an action; on return it acts on no packet. Returns its last counts."""
        action = self._begun.pop(number)
        self._activate()
        slot = self._slots[action.outgoing]
        if all(each.outgoing != action.outgoing for each in self._begun.values()):
            slot.leave()
            self._hooks.rest(slot.point)
        self._selections.remove(number)
        self._actions[place_of(number)] = 0
        return self._counted(number, action) - self._before.pop(number)

    def counts(self) -> Mapping[int, ActionCounts]:
        """Return the counts of each action since its begin, by selection."""
        return {
            number: self._counted(number, action) - self._before[number]
            for number, action in self._begun.items()
        }

    def spare(self, keys: Collection[bytes]) -> None:
        """Let all packets of exactly these flows pass: keys of `control_connections`."""
        found = self._maps["spared"]
        size = found.key.itemsize
        wanted = {key.ljust(size, b"\0") for key in keys}
        known = {key.tobytes() for key in found.read().keys}
        if gone := known - wanted:
            found.discard(np.frombuffer(b"".join(gone), found.key))
        if new := wanted - known:
            found.update(np.frombuffer(b"".join(new), found.key), np.ones(len(new), "u1"))

    def close(self) -> None:
        """Leave the hooks."""
        for slot in self._slots.values():
            slot.close()
        for program in self._programs.values():
            program.close()
        if self._own is not None:
            del self._actions
            self._selections.close()
            for owned in self._maps.values():
                owned.close()
            self._own.close()
            self._own = None
        self._slots.clear()
        self._programs.clear()

    def _open(self, compiled: Compiled) -> None:
        self._own = ProbeMaps(compiled, (*_OWN, *TABLES))
        self._shared |= self._own.fds
        self._selections = Selections(compiled.maps, self._shared)
        self._maps = {
            name: open_map(compiled.maps[name], self._shared[name])
            for name in ("actions", "acted", "seen", "spared")
        }
        self._actions: Array = self._maps["actions"].view().view(ACTION)

    def _counted(self, number: int, action: PacketAction) -> ActionCounts:
        acted = self._maps["acted"].read().values[place_of(number)]
        seen = self._maps["seen"].read().values[int(action.outgoing)]
        sums = {name: int(acted[name].sum()) for name in acted.dtype.names or ()}
        return ActionCounts(**sums, seen=int(seen.sum()))

    def _activate(self) -> None:
        self._selections.activate(sum(1 << number for number in self._begun))

    def _join(self, outgoing: bool) -> None:
        slot = self._slots[outgoing]
        if not slot.is_reached:
            slot.point.chain.append(slot.stage, self._programs[outgoing].fd)
        self._hooks.attach(slot.point)


def compile_source(
    compiler: Compiler, interface: Interface, hook: AnyHook, tunnels: bool
) -> Compiled:
    """Compile the program for a hook. Raises KernelError."""
    # The compiler's own map of datagrams: the monitor's takes its place.
    macros = {**macros_of(interface, hook), "TUNNELS": int(tunnels), "DATAGRAMS": 1}
    return compiler.compile(
        _SOURCE.read_text(encoding="utf-8"),
        hook.prog_type,
        name="monitor.act.c",
        cflags=[f"-D{name}={value}" for name, value in macros.items()],
    )
