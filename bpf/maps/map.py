"""Maps: read and cleared whole, in numpy arrays, by the fastest method that the kernel has.

Methods, in the order in which they are tried: a mapping (mmapable arrays), the in-kernel drain,
the batch system calls, system calls for each entry; a queue and a stack are drained or popped. The
records of a ring buffer and of a perf event array are taken out of their memory.

Limits of a read while programs write the map:

- Clearing is exact only on a quiescent map: swapped out, and its grace period over. A value that
  grows between being copied and being deleted loses that growth, with the batch system calls too.
  An array's value that a program reads before it is set to zero, and stores afterwards, comes back
  and is counted twice.
  An entry that is inserted meanwhile is never lost: it is in this read or in the next.
- A key that is deleted and inserted meanwhile may be met twice. A read that does not clear keeps
  the last of the two where that is to be expected (LRU maps when drained, LPM tries, iteration).
  If a program deletes entries of a hash, read it when it is quiescent, or by batch, which locks
  each bucket. A read that clears keeps both, since both have left the map.
- An error half way through a read that clears ends the read: what has left the map is returned, and
  the rest stays in it for the next read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bpf.abi import BpfCommand
from bpf.arrays import Array
from bpf.errors import Closing, KernelError, UsageError
from bpf.maps.drain import Drain
from bpf.maps.kinds import Shape
from bpf.maps.layout import EntryLayout
from bpf.maps.readers import (
    Batched,
    Chunk,
    Iteration,
    Mapping,
    Pop,
    Reader,
    delete_batch,
    has_batch,
    write_batch,
)
from bpf.maps.ring import PerfRecords, Records
from bpf.syscall import MapSpec, map_create, map_delete, map_lookup, map_update


class ReadMethod(StrEnum):
    """A way to read a map."""

    MMAP = "mmap"
    DRAIN = "drain"
    BATCH = "batch"
    ITERATE = "iterate"
    POP = "pop"
    RING = "ring"
    PERF = "perf"


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Result of a read."""

    keys: Array
    """Shape (n,); the index for arrays, the position for queues (oldest first) and stacks."""
    values: Array
    """Shape (n,), or (n, possible CPUs) for per-CPU kinds."""

    def __len__(self) -> int:
        return len(self.keys)


_READERS: dict[ReadMethod, type[Reader]] = {
    ReadMethod.RING: Records,
    ReadMethod.PERF: PerfRecords,
    ReadMethod.MMAP: Mapping,
    ReadMethod.DRAIN: Drain,
    ReadMethod.BATCH: Batched,
    ReadMethod.ITERATE: Iteration,
    ReadMethod.POP: Pop,
}
"""In the order in which they are tried."""


class Map(Closing):
    """A map of the kernel; owns its descriptor. Not for use by two threads at a time."""

    def __init__(
        self,
        fd: int,
        spec: MapSpec,
        key: np.dtype[Any] | None = None,
        value: np.dtype[Any] | None = None,
        *,
        routine: ReadMethod | None = None,
    ) -> None:
        """Take over `fd`, and choose the method unless `routine` gives it.

        Without a dtype keys and values are opaque bytes, and an array's keys u4. Raises UsageError
        if a dtype's size is not the map's, KernelError if no method (or not the given one) works;
        `fd` is then still the caller's.
        """
        self.fd = fd
        self.spec = spec
        numbered = spec.kind.numbered
        self.key = np.dtype("u4") if numbered else key or np.dtype(f"V{spec.key_size}")
        self.value = value or np.dtype(f"V{spec.value_size}")
        if not numbered:
            self._check_size("key", self.key, spec.key_size)
        self._check_size("value", self.value, spec.value_size)
        self._layout = EntryLayout.of(spec)
        self._indices = np.arange(0, dtype=np.uint32)
        for name, kind in _READERS.items():
            if routine in (None, name) and kind.supports(fd, spec):
                self.routine = name
                """How the map is read."""
                self._reader = kind(fd, spec)
                return
        raise KernelError(
            f"map {spec.name} ({spec.type.name}) cannot be read by {routine or 'any'}"
        )

    @classmethod
    def create(
        cls,
        spec: MapSpec,
        key: np.dtype[Any] | None = None,
        value: np.dtype[Any] | None = None,
        *,
        routine: ReadMethod | None = None,
    ) -> Self:
        """Make a new map. Raises OSError and the constructor's errors."""
        fd = map_create(spec)
        try:
            return cls(fd, spec, key, value, routine=routine)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the map; arrays read from it, and its view, stay valid."""
        self._reader.close()
        os.close(self.fd)

    def read(self, *, clear: bool = False) -> Entries:
        """Return all entries; `clear` removes them from the map (sets an array's to zero).

        Reading a queue or a stack always removes. Raises OSError if the kernel refuses before any
        entry was removed.
        """
        takes = clear or self.spec.kind.is_queue
        chunks: list[Chunk] = []
        try:
            for chunk in self._reader.read(clear):
                chunks.append(chunk)  # noqa: PERF402 - keeps what came before an error
        except OSError:
            if not takes or not any(len(values) for _, values in chunks):
                raise
        keys, values = chunks[0] if len(chunks) == 1 else _joined(chunks)
        if keys is not None and not takes and self._may_repeat():
            keys, values = _last_of_each(keys, values)
        return Entries(
            self._numbers(len(values)) if keys is None else keys.view(self.key),
            self._typed(values),
        )

    def first(self, most: int) -> Entries:
        """Return some `most` entries, or all if the map has fewer; the map keeps them.

        For the methods BATCH and ITERATE. Raises OSError if the kernel refuses.
        """
        keys, values = self._reader.first(most)
        if keys is not None:
            keys, values = _last_of_each(keys, values)
        return Entries(
            self._numbers(len(values)) if keys is None else keys.view(self.key),
            self._typed(values),
        )

    @property
    def left_out(self) -> int:
        """Records that had another size, and left it unread."""
        return self._reader.left_out

    def clear(self) -> None:
        """Empty the map without reading it (S1.18); an array's entries are set to zero.

        Raises OSError if the kernel refuses.
        """
        self._reader.erase()

    def view(self) -> Array:
        """The values of an mmapable array themselves, shape (max_entries,), writeable."""
        if not isinstance(self._reader, Mapping):
            raise UsageError(f"map {self.spec.name} is not mmapable")
        return self._typed(self._reader.values)

    def update(self, keys: ArrayLike | None, values: ArrayLike) -> None:
        """Store `values` under `keys`; shapes as in `Entries`. Queues and stacks ignore `keys`.

        Raises OSError with the number of stored entries if the kernel refuses (E2BIG: full).
        """
        packed = self._packed(values)
        if isinstance(self._reader, Mapping):
            self.view()[np.asarray(keys, self.key)] = packed.view(self.value)
            return
        if self.spec.kind.is_queue:
            for done, value in enumerate(packed):
                self._store(None, value.tobytes(), done)
            return
        names = _contiguous(keys, self.key).reshape(-1)
        if has_batch(self.fd, BpfCommand.MAP_UPDATE_BATCH):
            done, code = write_batch(self.fd, BpfCommand.MAP_UPDATE_BATCH, names, packed)
            if code:
                raise OSError(code, f"{os.strerror(code)} after {done} of {len(names)} entries")
            return
        for done, (name, value) in enumerate(zip(names, packed, strict=True)):
            self._store(name.tobytes(), value.tobytes(), done)

    def lookup(self, key: Any) -> Array | None:
        """Return the value under `key`, shape () or (possible CPUs,); None if there is none."""
        size = self._layout.values_size
        found = map_lookup(self.fd, _contiguous(key, self.key).tobytes(), size)
        if found is None:
            return None
        return self._typed(np.frombuffer(bytearray(found), self._layout.value_dtype, 1))[0, ...]

    def delete(self, key: Any) -> bool:
        """Delete an entry; returns False if the key is missing."""
        return map_delete(self.fd, _contiguous(key, self.key).tobytes())

    def discard(self, keys: ArrayLike) -> None:
        """Delete the entries under `keys`, shape (n,), of a hash or a trie; ignore missing keys.

        Raises OSError if the kernel refuses.
        """
        names = _contiguous(keys, self.key).reshape(-1)
        if has_batch(self.fd, BpfCommand.MAP_DELETE_BATCH):
            _, code = delete_batch(self.fd, names)
            if code:
                raise OSError(code, os.strerror(code))
            return
        for name in names:
            map_delete(self.fd, name.tobytes())

    def _check_size(self, what: str, dtype: np.dtype[Any], size: int) -> None:
        if dtype.itemsize != size:
            raise UsageError(
                f"map {self.spec.name}: its {what} is described with {dtype.itemsize} bytes, "
                f"but has {size}"
            )

    def _may_repeat(self) -> bool:
        """Whether a read can meet a key twice because the key moved meanwhile."""
        return (
            self.routine == ReadMethod.ITERATE
            or self.spec.kind.shape == Shape.LPM
            or (self.routine == ReadMethod.DRAIN and self.spec.kind.moves)
        )

    def _numbers(self, count: int) -> Array:
        if len(self._indices) < count:
            self._indices = np.arange(count, dtype=np.uint32)
            self._indices.flags.writeable = False
        return self._indices[:count]

    def _typed(self, values: Array) -> Array:
        """Return opaque values in the map's dtype, without the padding."""
        size = values.dtype.itemsize
        if size == self.value.itemsize:
            return values.view(self.value)
        return values.view(_padded(self.value, size))["value"]

    def _packed(self, values: ArrayLike) -> Array:
        """Return values as the kernel takes them, shape (n,) or (n, CPUs)."""
        given = _contiguous(values, self.value)
        if not self._layout.cpus:
            return given.reshape(-1)
        slots = np.zeros(
            (given.size // self._layout.cpus, self._layout.cpus),
            _padded(self.value, self._layout.value_size),
        )
        slots["value"] = given.reshape(slots.shape)
        return slots

    def _store(self, key: bytes | None, value: bytes, done: int) -> None:
        try:
            map_update(self.fd, key, value)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} after {done} entries") from None


def reduce_cpus(values: Array, operation: np.ufunc = np.add) -> Array:
    """Reduce per-CPU values, shape (n, CPUs), to one value an entry, shape (n,), of the same dtype.

    Structured dtypes are reduced field by field, so fields that overlap (unions, bit fields) come
    out wrong. Raises TypeError for a field that is no number (V16).
    """
    if values.dtype.names is None:
        return reduce(operation, (values[:, cpu] for cpu in range(values.shape[1])))
    total = np.zeros(values.shape[:1] + values.shape[2:], values.dtype)
    for name in values.dtype.names:
        total[name] = reduce_cpus(values[name], operation)
    return total


def _padded(dtype: np.dtype[Any], size: int) -> np.dtype[Any]:
    return np.dtype({"names": ["value"], "formats": [dtype], "itemsize": size})


def _contiguous(values: Any, dtype: np.dtype[Any]) -> Array:
    """`values` as a contiguous array of `dtype`; padding is zero, or as it came in that dtype."""
    if isinstance(values, np.void) and values.dtype == dtype:
        return np.frombuffer(values.tobytes(), dtype)
    given = np.asarray(values, dtype)
    if given is values:
        return np.ascontiguousarray(given)
    clean = np.zeros(given.shape, dtype)
    _assign(clean, given)
    return clean


def _assign(to: Array, given: Array) -> None:
    # A hash compares whole keys, padding too, and numpy copies it with a structure.
    if given.dtype.names is None:
        to[...] = given
        return
    for name in given.dtype.names:
        _assign(to[name], given[name])


def _joined(chunks: list[Chunk]) -> Chunk:
    keys = [key for key, _ in chunks if key is not None]
    values = np.concatenate([value for _, value in chunks])
    return np.concatenate(keys) if keys else None, values


def _last_of_each(keys: Array, values: Array) -> tuple[Array, Array]:
    """Drop the earlier of two entries with the same key; the order stays."""
    if not _repeats(keys):
        return keys, values
    last = {key: place for place, key in enumerate(keys.tolist())}
    kept = np.sort(np.fromiter(last.values(), np.intp, len(last)))
    return keys[kept], values[kept]


def _repeats(keys: Array) -> bool:
    """Whether two keys may be equal: always True if two are, rarely True if none are."""
    size = keys.dtype.itemsize
    words = np.zeros((len(keys), -(-size // 8) * 8), np.uint8)
    words[:, :size] = keys.view(np.uint8).reshape(len(keys), size)
    hashes = np.zeros(len(keys), np.uint64)
    for word in words.view(np.uint64).T:
        hashes = (hashes ^ word) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    return bool((hashes[1:] == hashes[:-1]).any())
