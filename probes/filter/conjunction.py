"""The disjunctive normal form of a filter, for a classifier of packets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from probes.filter.sets import NumberSet, PrefixSet

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
