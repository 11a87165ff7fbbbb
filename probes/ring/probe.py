"""The probe of the packet ring: which packets it keeps, and what its slots have."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.chain import OF_DROPPED
from bpf.compiler import Compiled
from bpf.errors import UsageError
from bpf.machine import numbered_cpus, possible_cpus
from bpf.programs import grace
from bpf.programs.program import Program
from bpf.syscall import prog_array_clear, prog_array_set
from probes.builtin import BuiltinProbe, Generation, ProbeMaps
from probes.flow.records import DATAGRAMS
from probes.monitor.selection import TABLES, Selections, conjunctions_of
from probes.program.metrics import open_map
from probes.reports import Fate
from probes.ring.options import MOST_KEPT, PROBE, CaptureLedger, RingOptions
from probes.ring.records import COUNTS, Packets, packets_of, slot_of
from probes.snapshot import Item

if TYPE_CHECKING:
    from bpf.attach.interface import Interface
    from bpf.compiler import Compiler
    from probes.config.model import Side
    from probes.hooks import Hooks

SOURCE = Path(__file__).with_name("ring.c")
_SLOTS, _CPUS, _CONTROL = "slots", "kept_cpus", "ring_control"
_OWN = (_SLOTS, _CPUS, _CONTROL)
_SHARED = (*_OWN, "datagrams", *TABLES)
_MARKING = "dropped"
"""Name of the program for packets that actions drop."""
_INTERVAL_S = 1.0
_HISTORY = 3600
"""Windows whose counts are kept, so that a capture knows the packets of its time."""
_LIVE = 4096
"""Slots of a CPU that a reader without a pause looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """The kernel's counts at a moment."""

    at_ns: int
    counts: Array
    """dtype COUNTS, (CPUs,)."""


@dataclass(slots=True)
class Kept:
    """A selection of packets."""

    number: int
    filters: Sequence[str]
    begin: _Mark
    since_utc_ns: int
    file: str = ""
    """Its last capture."""


class RingProbe(BuiltinProbe[Program]):
    """Keeps packets of selections, in both directions, until later ones overwrite them."""

    name = PROBE
    function = "ring"
    sources: Mapping[Side, Path] = {"ingress": SOURCE, "egress": SOURCE}
    metric = ("packets", _CPUS)
    needed: Mapping[Side, Sequence[str]] = dict.fromkeys(sources, ("ring", _MARKING))
    kept = _SHARED
    fates: Mapping[str, Fate] = dict.fromkeys(_OWN, Fate.KEPT)

    def __init__(
        self, compiler: Compiler, interface: Interface, ingress: Hook, hooks: Hooks,
        options: RingOptions,
    ) -> None:  # fmt: skip
        """Raises ProbedeckError, and then leaves nothing behind."""
        options.check()
        super().__init__(compiler, interface, _INTERVAL_S)
        self.options = options
        self._cpus = numbered_cpus()
        self.slots = options.slots(self._cpus)
        """Packets of each CPU that fit."""
        self.capacity = self._cpus * self.slots
        """Packets that fit."""
        self._entries = {
            _SLOTS: self.capacity, _CPUS: possible_cpus(), "datagrams": DATAGRAMS
        }  # fmt: skip
        self.selections: dict[str, Kept] = {}
        """By name."""
        self._marks: deque[_Mark] = deque(maxlen=_HISTORY)
        """At the ends of windows, ascending."""
        self._start(hooks, {"ingress": ingress, "egress": Hook.TC_EGRESS})

    def _make_maps(self, sides: Mapping[Side, Compiled]) -> None:
        compiled = sides["ingress"]
        self._shared = ProbeMaps(compiled, _SHARED, self._entries)
        self._owned.callback(self._shared.close)
        self._tables = Selections(compiled.maps, self._shared.fds)
        self._owned.callback(self._tables.close)
        maps = {
            name: open_map(
                compiled.maps[name], self._shared.fds[name], entries=self._entries.get(name)
            )
            for name in _OWN
        }
        for each in maps.values():
            self._owned.callback(each.close)
        slots = maps[_SLOTS].view().view(slot_of(self.options.kept))
        self._slot_rows: Array = slots.reshape(self._cpus, self.slots)
        self._counts: Array = maps[_CPUS].view().view(COUNTS)
        self._control: Array = maps[_CONTROL].view().view("u8")
        self._owned.callback(self._drop_views)

    def _drop_views(self) -> None:
        # Else the memory of the maps would live until the next garbage collection.
        del self._slot_rows, self._counts, self._control

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[Program]:
        shared = self._shared.fds
        for side, compiled in sides.items():
            next_fd = self._slots[side].stage.next_fd
            yield Program(compiled, self.function, shared=shared, next_fd=next_fd)
            yield Program(compiled, _MARKING, shared=shared)

    def _reached(self) -> Iterator[tuple[Side, Program, int]]:
        memory = self._shared.memory()
        for side, part in zip(self._current.sources, self._current.parts[::2], strict=True):
            yield side, part, part.memory() + memory
            memory = 0

    def _compile(self, side: Side, source: str) -> Compiled:
        macros = {
            "TUNNELS": int(self.options.tunnels), "DATAGRAMS": 1, "BYTES": self.options.kept,
            "SLOTS": self.slots,
        }  # fmt: skip
        return self._compile_with(side, source, macros)

    def _join(self) -> None:
        super()._join()
        self._direct(self._current)
        for slot in self._slots.values():
            self._owned.callback(prog_array_clear, slot.point.chain.head_fd, OF_DROPPED)

    def _direct(self, new: Generation[Program]) -> None:
        for slot, part, of_dropped in zip(
            self._slots.values(), new.parts[::2], new.parts[1::2], strict=True
        ):
            slot.replace(part.fd)
            prog_array_set(slot.point.chain.head_fd, OF_DROPPED, of_dropped.fd)

    def _end_window(self, ended: None, started_ns: int) -> tuple[Item, ...]:
        self._marks.append(self._mark())
        self.window += 1
        self._start_ns = self._now()
        return ()

    def keep(self, name: str, filters: Sequence[str]) -> None:
        """Keep packets that pass one of the filters, or all, under a name; an older selection of
        it ends. Raises UsageError."""
        with self._lock:
            if (old := self.selections.get(name)) and old.filters == filters:
                return
            if old is None and len(self.selections) >= MOST_KEPT:
                raise UsageError(f"the ring keeps packets of at most {MOST_KEPT} selections")
            wanted = conjunctions_of(filters)
            self.drop(name)
            number = self._tables.add_all(wanted)
            begin = self._mark()
            self.selections[name] = Kept(number, filters, begin, self._utc.utc_ns(begin.at_ns))
            self._activate()

    def drop(self, name: str) -> None:
        """Keep packets of a selection no longer; what the ring has of it is overwritten."""
        with self._lock:
            if gone := self.selections.pop(name, None):
                self._activate()
                self._tables.remove(gone.number)

    def count(self, name: str) -> tuple[int, int]:
        """Return the packets that the ring has kept of a selection, and those that it missed."""
        with self._lock:
            kept = self.selections[name]
            sums = _since(kept, kept.begin, self._mark())
            return sums["kept"], sums["paused"] + sums["failed"]

    def freeze(self) -> None:
        """Stop writing to the ring until `thaw`. Takes no lock, and only writes a word."""
        self._control[0] = 1

    def thaw(self) -> None:
        """Write to the ring again."""
        with self._lock:
            self._control[0] = 0

    def read(
        self, name: str, seconds: float, passing: Callable[[Packets], Array] | None = None
    ) -> tuple[Packets, CaptureLedger]:
        """Return the packets of a selection of the last seconds, or since the end of the window
        before. `passing` chooses packets.

        The ring is frozen while they are copied. Raises UsageError for an unknown selection.
        """
        with self._lock:
            if (kept := self.selections.get(name)) is None:
                raise UsageError(f"the ring keeps no packets {name}")
            self.freeze()
            grace.wait()
            end = self._mark()
            begin = self._begin_of(kept, end.at_ns - round(seconds * 1e9))
            found, whole_ns = [], begin.at_ns
            last, first = end.counts["last"], begin.counts["last"]
            for cpu, rows in enumerate(self._slot_rows):
                oldest = max(int(last[cpu]) - self.slots + 1, 1)
                numbers = np.arange(max(oldest, int(first[cpu]) + 1), int(last[cpu]) + 1)
                places = numbers & (self.slots - 1)
                if oldest > int(first[cpu]) + 1 and len(places):
                    whole_ns = max(whole_ns, int(rows["time"][places[0]]))
                found.append(rows.take(_whole(rows, places, numbers, kept)))
            self.thaw()
            packets = packets_of(np.concatenate(found), self.interface)
            sums, read = _since(kept, begin, end), len(packets.slots)
            if passing:
                packets = packets[passing(packets)]
            written, utc_ns = len(packets.slots), self._utc.utc_ns
            ledger = CaptureLedger(
                selected=sums["kept"] + sums["paused"] + sums["failed"],
                written=written, others=read - written, overwritten=sums["kept"] - read,
                paused=sums["paused"], unread=sums["failed"],
                dropped=int(np.count_nonzero(packets.slots["dropped"])),
                begin_utc_ns=utc_ns(begin.at_ns), end_utc_ns=utc_ns(end.at_ns),
                whole_utc_ns=utc_ns(whole_ns),
            )  # fmt: skip
            return packets, ledger

    def newest(self, name: str, most: int) -> Packets:
        """Return the newest packets of a selection, without a pause; slots that are written
        meanwhile are left out."""
        with self._lock:
            kept, found = self.selections.get(name), []
            for cpu, rows in enumerate(self._slot_rows):
                last = int(self._counts["last"][cpu])
                numbers = np.arange(max(last - min(_LIVE, self.slots - 1), 0) + 1, last + 1)
                places = numbers & (self.slots - 1)
                chosen = rows.take(places)
                # A slot that was overwritten during the copy has another number now.
                chosen["ended"][rows["number"][places] != numbers] = 0
                every = np.arange(len(chosen))
                found.append(
                    chosen.take(_whole(chosen, every, numbers, kept) if kept else every[:0])
                )
            packets = packets_of(np.concatenate(found), self.interface)
            return packets[np.arange(len(packets.slots))[-most:]]

    def utc_ns(self, monotonic_ns: int) -> int:
        return self._utc.utc_ns(monotonic_ns)

    def _mark(self) -> _Mark:
        return _Mark(time.monotonic_ns(), self._counts.copy())

    def _begin_of(self, kept: Kept, from_ns: int) -> _Mark:
        """Return the last mark of a selection at that time or before, else its first one."""
        begin = kept.begin
        for mark in self._marks:
            if begin.at_ns <= mark.at_ns <= from_ns:
                begin = mark
        return begin

    def _activate(self) -> None:
        self._tables.activate(sum(1 << each.number for each in self.selections.values()))


def _whole(slots: Array, places: Array, numbers: Array, kept: Kept) -> Array:
    """Return the places of the packets of a selection that no other packet overwrites."""
    whole = (slots["number"][places] == numbers) & (slots["ended"][places] == numbers)
    return places[whole & (slots["selections"][places] >> kept.number & 1 == 1)]


def _since(kept: Kept, begin: _Mark, end: _Mark) -> dict[str, int]:
    return {
        name: int((end.counts[name] - begin.counts[name])[:, kept.number].sum())
        for name in ("kept", "paused", "failed")
    }
