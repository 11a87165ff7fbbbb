"""From the kernel's flow records to rows of flows, and the sizes of the tables of records."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

import numpy as np

from bpf.arrays import Array, Rows
from bpf.attach.group import NAME_SIZE, InterfaceGroup
from bpf.attach.interface import Interface
from bpf.errors import UsageError
from bpf.machine import numbered_cpus, possible_cpus
from probes.flow.clock import FlowClock
from probes.memory_limit import limit_for_flows, size_text
from probes.snapshot import LossReason


class FlowDirection(IntEnum):
    """Which way a packet went, seen from this host."""

    INGRESS = 0
    EGRESS = 1


def _record(key_words: int) -> np.dtype[Any]:
    end = 8 * key_words
    return np.dtype(
        {
            "names": ["key", "bytes", "tos", "packets", "tcp_flags", "first", "last"],
            "formats": [("u8", (key_words,)), "u8", "u1", "u8", "u1", "u4", "u4"],
            "offsets": [0, end, end + 7, end + 8, end + 15, end + 16, end + 20],
            "itemsize": end + 24,
        }
    )


RECORD, WIDE_RECORD = _record(5), _record(6)
"""`struct flow_record` of flow.c: 64 bytes, or 72 with a tunnel or an interface in the key. `tos`
is the highest byte of `bytes`, `tcp_flags` the highest byte of `packets`."""
_COUNT = np.uint64((1 << 56) - 1)

NAME = np.dtype(f"S{NAME_SIZE}")
"""The name of an interface."""
FLOW = np.dtype([
    ("source", "u1", (16,)), ("destination", "u1", (16,)), ("source_port", ">u2"),
    ("destination_port", ">u2"), ("protocol", "u1"), ("version", "u1"), ("vlan", "u2"),
    ("tunnel_id", "u4"), ("tunnel", "u1"), ("direction", "u1"), ("tcp_flags", "u1"), ("tos", "u1"),
    ("interface", NAME), ("packets", "u8"), ("bytes", "u8"), ("first_ns", "i8"), ("last_ns", "i8"),
])  # fmt: skip
"""A flow in a window, one direction. Addresses are in network order, IPv4 in the first four bytes.
The ports of ICMP are its identifier (of echo and the like), and type * 256 + code. `tunnel` is one
of TUNNELS or 0; `interface` is the name of the one that counts; `tos` is of the first packet;
bytes are of frames without FCS. Times are CLOCK_MONOTONIC to `FlowClock.error_ns`, never outside
the window."""
OF_FIRST_PACKET = ("tos",)
"""Fields of a flow's first packet."""
FOLDS: dict[str, np.ufunc] = {
    "packets": np.add, "bytes": np.add, "tcp_flags": np.bitwise_or, "first_ns": np.minimum,
    "last_ns": np.maximum,
}  # fmt: skip
"""How the other fields of a flow's rows make one row."""

KEY_WORDS = 8
_BLOCK = 8192
_DIRECTION_SHIFT = 40
"""Place of `direction` in the sixth word of a row."""
KEY_MASK = np.array([~0, ~0, ~0, ~0, ~0, (1 << 48) - 1, ~0, ~0], "i8").view("u8")
"""The key's part of a row's first words: all but `tcp_flags` and `tos`."""
_TUNNEL_WORD = 5
"""Of a record's key, and of a row."""
_SLOT_SHIFT, _AGAIN_SHIFT = 40, 56
"""In that word: INTERFACE_SHIFT and AGAIN_SHIFT of flow.c."""
_TUNNEL = np.uint64((1 << _SLOT_SHIFT) - 1)
_FACTORS = np.frombuffer(os.urandom(8 * KEY_WORDS), "u8") | np.uint64(1)
"""Secret, so that nobody outside can make two flows collide."""


def hash_keys(keys: Array) -> Array:
    """64-bit hashes (n,) of key words (n, m), KEY_WORDS at most."""
    # Word by word: three times faster than a sum over such a short axis.
    hashed: Array = keys[:, 0] * _FACTORS[0]
    for word in range(1, keys.shape[1]):
        # The high half comes down first: a product alone keeps a difference in the last bytes of
        # two IPv6 addresses in so few bits that many hosts of two networks would share a hash.
        hashed ^= hashed >> np.uint64(32)
        hashed += keys[:, word]
        hashed *= _FACTORS[word]
    hashed ^= hashed >> np.uint64(32)
    hashed *= _FACTORS[0]
    return hashed


def words_of(rows: Rows[FLOW]) -> Array:
    """Rows of dtype FLOW (n,) as 64-bit words (n, 12): the same memory."""
    return rows.view("u8").reshape(len(rows), FLOW.itemsize // 8)


def key_words(rows: Rows[FLOW]) -> Array:
    """The key of each row of dtype FLOW, as words (n, 8)."""
    return words_of(rows)[:, :KEY_WORDS] & KEY_MASK


def split_again(parts: Iterable[Array]) -> tuple[list[Array], list[Array]]:
    """Split records (n,) into those that count packets and those that count packets again."""
    split = [(records, records["key"][:, _TUNNEL_WORD] >> _AGAIN_SHIFT != 0) for records in parts]
    return [r[~again] for r, again in split], [r[again] for r, again in split]


def rows_of(
    parts: Sequence[Array], direction: FlowDirection, clock: FlowClock,
    interface: Interface,
) -> Rows[FLOW]:  # fmt: skip
    """Rows of dtype FLOW, one a flow, from records (n,); a flow may have several records."""
    size = sum(map(len, parts))
    rows = np.empty(size, FLOW)
    hashes = np.empty(size, "u8")
    at = 0
    for records in parts:
        # In blocks that stay in the cache from one column to the next: twice as fast as at once.
        for start in range(0, len(records), _BLOCK):
            block = records[start : start + _BLOCK]
            to = slice(at, at + len(block))
            _fill(rows[to], block, direction, clock, interface)
            hashes[to] = hash_keys(block["key"])
            at += len(block)
    in_order = np.sort(hashes)
    if not (in_order[1:] == in_order[:-1]).any():
        return rows
    return _merged(rows, hashes)


def once(rows: Rows[FLOW]) -> Rows[FLOW]:
    """Rows of dtype FLOW (n,) of several drains of a window, with each flow in one row."""
    return _merged(rows, hash_keys(key_words(rows))) if len(rows) else rows


def cut(records: Array, most: int) -> list[Array]:
    """Return the `most` records (n,) of the most bytes, in their order, and sums of the others: one
    record for each interface, without an IP version. flow.c makes such a record while flows are
    off. `most` is 1 or more."""
    others = len(records) - most
    if others <= 0:
        return [records]
    order = np.argpartition(records["bytes"] & _COUNT, others)
    left, key = order[:others], records["key"]
    counts = {unit: records[unit][left] & _COUNT for unit in ("packets", "bytes")}
    rest = np.zeros(1, records.dtype)
    if key.shape[1] <= _TUNNEL_WORD:
        sums = {unit: count.sum() for unit, count in counts.items()}
    else:
        places = (key[left, _TUNNEL_WORD] >> np.uint64(_SLOT_SHIFT)).astype("i8")
        used = np.flatnonzero(np.bincount(places))
        rest = np.zeros(len(used), records.dtype)
        rest["key"][:, _TUNNEL_WORD] = used.astype("u8") << np.uint64(_SLOT_SHIFT)
        # Floats are exact up to 2 ** 53.
        sums = {unit: np.bincount(places, count)[used] for unit, count in counts.items()}
    for unit, of in sums.items():
        rest[unit] = of
    # By take: indexing copies a structured array field by field.
    return [records.take(np.sort(order[others:])), rest]


def largest(rows: Rows[FLOW], most: int) -> tuple[Rows[FLOW], Rows[FLOW]]:
    """Return the `most` rows of dtype FLOW (n,) of the most bytes, in their order, and the others:
    first of all the sums of `cut`."""
    is_flow = rows["version"] > 0
    others = len(rows) - min(most, int(np.count_nonzero(is_flow)))
    if not others:
        return rows, rows[:0]
    order = np.argpartition(np.where(is_flow, rows["bytes"] + np.uint64(1), 0), others - 1)
    return rows.take(np.sort(order[others:])), rows.take(order[:others])


def fill_keys(rows: Rows[FLOW], key: Array, direction: FlowDirection, interface: Interface) -> None:
    """Fill the keys of rows of dtype FLOW (n,) from the kernel's `struct flow_key`: u8 (n, 5 or 6).

    All other fields in the words of a key become 0.
    """
    words = words_of(rows)
    words[:, _TUNNEL_WORD:KEY_WORDS] = 0
    words[:, : key.shape[1]] = key
    if not isinstance(interface, InterfaceGroup):
        words[:, _TUNNEL_WORD] |= np.uint64(direction << _DIRECTION_SHIFT)
        rows["interface"] = interface.name.encode(errors="replace")
    else:
        slots = (words[:, _TUNNEL_WORD] >> _SLOT_SHIFT) & np.uint64(0xFFFF)
        words[:, _TUNNEL_WORD] &= _TUNNEL
        rows["interface"] = np.frombuffer(interface.names, NAME)[slots]
        rows["direction"] = np.frombuffer(interface.inside, "u1")[slots] ^ direction


def _fill(
    rows: Rows[FLOW], records: Array, direction: FlowDirection, clock: FlowClock,
    interface: Interface,
) -> None:  # fmt: skip
    fill_keys(rows, records["key"], direction, interface)
    for name in ("tcp_flags", *OF_FIRST_PACKET):
        rows[name] = records[name]
    for name in ("packets", "bytes"):
        rows[name] = records[name] & _COUNT
    rows["first_ns"] = clock.monotonic_ns(records["first"])
    rows["last_ns"] = clock.monotonic_ns(records["last"])


def groups_of(keys: Array, hashes: Array, *, stable: bool = False) -> tuple[Array, Array]:
    """Return an order (n,) with equal keys (n, words) side by side, and the begin of each key in
    it. `hashes` (n,) are of the keys; `stable` keeps the order of equal keys."""
    order = np.argsort(hashes, kind="stable" if stable else None)
    same = hashes[order[1:]] == hashes[order[:-1]]
    if not (keys[order[1:]] == keys[order[:-1]])[same].all():
        # Two keys share a hash: order them by the keys themselves.
        order = np.lexsort(keys.T)
        same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    return order, np.flatnonzero(np.concatenate(([True], ~same)))


def _merged(rows: Rows[FLOW], hashes: Array) -> Array:
    order, starts = groups_of(key_words(rows), hashes)
    # By take: indexing copies a structured array field by field.
    rows = rows.take(order)
    merged = rows.take(starts)
    for name, fold in FOLDS.items():
        merged[name] = fold.reduceat(rows[name], starts)
    of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))
    begins = np.flatnonzero(rows["first_ns"] == merged["first_ns"][of])
    for name in OF_FIRST_PACKET:
        merged[name][of[begins]] = rows[name][begins]
    return merged


_TABLES = 4
"""Sets of tables of a probe: two hooks, with two sets each."""
BINS = 1024
"""Bins of bytes of an interface on a CPU, of the last 4 s (peaks.py)."""
_BIN_BYTES = len(FlowDirection) * BINS * 8
_BINS_BYTES, _FEWEST = 4 << 20, 8
"""Bytes of all bins in a run on several interfaces, and fewest interfaces that have some."""
_SET_BYTES = 4
"""Bytes of the index for a record."""
_CACHE_LINE = 64
_LOSSES = len(LossReason) * 16
"""Bytes of one CPU's loss counters."""
_RECORDS = (512, 131072)
"""Fewest and most records of a CPU: a way of the index has 17 bits for a record's number."""
DATAGRAMS = 4096
"""Fragmented datagrams whose ports a probe knows at the same time."""
_DATAGRAMS_BYTES = DATAGRAMS * 128
_RING_SHARE = 5
"""The overflow rings take at most this part of the memory."""
_RINGS = (64 << 10, 8 << 20)
"""Bytes, not pages: a page has 4 to 64 KiB."""


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Sizes of one set of tables; two sets of each hook take turns."""

    records: int
    """Records of one CPU, a power of two."""
    cpus: int = field(default_factory=numbered_cpus)
    """CPUs that have records. Packets of a CPU with a higher number go to the overflow ring."""
    ring: int = _RINGS[1]
    """Bytes of the overflow ring, a power of two and at least a page."""
    wide: bool = False
    """Whether flows of other tunnels or interfaces are other flows."""

    @classmethod
    def within(cls, memory: int, cpus: int | None = None, *, wide: bool = False) -> Self:
        """The largest sizes with which a probe takes at most `memory` bytes.

        `cpus` are the online ones by default. Raises UsageError if the smallest tables take more.
        """
        cpus = numbered_cpus() if cpus is None else cpus
        least = replace(cls.least(cpus), wide=wide)
        if least.memory > memory:
            raise UsageError(
                f"the flow tables of {cpus} CPUs do not fit into {size_text(memory)} "
                "of kernel memory",
                hint=f"--memory must be at least {size_text(limit_for_flows(least.memory))}",
            )
        _, records = _RECORDS
        ring = max(least.ring, min(_RINGS[1], _power_below(memory // (_RING_SHARE * _TABLES))))
        sizes = replace(least, records=records, ring=ring)
        while sizes.records > least.records and sizes.memory > memory:
            sizes = replace(sizes, records=sizes.records // 2)
        while sizes.memory > memory:
            sizes = replace(sizes, ring=sizes.ring // 2)
        return sizes

    @classmethod
    def least(cls, cpus: int | None = None) -> Self:
        """The smallest tables of so many CPUs, by default the online ones."""
        cpus = numbered_cpus() if cpus is None else cpus
        return cls(_RECORDS[0], cpus, max(_RINGS[0], mmap.PAGESIZE))

    @property
    def record(self) -> np.dtype[Any]:
        """`struct flow_record` of flow.c."""
        return WIDE_RECORD if self.wide else RECORD

    @property
    def memory(self) -> int:
        """Bytes of kernel memory of a probe on two hooks."""
        own = self.records * (self.record.itemsize + _SET_BYTES) + _CACHE_LINE
        hooks = _TABLES * (self.cpus * own + self.ring + possible_cpus() * _LOSSES)
        return hooks + self.bins + _DATAGRAMS_BYTES

    @property
    def interfaces(self) -> int:
        """How many numbers of interfaces have bins; a run on one has the number 0."""
        return max(_FEWEST, _BINS_BYTES // _BIN_BYTES // possible_cpus()) if self.wide else 1

    @property
    def bins(self) -> int:
        """Bytes of the bins of both hooks, which all sets of tables share."""
        return possible_cpus() * self.interfaces * _BIN_BYTES

    @property
    def summary(self) -> str:
        return (
            f"{size_text(self.memory)} of kernel memory: {self.records} records on each of "
            f"{self.cpus} CPUs, and {size_text(_TABLES * self.ring)} for packets beyond"
        )

    @property
    def sets(self) -> int:
        """8-way sets, a way for each record: at the alarm one set in 4000 has overflowed."""
        return self.records // 8

    @property
    def alarm_at(self) -> int:
        """Records in use at which the program wakes user space to swap early.

        The remaining records must last until user space has drained the other set of tables.
        """
        return self.records // 4

    @property
    def entries(self) -> dict[str, int]:
        """Entries of each table, by the map's name; of a ring its bytes."""
        return {
            "records": self.cpus * self.records,
            "sets": self.cpus * self.sets,
            "cpus": self.cpus,
            "overflow": self.ring,
        }


def _power_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)
