"""From the kernel's flow records to rows: merging, and turning ticks into time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from bpf.abi import ProgType
from bpf.syscall import prog_load, prog_test_run

Array = np.ndarray[Any, np.dtype[Any]]


class FlowDirection(IntEnum):
    """Which way a packet went, seen from this host."""

    INGRESS = 0
    EGRESS = 1


RECORD = np.dtype(
    {
        "names": ["key", "bytes", "packets", "tcp_flags", "first", "last"],
        "formats": [("u8", (5,)), "u8", "u8", "u1", "u4", "u4"],
        "offsets": [0, 40, 48, 55, 56, 60],
        "itemsize": 64,
    }
)
"""`struct flow_record` of flow.c: 64 bytes. `tcp_flags` is the highest byte of `packets`."""
_PACKETS = np.uint64((1 << 56) - 1)

FLOW = np.dtype([
    ("source", "u1", (16,)), ("destination", "u1", (16,)), ("source_port", ">u2"),
    ("destination_port", ">u2"), ("protocol", "u1"), ("version", "u1"), ("direction", "u1"),
    ("tcp_flags", "u1"), ("packets", "u8"), ("bytes", "u8"), ("first_ns", "i8"), ("last_ns", "i8"),
])  # fmt: skip
"""A flow in a window, one direction. Addresses are in network order, IPv4 in the first four bytes;
bytes are of frames without FCS. Times are CLOCK_MONOTONIC: the kernel's last tick before the
packet, but never outside the window."""

_READ_JIFFIES = bytes.fromhex("8500000076000000 9500000000000000")
"""call bpf_jiffies64; exit."""
_CLOCK_MONOTONIC_COARSE = 6  # not in Python's time module

KEY_WORDS = 5
_BLOCK = 8192
_DIRECTION_SHIFT = 48
"""Place of `direction` in the fifth word of a row."""
KEY_MASK = np.array([~0, ~0, ~0, ~0, (1 << 56) - 1], "i8").view("u8")
"""The key's part of a row's first five words: all but `tcp_flags`."""
_FACTORS = np.frombuffer(os.urandom(8 * KEY_WORDS), "u8") | np.uint64(1)
"""Secret, so that nobody outside can make two flows collide."""


def hash_keys(keys: Array) -> Array:
    """64-bit hashes (n,) of key words (n, 5)."""
    # Word by word: three times faster than a sum over such a short axis.
    hashed: Array = keys[:, 0] * _FACTORS[0]
    for word in range(1, KEY_WORDS):
        hashed += keys[:, word] * _FACTORS[word]
    hashed ^= hashed >> np.uint64(32)
    hashed *= _FACTORS[0]
    return hashed


def words_of(rows: Array) -> Array:
    """Rows of dtype FLOW (n,) as 64-bit words (n, 9): the same memory."""
    return rows.view("u8").reshape(len(rows), FLOW.itemsize // 8)


def key_words(rows: Array) -> Array:
    """The key of each row of dtype FLOW, as words (n, 5)."""
    words: Array = words_of(rows)[:, :KEY_WORDS] & KEY_MASK
    return words


def rows_of(parts: Sequence[Array], direction: FlowDirection, clock: TickClock) -> Array:
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
            _fill(rows[to], block, direction, clock)
            hashes[to] = hash_keys(block["key"])
            at += len(block)
    in_order = np.sort(hashes)
    if not (in_order[1:] == in_order[:-1]).any():
        return rows
    return _merged(rows, hashes)


def _fill(rows: Array, records: Array, direction: FlowDirection, clock: TickClock) -> None:
    words = words_of(rows)
    words[:, :KEY_WORDS] = records["key"]
    words[:, KEY_WORDS - 1] |= np.uint64(direction << _DIRECTION_SHIFT)
    rows["tcp_flags"] = records["tcp_flags"]
    rows["packets"] = records["packets"] & _PACKETS
    rows["bytes"] = records["bytes"]
    rows["first_ns"] = clock.monotonic_ns(records["first"])
    rows["last_ns"] = clock.monotonic_ns(records["last"])


def _merged(rows: Array, hashes: Array) -> Array:
    keys = key_words(rows)
    order = np.argsort(hashes)
    same = hashes[order[1:]] == hashes[order[:-1]]
    if not (keys[order[1:]] == keys[order[:-1]])[same].all():
        # Two keys share a hash: order them by the keys themselves.
        order = np.lexsort(keys.T)
        same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    rows = rows[order]
    merged = rows[starts]
    merged["packets"] = np.add.reduceat(rows["packets"], starts)
    merged["bytes"] = np.add.reduceat(rows["bytes"], starts)
    merged["tcp_flags"] = np.bitwise_or.reduceat(rows["tcp_flags"], starts)
    merged["first_ns"] = np.minimum.reduceat(rows["first_ns"], starts)
    merged["last_ns"] = np.maximum.reduceat(rows["last_ns"], starts)
    return merged


class TickClock:
    """Turns the lower half of jiffies into CLOCK_MONOTONIC nanoseconds."""

    def __init__(self) -> None:
        self._fd = prog_load(_READ_JIFFIES, ProgType.XDP, "jiffies")
        # The coarse clock advances by one tick at a time: its resolution is a tick's length.
        self.tick_ns = round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)
        self.update()

    def close(self) -> None:
        os.close(self._fd)

    def update(self) -> None:
        """Take a new reference; once a window is enough."""
        coarse = time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
        while True:
            self._jiffies = prog_test_run(self._fd, bytes(64)).verdict
            again = time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
            if again == coarse:
                self._monotonic_ns = coarse
                return
            coarse = again

    def monotonic_ns(self, jiffies: Array) -> Array:
        """Nanoseconds (n,) i8 of ticks (n,) u4, all of the past."""
        ago = (np.uint32(self._jiffies) - jiffies).astype("i8")
        result: Array = self._monotonic_ns - ago * self.tick_ns
        return result
