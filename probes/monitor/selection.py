"""Selections of packets: user space's side of bpf/include/select.h (S2.9).

Bits of the kernel's tables are conjunctions. A bit is written while no packet looks at it, then set
in `live`; it is used again only after a grace period.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, cast

import numpy as np

from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.errors import KernelError, UsageError
from bpf.maps.map import Map
from bpf.programs import grace
from probes.filter.conjunction import (
    EVERYWHERE,
    WIDTHS,
    Conjunction,
    Dimension,
    NumberSet,
    Prefix,
    PrefixSet,
    Set,
    merged,
    outers,
)
from probes.filter.syntax import MAX_CONJUNCTIONS
from probes.flow.filter import FlowFilter
from probes.program.metrics import open_map

ENDS = ("source", "destination")
TABLES = ("selectors", *(f"{end}s_v{version}" for end in ENDS for version in WIDTHS))
"""Maps of the header; they belong to every program that includes it."""
SELECTIONS = 64
_CLASSES = 256
_PREFIXES = 65536
_DE_BRUIJN = 0x03F79D71B4CB0A89


def place_of(number: int) -> int:
    """The place of a selection in the kernel's arrays (select.h)."""
    return ((1 << number) * _DE_BRUIJN & ((1 << 64) - 1)) >> 58


def conjunctions_of(filters: Sequence[str]) -> tuple[Conjunction, ...]:
    """Return alternatives: a packet passes the filters if it passes one. No filters: everything.

    Raises UsageError if a filter is invalid or cannot select packets.
    """
    found = (one for text in filters for one in FlowFilter.parse(text).conjunctions())
    return merged(found) if filters else (Conjunction(),)


class Selections:
    """Selections in the kernel's tables. Thread-safe."""

    def __init__(self, compiled: Mapping[str, CompiledMap], fds: Mapping[str, int]) -> None:
        """`fds` are the maps in `TABLES`, declared as in `compiled`; the caller still owns them."""
        self._maps = {name: open_map(compiled[name], fds[name]) for name in TABLES}
        self._tables = self._maps["selectors"].view()[0]
        self._ports = {
            Dimension[f"{end.upper()}_PORT"]: _PortClasses(self._tables, end) for end in ENDS
        }
        self._tries = {
            Dimension[end.upper()]: _Tries(
                {version: self._maps[f"{end}s_v{version}"] for version in WIDTHS}
            )
            for end in ENDS
        }
        self._lock = threading.Lock()
        self._bits: dict[Conjunction, int] = {}
        self._selections: dict[int, Sequence[Conjunction]] = {}
        self._uses: Counter[tuple[int, bool]] = Counter()
        """By number, for users that share it (False), and for the one that does not (True)."""

    def add(self, filters: Sequence[str]) -> int:
        """Select packets that pass one of `filters`; without filters, all. Returns the selection's
        bit in the result of `selections_of`, from the call's return on for every packet: a bit of
        `add_all`, or of another call of this, if it selects the same packets.

        Raises UsageError if a filter is invalid or the tables are full, and then changes nothing.
        """
        return self._take(conjunctions_of(filters), alone=False)

    def add_all(self, wanted: Sequence[Conjunction]) -> int:
        """As `add`, for packets that are in one of `wanted`; none: no packet. No other call of this
        returns the same bit."""
        return self._take(wanted, alone=True)

    def _take(self, wanted: Sequence[Conjunction], *, alone: bool) -> int:
        with self._lock:
            for number, each in self._selections.items():
                if [*each] == [*wanted] and not (alone and self._uses[number, True]):
                    break
            else:
                number = self._add(wanted)
            self._uses[number, alone] += 1
            return number

    def _add(self, wanted: Sequence[Conjunction]) -> int:
        new = [each for each in wanted if each not in self._bits]
        taken = set(self._bits.values())
        free = [bit for bit in range(MAX_CONJUNCTIONS) if bit not in taken]
        if len(new) > len(free):
            raise UsageError(
                f"selections with {len(taken) + len(new)} combinations of header fields",
                hint=f"the monitor takes {MAX_CONJUNCTIONS} of all policies together",
            )
        numbers = [each for each in range(SELECTIONS) if each not in self._selections]
        if not numbers:
            hint = "remove a policy, or use the filters of others"
            raise UsageError(f"there can be at most {SELECTIONS} selections", hint=hint)
        bits = dict(zip(new, free, strict=False))
        self._write(bits)
        self._bits |= bits
        self._tables["live"] |= _mask(bits.values())
        self._selections[numbers[0]] = wanted
        for each in wanted:
            self._selecting(self._bits[each])[...] |= np.uint64(1 << numbers[0])
        grace.wait()
        return numbers[0]

    def remove(self, number: int, *, alone: bool = True) -> None:
        """Select no packets any more, if it is the last user's call; on return no packet has the
        selection's bit then. `alone`: the bit is of `add_all`."""
        with self._lock:
            self._uses[number, alone] -= 1
            if not (self._uses[number, True] or self._uses[number, False]):
                self._remove(number)

    def _remove(self, number: int) -> None:
        gone = self._selections.pop(number)
        used = {each for wanted in self._selections.values() for each in wanted}
        bits = {each: self._bits.pop(each) for each in gone if each not in used}
        self._tables["selections"] &= ~np.uint64(1 << number)
        self._tables["live"] &= ~_mask(bits.values())
        grace.wait()
        self._write({})
        freed = [ports.merge(bits.values()) for ports in self._ports.values()]
        if any(freed):
            grace.wait()

    def activate(self, selections: int) -> None:
        """Have packets of exactly these selections, bits of a word, go to applications."""
        self._tables["active"] = selections

    def with_any(self, held: Array) -> Array:
        """Return the selections that have any of the conjunctions `held`, u8 (n,), one a bit: u8
        (n, 64), 0 or 1."""
        bytes_ = held.astype("<u8").view("u1").reshape(-1, 8)
        words = np.bitwise_or.reduce(
            self._tables["selections"].reshape(8, 256)[np.arange(8), bytes_], 1
        )
        found: Array = words[:, None] >> np.arange(64, dtype="u8") & np.uint64(1)
        return found

    def close(self) -> None:
        del self._tables, self._ports
        for owned in self._maps.values():
            owned.close()

    def _write(self, new: Mapping[Conjunction, int]) -> None:
        """Write the tables for conjunctions at bits that are not live. Raises UsageError if they do
        not fit, and then writes nothing."""
        every = {**self._bits, **new}
        planned = {
            place: ports.plan({bit: each.sets[place] for each, bit in new.items()})
            for place, ports in self._ports.items()
        }
        wanted = {place: tries.plan(_sets(every, place)) for place, tries in self._tries.items()}
        for each, bit in new.items():
            table = np.zeros((3, 256), bool)
            versions, protocols = (
                each.sets[place] for place in (Dimension.VERSION, Dimension.PROTOCOL)
            )
            for version, row in ((4, 0), (6, 2)):
                if versions is None or cast(NumberSet, versions).bits >> version & 1:
                    table[row] = _among(protocols)
            _set_bit(self._tables["protocols"], bit, table.ravel())
            _set_bit(self._tables["flags"], bit, _among(each.sets[Dimension.FLAGS]))
            _set_bit(self._tables["vlans"], bit, _among(each.sets[Dimension.VLAN], 4096))
        for place, ports in self._ports.items():
            ports.write(*planned[place])
        for place, tries in self._tries.items():
            tries.write(wanted[place])
        looking = {place: _mask(_sets(every, place)) for place in Dimension}
        for place in (*self._ports, *self._tries):
            self._tables[f"by_{place.name.lower()}"] = looking[place]
        others = (looking[place] for place in (Dimension.VLAN, *self._tries))
        self._tables["by_others"] = reduce(or_, others)

    def _selecting(self, bit: int) -> Array:
        """The selections of a conjunction: the entries of the table whose index has its bit."""
        byte, place = divmod(bit, 8)
        found: Array = self._tables["selections"].reshape(8, -1, 2, 1 << place)[byte, :, 1]
        return found


class _PortClasses:
    """Classes of ports that all conjunctions treat alike."""

    def __init__(self, tables: Array, end: str) -> None:
        self._classes = tables[f"{end}_ports"].reshape(256, 256).T
        """By upper and lower byte: the kernel has them in network order."""
        self._bits = tables[f"{end}_classes"]

    def plan(self, sets: Mapping[int, Set | None]) -> tuple[Array, Array]:
        """Return each port's class, and each class's bits, once bits have these sets.

        Classes that packets meet now keep the bits of other conjunctions. Raises UsageError if
        there are too many.
        """
        classes, bits = self._classes.ravel(), self._bits.copy()
        for bit, ports in sets.items():
            among = _among(ports, 1 << 16)
            sizes = np.bincount(classes, minlength=_CLASSES)
            inside = np.bincount(classes[among], minlength=_CLASSES)
            _set_bit(bits, bit, inside == sizes)
            split = np.flatnonzero((inside > 0) & (inside < sizes))
            free = np.flatnonzero(sizes == 0)
            if len(split) > len(free):
                raise UsageError(
                    f"selections tell more than {_CLASSES} classes of ports apart",
                    hint="a class has the ports that all selections treat alike",
                )
            for old, new in zip(split, free, strict=False):
                classes[among & (classes == old)] = new
                bits[new] = bits[old] | np.uint64(1 << bit)
        return classes, bits

    def write(self, classes: Array, bits: Array) -> None:
        self._bits[:] = bits
        new = classes.reshape(256, 256)
        if (new != self._classes).any():
            grace.wait()  # no CPU may see a class before its bits
            self._classes[...] = new

    def merge(self, bits: Iterable[int]) -> bool:
        """Join classes that only these bits told apart. Returns whether packets may still use a
        class that is free now."""
        self._bits &= ~_mask(bits)
        used, at = np.unique(self._classes, return_inverse=True)
        _, first, alike = np.unique(self._bits[used], return_index=True, return_inverse=True)
        self._classes[...] = used[first][alike][at].reshape(256, 256)
        return len(first) < len(used)


class _Tries:
    """Tries of the prefixes of one end, by IP version."""

    def __init__(self, maps: Mapping[int, Map]) -> None:
        self._maps = maps
        self._written: dict[Prefix, int] = {}

    def plan(self, sets: Mapping[int, PrefixSet]) -> dict[Prefix, int]:
        """Return the bits of each prefix: all that hold for addresses without a longer one.

        Raises UsageError if there are too many prefixes.
        """
        changes: dict[Prefix, list[int]] = {prefix: [0, 0] for prefix in EVERYWHERE if sets}
        for bit, part in sets.items():
            for prefix, step in part.steps:
                changes.setdefault(prefix, [0, 0])[step < 0] |= 1 << bit
        if max(Counter(version for version, _, _ in changes).values(), default=0) > _PREFIXES:
            raise UsageError(f"selections with more than {_PREFIXES} prefixes")
        prefixes = sorted(changes)
        values: list[int] = []
        for prefix, outer in zip(prefixes, outers(prefixes), strict=True):
            enters, leaves = changes[prefix]
            values.append((values[outer] if outer >= 0 else 0) & ~leaves | enters)
        return dict(zip(prefixes, values, strict=True))

    def write(self, wanted: Mapping[Prefix, int]) -> None:
        """Make the tries so. Raises KernelError if the kernel refuses."""
        changed = [prefix for prefix in wanted if self._written.get(prefix) != wanted[prefix]]
        gone = [prefix for prefix in self._written if prefix not in wanted]
        self._written |= dict.fromkeys(changed, -1)
        try:
            for version, owned in self._maps.items():
                if keys := _keys(version, changed):
                    values = [wanted[prefix] for prefix in changed if prefix[0] == version]
                    owned.update(np.frombuffer(keys, owned.key), np.array(values, "u8"))
                if keys := _keys(version, gone):
                    owned.discard(np.frombuffer(keys, owned.key))
        except OSError as error:
            raise KernelError(f"prefixes cannot be written: {error.strerror}") from None
        self._written = dict(wanted)


def _keys(version: int, prefixes: Iterable[Prefix]) -> bytes:
    """Keys of a trie."""
    return b"".join(
        length.to_bytes(4, "little") + first.to_bytes(WIDTHS[version] // 8, "big")
        for of, first, length in prefixes
        if of == version
    )


def _sets(bits: Mapping[Conjunction, int], place: Dimension) -> dict[int, Any]:
    """The sets of one dimension, by bit; without conjunctions that do not look there."""
    found = ((bit, each.sets[place]) for each, bit in bits.items())
    return {bit: part for bit, part in found if part is not None}


def _among(numbers: Set | None, size: int = 256) -> Array:
    """Which numbers are in a set: bool (size,)."""
    return np.ones(size, bool) if numbers is None else cast(NumberSet, numbers).array()


def _mask(bits: Iterable[int]) -> np.uint64:
    return np.uint64(reduce(or_, (1 << bit for bit in bits), 0))


def _set_bit(words: Array, bit: int, where: Array) -> None:
    one = np.uint64(1 << bit)
    words[...] = np.where(where, words | one, words & ~one)
