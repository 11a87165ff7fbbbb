"""Sets of a packet's numbers and addresses, closed under `and`, `or` and `not`."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Self

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
