"""Keys and values for maps of each kind, and every kind with every method that reads it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bpf.abi import MapFlag, MapType
from bpf.machine import possible_cpus
from bpf.maps.map import Entries, ReadMethod
from bpf.syscall import MapSpec

HASHES = (
    MapType.HASH,
    MapType.LRU_HASH,
    MapType.PERCPU_HASH,
    MapType.LRU_PERCPU_HASH,
)
ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)
QUEUES = (MapType.QUEUE, MapType.STACK)
WALKING = (ReadMethod.DRAIN, ReadMethod.BATCH, ReadMethod.ITERATE)

KEY = np.dtype([("address", "u4"), ("port", "u1")])
"""5 bytes: no multiple of anything."""
VALUE = np.dtype([("packets", "u8"), ("flags", "u2"), ("ttl", "u1")])
"""11 bytes: per-CPU kinds pad it."""
PREFIX = np.dtype([("length", "u4"), ("address", "u4")])
U8 = np.dtype("u8")


def spec_of(kind: MapType, entries: int = 600, key: int = KEY.itemsize, value: int = 11) -> MapSpec:
    """The kind's spec; LRU kinds get enough room to evict no entry."""
    flags = 0
    if kind in ARRAYS:
        key = 4
    elif kind in QUEUES:
        key = 0
    elif kind == MapType.LPM_TRIE:
        key, flags = PREFIX.itemsize, int(MapFlag.NO_PREALLOC)
    elif kind in (MapType.LRU_HASH, MapType.LRU_PERCPU_HASH):
        entries = 4 * entries + 1024
    return MapSpec("test", kind, key, value, entries, flags)


def keys_of(kind: MapType, count: int) -> np.ndarray[tuple[int, ...], Any]:
    if kind in ARRAYS:
        return np.arange(count, dtype="u4")
    keys = np.zeros(count, PREFIX if kind == MapType.LPM_TRIE else KEY)
    keys["address"] = np.arange(count) << (20 if kind == MapType.LPM_TRIE else 0)
    if kind == MapType.LPM_TRIE:
        keys["length"] = 32
    return keys


def values_of(spec: MapSpec, count: int) -> np.ndarray[tuple[int, ...], Any]:
    """Different in every entry, on every CPU and in every field."""
    values = np.zeros((count, possible_cpus()) if spec.percpu else count, VALUE)
    numbers = np.arange(1, values.size + 1).reshape(values.shape)
    values["packets"] = numbers << 33
    values["flags"] = numbers
    values["ttl"] = numbers % 251
    return values


def contents(entries: Entries) -> dict[bytes, bytes]:
    found = {
        key.tobytes(): np.ascontiguousarray(value).tobytes()
        for key, value in zip(entries.keys, entries.values, strict=True)
    }
    assert len(found) == len(entries)
    return found


COMBINATIONS = [
    *itertools.product(HASHES, WALKING),
    *itertools.product(ARRAYS, WALKING),
    *itertools.product((MapType.LPM_TRIE,), (ReadMethod.BATCH, ReadMethod.ITERATE)),
]
