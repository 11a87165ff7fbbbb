"""Counters of selections in the kernel, as long as a policy needs them.

A counted selection has its packets and bytes in `struct sketch`. Packets that need nothing but
counting are counted by the combination of conjunctions that hold for them: one counter for all
their selections. A sketch slot has the distinct values of a part of the flow key among a
selection's packets, and their largest share. Policies that need the same share one.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bpf.abi import MapFlag, MapType
from bpf.arrays import Array
from bpf.errors import UsageError
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory
from bpf.maps.map import Map, ReadMethod
from bpf.programs import grace
from bpf.programs.program import make_map
from bpf.syscall import MapSpec, map_delete, map_update
from probes.monitor.counting.estimates import BITS, distinct_values, largest_share, sampled
from probes.monitor.selected import NOTHING, OUT, RECENT, Estimate, SelectedMetric
from probes.monitor.selection import Selections, place_of

MAX_SLOTS = 40
_PLACES = 64
_PLACE_OF = [place_of(bit) for bit in range(_PLACES)]
HALVES = 2
MODELS = _MODEL, _SLOTS = ("slot", "slots")
"""Maps of monitor.c that stand for the maps made here."""
_SLOT = np.dtype([
    ("registers", [("value", "u4"), ("seen", "u4")], (1 << BITS,)),
    ("buckets", [("packets", "u8"), ("candidate", "u4"), ("votes", "u4")], (256,)),
])  # fmt: skip
"""`struct slot` of monitor.c."""
_PARTS = ("flows", "sources", "destinations", "ports", "source_ports", "pairs")
"""Parts of the flow key, in the order of slots.h; by the metric that counts distinct ones."""
_LARGEST = {
    "top_source": "sources",
    "top_destination": "destinations",
    "top_port": "ports",
    "top_source_port": "source_ports",
}
RECENT_WINDOWS = 60
"""Windows of the metrics in RECENT."""
_SAMPLED: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "single_flows": ("flows", lambda seen: seen >> 2 < 2),
    "short_flows": ("flows", lambda seen: seen >> 2 < 3),
    "answered_flows": ("pairs", lambda seen: seen & 3 == 3),
    "unanswered_flows": ("pairs", lambda seen: seen & 3 != 3),
}
"""Metrics of a sample of a part's values: the part, and which of `struct sampled` count."""
_COUNTS = ("packets", "bytes")
_DIRECTIONS = ("incoming", "outgoing")
"""Fields of `struct sketch`."""


class _Part(NamedTuple):
    selection: str
    name: str
    """One of _PARTS."""
    directions: tuple[str, ...]
    """Of _DIRECTIONS: the packets that count."""


@functools.lru_cache(1024)
def _part_of(metric: SelectedMetric) -> _Part:
    """The part that a metric distinguishes."""
    name = _name(metric)
    part = _SAMPLED[name][0] if name in _SAMPLED else (_LARGEST | RECENT).get(name, name)
    return _Part(metric.selection, part, _directions(metric))


def _name(metric: SelectedMetric) -> str:
    """The name without its direction."""
    return metric.name.removeprefix(OUT)


def _directions(metric: SelectedMetric) -> tuple[str, ...]:
    return _DIRECTIONS[metric.outgoing : 1 + metric.leaves]


class _Recent:
    """The last RECENT_WINDOWS windows of a metric in RECENT."""

    def __init__(self) -> None:
        self.windows: deque[tuple[int, Array]] = deque()
        """Number and registers, u4 (2**BITS,), of each window with packets."""
        self.estimate = NOTHING
        self._number = 0

    def add(self, registers: Array | None, count: int = 1) -> Estimate:
        """Add `count` windows, None: without packets. Returns the estimate of all windows."""
        self._number += count
        old = bool(self.windows) and self.windows[0][0] <= self._number - RECENT_WINDOWS
        while self.windows and self.windows[0][0] <= self._number - RECENT_WINDOWS:
            self.windows.popleft()
        if registers is not None:
            self.windows.append((self._number, registers))
        if old or registers is not None:
            of = [each for _, each in self.windows]
            self.estimate = distinct_values(np.array(of)) if of else NOTHING
        return self.estimate


class _Slot:
    """A slot of both halves: one map each, with an entry a CPU."""

    def __init__(self, bit: int, outer_fds: Sequence[int]) -> None:
        self.bit = bit
        self._outer_fds = outer_fds
        self._maps: list[Map] = []
        try:
            for outer_fd in outer_fds:
                made = _make_model()
                self._maps.append(made)
                map_update(outer_fd, _key(bit), made.fd.to_bytes(4, "little"))
        except BaseException:
            self.close()
            raise

    def view(self, half: int) -> Array:
        """The kernel's own counters, of dtype _SLOT, shape (CPUs,)."""
        return self._maps[half].view()

    def clear(self, half: int) -> None:
        for name in ("registers", "buckets"):
            self._maps[half].view()[name] = 0

    def memory(self) -> int:
        return sum(map_memory(each.fd) for each in self._maps)

    def close(self) -> None:
        """No packet may come to it any more."""
        for outer_fd, made in zip(self._outer_fds, self._maps, strict=False):
            map_delete(outer_fd, _key(self.bit))
            made.close()


def _key(bit: int) -> bytes:
    return place_of(bit).to_bytes(4, "little")


def _make_model() -> Map:
    """A map that a slot of one half can be."""
    spec = MapSpec(_MODEL, MapType.ARRAY, 4, _SLOT.itemsize, possible_cpus(), MapFlag.MMAPABLE)
    return Map(make_map(spec), spec, np.dtype("u4"), _SLOT, routine=ReadMethod.MMAP)


class SelectedCounters:
    """Counts what policies need. For one thread at a time."""

    def __init__(self, selections: Selections) -> None:
        """Raises KernelError if memory is short."""
        self._selections = selections
        self._model = _make_model()
        self._outer_fds: list[int] = []
        spec = MapSpec(_SLOTS, MapType.ARRAY_OF_MAPS, 4, 4, _PLACES)
        try:
            for _ in range(HALVES):
                self._outer_fds.append(make_map(spec, inner_map_fd=self._model.fd))
        except BaseException:
            self._close_maps()
            raise
        self._sketches: Sequence[Array] = ()
        self.sees_outgoing = False
        """Whether outgoing packets are counted. If not, their metrics are unknown."""
        self._wanted: dict[str, frozenset[SelectedMetric]] = {}
        self._counted: dict[str, int] = {}
        """Bit of each selection."""
        self._slots: dict[_Part, _Slot] = {}
        self.recent: dict[SelectedMetric, _Recent] = {}
        """The last windows of the metrics in RECENT."""
        self._complete: frozenset[SelectedMetric] = frozenset()
        """Metrics that were counted from the begin of this window."""

    def maps_of(self, half: int) -> dict[str, int]:
        """The maps that the programs of a half share with its later generations."""
        return {_MODEL: self._model.fd, _SLOTS: self._outer_fds[half]}

    def write_to(self, sketches: Sequence[Array]) -> None:
        """Have these programs count, which no packet reaches yet, by their `struct sketch` of all
        CPUs."""
        self._sketches = sketches
        for each in sketches:
            for direction in _DIRECTIONS:  # an older generation may have others
                each[direction]["slots_of"] = 0
        self._mark()
        for part, slot in self._slots.items():
            self._connect(part, slot)

    @contextmanager
    def changed(self, policy: str, metrics: Collection[SelectedMetric]) -> Iterator[None]:
        """Count these for a policy, instead of those that it had, unless the block fails. Metrics
        that it keeps or another policy has are counted on without a gap.

        Raises UsageError if they do not fit, and then changes nothing.
        """
        before = self._wanted
        self._wanted = {**before, policy: before.get(policy, frozenset()) | frozenset(metrics)}
        try:
            self._add_missing()
            yield
            self._wanted = {**before, policy: frozenset(metrics)}
        except BaseException:
            self._wanted = before
            raise
        finally:
            self._remove_unneeded()

    def forget(self, policy: str) -> None:
        """Stop counting for a policy."""
        with self.changed(policy, ()):
            pass
        del self._wanted[policy]

    def rest(self) -> dict[SelectedMetric, Estimate]:
        """Take in a window without packets. Returns the metrics of the last windows that are not 0
        yet."""
        for recent in self.recent.values():
            recent.add(None)
        return {metric: each.estimate for metric, each in self.recent.items() if each.windows}

    def recent_limit(self, sketches: Array) -> float:
        """Return the greatest value of the metrics in RECENT at most, if the window ended now."""
        outgoing = {metric.outgoing for metric in self.recent}
        packets = {each: self._counts(sketches, _DIRECTIONS[each], "packets") for each in outgoing}
        limits = (
            each.estimate.high + float(packets[metric.outgoing][self._counted[metric.selection]])
            for metric, each in self.recent.items()
        )
        return max(limits, default=0.0)

    def end_window(
        self, half: int, sketches: Array, count: int = 1
    ) -> dict[SelectedMetric, Estimate]:
        """Values of the half's window, or of `count` windows together, which is then empty; a
        metric is missing if it came within.

        `sketches` are the `struct sketch` of all CPUs. The last one must have left the program.
        """
        counts = [
            {name: self._counts(sketches, direction, name) for name in _COUNTS}
            for direction in _DIRECTIONS
        ]
        # Else packets may have come to a slot before its selection counted them.
        is_whole = self._complete == self._metrics()
        used = {
            part for part in self._slots
            if not is_whole or any(
                counts[each == "outgoing"]["packets"][self._counted[part.selection]]
                for each in part.directions
            )
        }  # fmt: skip
        values = {}
        for metric in self._complete:
            if metric.outgoing and not self.sees_outgoing:
                continue
            bit, name, counted = (
                self._counted[metric.selection], _name(metric), counts[metric.outgoing]
            )  # fmt: skip
            if name in _COUNTS:
                exact = float(counted[name][bit])
                values[metric] = Estimate(exact, exact, exact)
                continue
            part = _part_of(metric)
            cpus = self._slots[part].view(half) if part in used else None
            if name in RECENT:
                registers = None if cpus is None else cpus["registers"]["value"].max(axis=0)
                values[metric] = self.recent.setdefault(metric, _Recent()).add(registers, count)
            elif cpus is None:
                values[metric] = NOTHING
            elif name in _LARGEST:
                values[metric] = largest_share(cpus["buckets"], int(counted["packets"][bit]))
            elif name in _SAMPLED:
                values[metric] = sampled(cpus["registers"], _SAMPLED[name][1])
            else:
                values[metric] = distinct_values(cpus["registers"]["value"])
        for direction in _DIRECTIONS:
            sketches[direction]["selected"] = 0
        sketches["combined"] = 0
        for part in used:
            self._slots[part].clear(half)
        self._complete = self._metrics()
        return values

    @property
    def leaving(self) -> bool:
        """Whether a policy needs outgoing packets."""
        return any(metric.leaves for metric in self._metrics())

    def memory(self) -> int:
        """Bytes of kernel memory of the slots."""
        fds = self._model.fd, *self._outer_fds
        return sum(map(map_memory, fds)) + sum(slot.memory() for slot in self._slots.values())

    def close(self) -> None:
        self._sketches = ()  # views of the programs' maps, which end with the last view
        for slot in self._slots.values():
            slot.close()
        self._close_maps()

    def _close_maps(self) -> None:
        self._model.close()
        for fd in self._outer_fds:
            os.close(fd)

    def _counts(self, sketches: Array, direction: str, name: str) -> Array:
        """Return the packets or bytes of each selection by its bit, u8 (64,).

        Combinations with bits of a selection that came within the window may be of older
        conjunctions: its metrics are not complete.
        """
        total: Array = sketches[direction]["selected"][name].sum(axis=0)[_PLACE_OF]
        if direction == "incoming":
            combined = sketches["combined"][sketches["combined"]["size"]["packets"] > 0]
            total = total + combined["size"][name] @ self._selections.with_any(combined["held"])
        return total

    def _metrics(self) -> frozenset[SelectedMetric]:
        return frozenset().union(*self._wanted.values())

    def _add_missing(self) -> None:
        missing = self._metrics() - self._complete
        for metric in sorted(self._metrics(), key=str):
            if metric.selection not in self._counted:
                bit = self._selections.add((metric.selection,) if metric.selection else ())
                self._counted[metric.selection] = bit
            part = _part_of(metric)
            if _name(metric) not in _COUNTS and part not in self._slots:
                self._slots[part] = slot = _Slot(self._free_slot(), self._outer_fds)
                self._connect(part, slot)
        self._mark()
        if missing and not self._any_packet():
            grace.wait()  # a packet on its way may have missed the new counters
            if not self._any_packet():
                self._complete |= missing

    def _any_packet(self) -> bool:
        """Whether the window has had a packet."""
        return any(sketches["tallies"]["packets"].any() for sketches in self._sketches)

    def _free_slot(self) -> int:
        taken = {slot.bit for slot in self._slots.values()}
        free = [bit for bit in range(MAX_SLOTS) if bit not in taken]
        if not free:
            raise UsageError(
                f"conditions count distinct values or shares of more than {MAX_SLOTS} selections",
                hint="packets and bytes of a selection need no sketch",
            )
        return free[0]

    def _connect(self, part: _Part, slot: _Slot) -> None:
        """Have packets of the part's selection counted in a slot."""
        selection, place = self._counted[part.selection], place_of(slot.bit)
        for sketches in self._sketches:
            sketches["parts"][:, place] = _PARTS.index(part.name)
            sketches["selection_of"][:, place] = 1 << selection
            for direction in part.directions:
                slots_of = sketches[direction]["slots_of"]
                slots_of[:, place_of(selection)] |= np.uint64(1 << slot.bit)

    def _mark(self) -> None:
        """Mark the selections that are counted, by direction, and those that have slots."""
        metrics = self._metrics()
        slotted = [metric for metric in metrics if _name(metric) not in _COUNTS]
        words = {
            "sketched": self._bits(each for each in slotted if not each.outgoing),
            "paired": self._bits(each for each in slotted if _part_of(each).name == "pairs"),
        }
        for sketches in self._sketches:
            for name, word in words.items():
                sketches[name] = word
            for direction in _DIRECTIONS:
                counted = (each for each in metrics if direction in _directions(each))
                sketches[direction]["counted"] = self._bits(counted)

    def _bits(self, metrics: Iterable[SelectedMetric]) -> int:
        return sum(1 << bit for bit in {self._counted[metric.selection] for metric in metrics})

    def _remove_unneeded(self) -> None:
        metrics = self._metrics()
        self._complete &= metrics
        self.recent = {each: self.recent[each] for each in self.recent.keys() & metrics}
        selections = {metric.selection for metric in metrics}
        old_slots = self._slots.keys() - {_part_of(metric) for metric in metrics}
        old = self._counted.keys() - selections
        if not (old_slots or old):
            return
        for part in old_slots:
            place = place_of(self._counted[part.selection])
            for sketches in self._sketches:
                for direction in part.directions:
                    slots_of = sketches[direction]["slots_of"]
                    slots_of[:, place] &= ~np.uint64(1 << self._slots[part].bit)
        self._mark()
        grace.wait()
        for part in old_slots:
            self._slots.pop(part).close()
        for selection in old:
            bit = self._counted.pop(selection)
            self._selections.remove(bit, alone=False)
            for sketches in self._sketches:
                for direction in _DIRECTIONS:
                    sketches[direction]["selected"][:, place_of(bit)] = 0
