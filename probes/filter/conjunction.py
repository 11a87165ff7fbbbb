"""The disjunctive normal form of a filter, for a classifier of packets, and its sets of numbers."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import Self, cast

import numpy as np

from bpf.arrays import Array

Prefix = tuple[int, int, int]
"""IP version, first address and length. Sorted, outer prefixes come before inner ones."""
EVERYWHERE: tuple[Prefix, ...] = ((4, 0, 0), (6, 0, 0))
"""All addresses."""
WIDTHS = {4: 32, 6: 128}
"""Bits of an address, by IP version."""


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Some of the numbers below `size`."""

    size: int
    bits: int
    """Bit n: n is one of them."""

    @classmethod
    def between(cls, size: int, first: int, last: int) -> Self:
        return cls(size, (1 << last + 1) - (1 << first))

    @classmethod
    def union(cls, sets: Sequence[Self]) -> Self:
        return cls(sets[0].size, reduce(or_, (each.bits for each in sets)))

    def __and__(self, other: NumberSet) -> NumberSet:
        return NumberSet(self.size, self.bits & other.bits)

    def __invert__(self) -> NumberSet:
        return NumberSet(self.size, self.bits ^ ((1 << self.size) - 1))

    def __bool__(self) -> bool:
        return bool(self.bits)

    def array(self) -> Array:
        """Which numbers are in the set: bool (size,)."""
        packed = np.frombuffer(self.bits.to_bytes(-(-self.size // 8), "little"), "u1")
        return np.unpackbits(packed, count=self.size, bitorder="little").view(bool)


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """Some addresses, as nested prefixes."""

    steps: tuple[tuple[Prefix, int], ...]
    """Sorted: 1 if the prefix's addresses enter the set, -1 if they leave the outer prefix's."""

    @classmethod
    def within(cls, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Self:
        prefix = network.version, int(network.network_address), network.prefixlen
        return cls(((prefix, 1),))

    @classmethod
    def union(cls, sets: Sequence[Self]) -> Self:
        return cls._in_at_least(1, sets)

    def __and__(self, other: PrefixSet) -> PrefixSet:
        return PrefixSet._in_at_least(2, (self, other))

    def __invert__(self) -> PrefixSet:
        steps = Counter(dict.fromkeys(EVERYWHERE, 1))
        steps.subtract(dict(self.steps))
        return PrefixSet(tuple(sorted((prefix, step) for prefix, step in steps.items() if step)))

    def __bool__(self) -> bool:
        return bool(self.steps)

    @classmethod
    def _in_at_least(cls, least: int, sets: Sequence[Self]) -> Self:
        """Addresses in at least so many of the sets."""
        changes: Counter[Prefix] = Counter()
        for each in sets:
            for prefix, step in each.steps:
                changes[prefix] += step
        counts: list[int] = []
        steps = []
        prefixes = sorted(changes)
        for prefix, outer in zip(prefixes, outers(prefixes), strict=True):
            before = counts[outer] if outer >= 0 else 0
            counts.append(before + changes[prefix])
            if step := (counts[-1] >= least) - (before >= least):
                steps.append((prefix, step))
        return cls(tuple(steps))


def outers(prefixes: Sequence[Prefix]) -> Iterator[int]:
    """Yield the index of the longest other prefix around each of `prefixes`, sorted; or -1."""
    around: list[int] = []
    for place, (version, first, _) in enumerate(prefixes):
        while around:
            outer_version, outer, length = prefixes[around[-1]]
            if outer_version == version and (first ^ outer) >> (WIDTHS[version] - length) == 0:
                break
            around.pop()
        yield around[-1] if around else -1
        around.append(place)


Set = NumberSet | PrefixSet


class Dimension(IntEnum):
    """A part of a packet that a classifier looks at."""

    PROTOCOL = 0
    VERSION = 1
    FLAGS = 2
    """The byte of TCP flags; 0 for other protocols."""
    VLAN = 3
    """Id of the outermost tag; 0: none."""
    SOURCE_PORT = 4
    DESTINATION_PORT = 5
    SOURCE = 6
    DESTINATION = 7


SIZES = {
    Dimension.PROTOCOL: 256,
    Dimension.VERSION: 8,
    Dimension.FLAGS: 256,
    Dimension.VLAN: 4096,
    Dimension.SOURCE_PORT: 65536,
    Dimension.DESTINATION_PORT: 65536,
}
"""Size of the `NumberSet` of each dimension; the others have `PrefixSet`."""


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Packets with each part in a set."""

    sets: tuple[Set | None, ...] = (None,) * len(Dimension)
    """By Dimension; None: anything."""

    @classmethod
    def of(cls, sets: Mapping[Dimension, Set]) -> Conjunction:
        return cls(tuple(sets.get(dimension) for dimension in Dimension))

    def __and__(self, other: Conjunction) -> Conjunction:
        pairs = zip(self.sets, other.sets, strict=True)
        return Conjunction(tuple(_both(one, another) for one, another in pairs))

    def __bool__(self) -> bool:
        """Whether a packet can be in all sets."""
        return all(part is None or bool(part) for part in self.sets)


def union(sets: Iterable[Set]) -> Set:
    """Join sets of one dimension."""
    parts = list(sets)
    if isinstance(parts[0], NumberSet):
        return NumberSet.union(cast(list[NumberSet], parts))
    return PrefixSet.union(cast(list[PrefixSet], parts))


def merged(conjunctions: Iterable[Conjunction]) -> tuple[Conjunction, ...]:
    """The same packets in fewer conjunctions: those that differ in one dimension are joined."""
    found = list(dict.fromkeys(filter(None, conjunctions)))
    before = 0
    while len(found) != before:
        before = len(found)
        for place in Dimension:
            groups: dict[tuple[Set | None, ...], list[Set | None]] = {}
            for each in found:
                others = (*each.sets[:place], None, *each.sets[place + 1 :])
                groups.setdefault(others, []).append(each.sets[place])
            found = [
                Conjunction((*others[:place], _any(sets), *others[place + 1 :]))
                for others, sets in groups.items()
            ]
    return tuple(found)


def inverse(conjunctions: Iterable[Conjunction]) -> tuple[Conjunction, ...]:
    """The packets that are in none of the conjunctions."""
    found: tuple[Conjunction, ...] = (Conjunction(),)
    for each in conjunctions:
        sets = zip(Dimension, each.sets, strict=True)
        others = [Conjunction.of({place: ~part}) for place, part in sets if part is not None]
        found = merged(one & other for one in found for other in others)
    return found


def _both(one: Set | None, another: Set | None) -> Set | None:
    if one is None or another is None:
        return one if another is None else another
    return one & another  # type: ignore[operator]  # of one dimension, so of one type


def _any(sets: list[Set | None]) -> Set | None:
    if len(sets) == 1:
        return sets[0]
    joined = None if None in sets else union(filter(None, sets))
    # All values: without a constraint, the kernel does not look.
    return joined if joined and ~joined else None
