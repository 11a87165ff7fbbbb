"""Reading a map from user space: by mapping, batch system calls, or entry by entry.

`bpf.maps.drain` reads in the kernel. `bpf.maps.map` states the effects of concurrent writers.
"""

from __future__ import annotations

import ctypes as ct
import errno
import mmap
from collections.abc import Iterator
from itertools import islice

import numpy as np

from bpf.abi import LOCK, Batch, BpfCommand, Element, MapFlag
from bpf.arrays import Array
from bpf.maps.kinds import Shape
from bpf.maps.layout import EntryLayout, round_up
from bpf.syscall import MapSpec, call_errno, map_delete, map_lookup, map_update, refusal

Chunk = tuple[Array | None, Array]
"""Keys (None where entries are numbered) and values of n entries, as opaque bytes."""

_FIRST_ROOM = 4096
_SLACK = 64
"""Entries more than expected, so that the call that reads the last also finds the end, and a hash's
last bucket fits."""


class Reader:
    """Base of the methods, at work on one map."""

    left_out = 0
    """Entries that the method took out and could not yield: records of another size."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        self._fd = fd
        self._spec = spec
        self._layout = EntryLayout.of(spec)

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        """Whether the method works on this map; the trial leaves its contents alone."""
        raise NotImplementedError

    def read(self, clear: bool) -> Iterator[Chunk]:
        """Yield the map's entries; with `clear` a chunk has left the map when it is yielded."""
        raise NotImplementedError

    def first(self, most: int) -> Chunk:
        """Return some `most` entries, or all if the map has fewer; the map keeps them.

        Only `Batched` and `Iteration` can. Raises OSError.
        """
        raise NotImplementedError

    def erase(self) -> None:
        """Empty the map, without reading it if its kind allows that. Raises OSError if refused."""
        for _ in self.read(clear=True):
            pass

    def close(self) -> None:
        """Free the method's resources; the caller keeps the map's descriptor."""


class Mapping(Reader):
    """An mmapable array's memory."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        super().__init__(fd, spec)
        start = spec.offset or 0
        stride = round_up(spec.value_size, 8) if spec.offset is None else spec.value_size
        size = round_up(start + stride * spec.max_entries, mmap.PAGESIZE)
        self.values = np.frombuffer(mmap.mmap(fd, size), f"V{stride}", spec.max_entries, start)
        """Shape (max_entries,), each of a map with padding to 8 bytes; writes reach the kernel."""

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        if not spec.kind.mmap or not spec.flags & MapFlag.MMAPABLE:
            return False
        try:
            mmap.mmap(fd, mmap.PAGESIZE).close()
        except OSError:
            return False  # its values have a lock or a timer
        return True

    def read(self, clear: bool) -> Iterator[Chunk]:
        values = self.values.copy()
        if clear:
            self.erase()
        yield None, values

    def erase(self) -> None:
        self.values.view(np.uint8)[:] = 0

    def close(self) -> None:
        # The mapping, and with it the map, ends with the last array that shows it.
        del self.values


class Batched(Reader):
    """The batch system calls."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        super().__init__(fd, spec)
        whole = spec.kind.shape == Shape.ARRAY
        self._room = (spec.max_entries if whole else min(spec.max_entries, _FIRST_ROOM)) + _SLACK

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        clearing = spec.kind.clearing
        return (
            clearing is not None
            and has_batch(fd, BpfCommand.MAP_LOOKUP_BATCH)
            and has_batch(fd, clearing)
        )

    def read(self, clear: bool) -> Iterator[Chunk]:
        if not clear or self._spec.kind.shape == Shape.HASH:
            yield from self._look_up(clear)
            return
        for keys, values in self._look_up(False):
            yield from self._zero(values) if keys is None else self._delete(keys, values)

    def first(self, most: int) -> Chunk:
        self._room = min(self._spec.max_entries, most) + _SLACK
        return next(self._look_up(False))

    def erase(self) -> None:
        if self._spec.kind.shape == Shape.ARRAY:
            chunks = self._zero(np.zeros(self._spec.max_entries, self._layout.value_dtype))
        else:
            # Deleting by batch needs the keys, and iteration reads keys only: no value is copied.
            joined = b"".join(Iteration(self._fd, self._spec).keys())
            keys = np.frombuffer(joined, f"V{self._spec.key_size}")
            chunks = self._delete(keys, keys)
        for _ in chunks:
            pass

    def _look_up(self, delete: bool) -> Iterator[Chunk]:
        """Fill buffers from the map, a new one when the old has no room for the next bucket."""
        command = BpfCommand.MAP_LOOKUP_AND_DELETE_BATCH if delete else BpfCommand.MAP_LOOKUP_BATCH
        # The kernel keeps its place here: a bucket's number, or for tries and arrays a whole key.
        cursor = (ct.c_uint8 * max(8, self._spec.key_size))()
        batch = Batch(map_fd=self._fd, out_batch=ct.addressof(cursor))
        total = done = 0
        room = self._room
        keys, values = self._buffers(room)
        while True:
            batch.keys = keys.ctypes.data + done * keys.itemsize
            batch.values = values.ctypes.data + done * self._layout.values_size
            batch.count = asked = room - done
            code = call_errno(command, batch)
            # On errors before the start the kernel leaves `count` as it was.
            got = batch.count if code in (0, errno.ENOENT) or batch.count < asked else 0
            done += got
            if got:
                batch.in_batch = batch.out_batch
            if code in (0, errno.EINTR, errno.EAGAIN) and done < room:
                continue
            if done or code == errno.ENOENT:
                yield keys[:done] if self._layout.key_size else None, values[:done]
                total += done
            if code == errno.ENOENT:
                expected = min(total + total // 8, self._spec.max_entries)
                self._room = max(self._room, expected + _SLACK)
                return
            if code not in (0, errno.ENOSPC):
                raise refusal(command, code)
            room, done = room * 2, 0
            keys, values = self._buffers(room)

    def _buffers(self, room: int) -> tuple[Array, Array]:
        keys = np.empty(room, f"V{self._spec.key_size}")
        return keys, np.empty(room, self._layout.value_dtype)

    def _zero(self, values: Array) -> Iterator[Chunk]:
        indices = np.arange(len(values), dtype=np.uint32)
        zeros = np.zeros_like(values)
        done, code = write_batch(self._fd, BpfCommand.MAP_UPDATE_BATCH, indices, zeros)
        # Entries that were not set to zero stay in the map, for the next read.
        values[done:].view(np.uint8)[:] = 0
        yield None, values
        if code:
            raise refusal(BpfCommand.MAP_UPDATE_BATCH, code)

    def _delete(self, keys: Array, values: Array) -> Iterator[Chunk]:
        done, code = delete_batch(self._fd, keys)
        yield keys[:done], values[:done]
        if code:
            raise refusal(BpfCommand.MAP_DELETE_BATCH, code)


class Iteration(Reader):
    """One or more system calls for each entry: works wherever there are keys."""

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        return _next_key(fd, None, spec.key_size)[1] in (0, errno.ENOENT)

    def read(self, clear: bool) -> Iterator[Chunk]:
        found: list[tuple[bytes, bytes]] = []
        failure: OSError | None = None
        try:
            for entry in self._entries(clear):
                found.append(entry)  # noqa: PERF402 - keeps what came before an error
        except OSError as error:
            failure = error
        yield self._chunk(found)
        if failure:
            raise failure

    def first(self, most: int) -> Chunk:
        return self._chunk(list(islice(self._entries(clear=False), most)))

    def _chunk(self, found: list[tuple[bytes, bytes]]) -> Chunk:
        keys, values = (
            (b"".join(part) for part in zip(*found, strict=True)) if found else (b"", b"")
        )
        return (
            np.frombuffer(keys, f"V{self._spec.key_size}") if self._layout.key_size else None,
            np.frombuffer(bytearray(values), self._layout.value_dtype, len(found)),
        )

    def erase(self) -> None:
        for key in self.keys():
            self._take_out(key)

    def _entries(self, clear: bool) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys():
            if (value := map_lookup(self._fd, key, self._layout.values_size)) is not None:
                if clear:
                    self._take_out(key)
                yield key, value

    def _take_out(self, key: bytes) -> None:
        if self._spec.kind.shape == Shape.ARRAY:
            map_update(self._fd, key, bytes(self._layout.values_size))
        else:
            map_delete(self._fd, key)

    def keys(self) -> Iterator[bytes]:
        """Yield the keys; the caller may delete each before it asks for the next one."""
        following, code = _next_key(self._fd, None, self._spec.key_size)
        # The kernel starts over after a key that was deleted meanwhile; it must not do so for ever.
        for _ in range(4 * self._spec.max_entries):
            if code:
                break
            key = following
            # `key` must still exist at this call, for the same reason.
            following, code = _next_key(self._fd, key, self._spec.key_size)
            yield key
        if code not in (0, errno.ENOENT):
            raise refusal(BpfCommand.MAP_GET_NEXT_KEY, code)


class Pop(Reader):
    """One system call for each entry of a queue or a stack."""

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        return spec.kind.is_queue

    def read(self, clear: bool) -> Iterator[Chunk]:
        values = np.empty(self._spec.max_entries, f"V{self._spec.value_size}")
        element = Element(map_fd=self._fd, value=values.ctypes.data)
        code = done = 0
        while done < len(values):
            code = call_errno(BpfCommand.MAP_LOOKUP_AND_DELETE_ELEM, element)
            if code:
                break
            done += 1
            element.value += values.itemsize
        yield None, values[:done]
        if code not in (0, errno.ENOENT):
            raise refusal(BpfCommand.MAP_LOOKUP_AND_DELETE_ELEM, code)


def has_batch(fd: int, command: BpfCommand) -> bool:
    """Whether the kernel has this batch call for this map: a batch of no entries does nothing."""
    return call_errno(command, Batch(map_fd=fd)) == 0


def has_lock(fd: int) -> bool:
    """Whether the map's values have a spin lock: only those can be looked up under it."""
    batch = Batch(map_fd=fd, elem_flags=LOCK)
    return call_errno(BpfCommand.MAP_LOOKUP_BATCH, batch) == 0


def write_batch(
    fd: int, command: BpfCommand, keys: Array, values: Array | None = None
) -> tuple[int, int]:
    """Update or delete contiguous entries; returns how many were done, and the errno or 0."""
    batch = Batch(
        map_fd=fd,
        keys=keys.ctypes.data,
        values=0 if values is None else values.ctypes.data,
        count=len(keys),
    )
    code = call_errno(command, batch)
    # The kernel tells the count on errors after the start, and leaves it on those before.
    untouched = code and batch.count == len(keys)
    return 0 if untouched else batch.count, code


def delete_batch(fd: int, keys: Array) -> tuple[int, int]:
    """Delete the entries under contiguous keys, those that are still there; returns how many of the
    keys have left the map, and the errno or 0."""
    done = 0
    while done < len(keys):
        deleted, code = write_batch(fd, BpfCommand.MAP_DELETE_BATCH, keys[done:])
        done += deleted
        if code == errno.ENOENT:
            done += 1  # Deleted meanwhile by another.
        elif code:
            return done, code
    return done, 0


def _next_key(fd: int, key: bytes | None, key_size: int) -> tuple[bytes, int]:
    """Return the key after `key` (None: the first), and 0 or the errno (ENOENT: the end)."""
    given = None if key is None else ct.create_string_buffer(key, key_size)
    following = ct.create_string_buffer(max(key_size, 1))
    element = Element(
        map_fd=fd,
        key=0 if given is None else ct.addressof(given),
        value=ct.addressof(following),
    )
    code = call_errno(BpfCommand.MAP_GET_NEXT_KEY, element)
    return following.raw[:key_size], code
