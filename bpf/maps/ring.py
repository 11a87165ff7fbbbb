"""Consumers of ring buffers and of perf event arrays, with records of one size."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from bpf.abi import MapType
from bpf.arrays import Array
from bpf.errors import Closing, KernelError, UsageError
from bpf.machine import LIBC, checked, online_cpus, system_calls
from bpf.maps.layout import round_up
from bpf.maps.readers import Chunk, Reader
from bpf.syscall import MapSpec, map_update

_BUSY = 1 << 31
_DISCARDED = 1 << 30
_LENGTH = _DISCARDED - 1
_HEADER = 8


def record_room(size: int) -> int:
    """Return the bytes of the ring that a record of `size` bytes takes."""
    return round_up(_HEADER + size, 8)


class RingReader(Closing):
    """Reads one ring buffer; there may be only one reader of it. `fd` stays the caller's."""

    def __init__(self, fd: int, size_bytes: int, record: np.dtype[Any]) -> None:
        """Map the ring; `size_bytes` is its max_entries. Raises OSError if the kernel refuses."""
        self._record = record
        self._size = size_bytes
        self._stride = record_room(record.itemsize)
        page = mmap.PAGESIZE
        consumer = mmap.mmap(fd, page)
        producer = mmap.mmap(fd, page, prot=mmap.PROT_READ, offset=page)
        self._consumed = np.frombuffer(consumer, np.uint64, 1)
        self._produced = np.frombuffer(producer, np.uint64, 1)
        self._slot = np.dtype(
            {
                "names": ["header", "record"],
                "formats": ["u4", f"V{record.itemsize}"],
                "offsets": [0, _HEADER],
                "itemsize": self._stride,
            }
        )
        # poll, as epoll misses records that came without a wake-up.
        self._fd = os.dup(fd)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def _data(self) -> mmap.mmap:
        """Map the data, twice in a row. A process's resident memory has all pages of a mapping, so
        nobody keeps it."""
        page = mmap.PAGESIZE
        return mmap.mmap(self._fd, 2 * self._size, prot=mmap.PROT_READ, offset=2 * page)

    def close(self) -> None:
        """Stop waiting on the ring, and unmap its memory."""
        os.close(self._fd)
        del self._consumed, self._produced

    def read(self) -> Array:
        """Take out the finished records, oldest first: shape (n,), a copy; n may be 0.

        Stops at the first record that a program is still writing. Raises UsageError at a record of
        another size.
        """
        start = int(self._consumed[0])
        waiting = (int(self._produced[0]) - start) // self._stride
        if not waiting:
            return np.empty(0, self._record)
        at = start % self._size
        slots = np.frombuffer(self._data(), self._slot, waiting, at)
        headers = slots["header"].copy()
        busy = np.flatnonzero(headers & _BUSY)
        if len(busy):
            headers = headers[: busy[0]]
        if ((headers & _LENGTH) != self._record.itemsize).any():
            raise UsageError(
                f"a ring buffer has records of other than {self._record.itemsize} bytes",
                hint="write records of one type only",
            )
        records = slots["record"][: len(headers)]
        discarded = headers & _DISCARDED != 0
        taken = records[~discarded] if discarded.any() else records.copy()
        self._consumed[0] = start + len(headers) * self._stride
        return taken.view(self._record)

    def read_among_others(self) -> tuple[Array, int]:
        """Take out all finished records, as `read` does, except records of another size.

        Returns the records, and the number of those that are left out.
        """
        with contextlib.suppress(UsageError):
            return self.read(), 0
        at, end = int(self._consumed[0]), int(self._produced[0])
        data = np.frombuffer(self._data(), np.uint8)
        found: list[int] = []
        others = 0
        while at < end:
            place = at % self._size
            header = int(data[place : place + 4].view("u4")[0])
            if header & _BUSY:
                break
            if not header & _DISCARDED:
                fits = header & _LENGTH == self._record.itemsize
                others += not fits
                found += [place + _HEADER] if fits else []
            at += record_room(header & _LENGTH)
        places = np.add.outer(np.asarray(found, np.intp), np.arange(self._record.itemsize))
        taken = data[places].reshape(-1).view(self._record)
        self._consumed[0] = at
        return taken, others

    def skip(self) -> None:
        """Give up all records that are there: `read` stops for good at one of another size."""
        self._consumed[0] = self._produced[0]

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is in the ring; False if nothing came in time.

        A record written with BPF_RB_NO_WAKEUP does not end the wait, but counts at its end. A
        program may still be writing the record, and then `read` returns nothing yet.
        """
        return bool(self._poll.poll(timeout_s * 1000))


class Records(Reader):
    """Records of one size, which have left the ring buffer when they are yielded."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        super().__init__(fd, spec)
        self._ring = RingReader(fd, spec.max_entries, np.dtype(f"V{spec.value_size}"))

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        return spec.type is MapType.RINGBUF

    def read(self, clear: bool) -> Iterator[Chunk]:
        taken, others = self._ring.read_among_others()
        self.left_out += others
        yield None, taken

    def close(self) -> None:
        self._ring.close()


PAGES = 64
"""Pages of the ring of a CPU, a power of two."""
_SIZE = PAGES * mmap.PAGESIZE
_ATTRIBUTES = struct.pack("<IIQQQQQIIQ", 1, 64, 10, 1, 1 << 2 | 1 << 10, 0, 0, 1, 0, 0)
"""struct perf_event_attr: PERF_COUNT_SW_BPF_OUTPUT, each sample with its time and raw bytes."""
_ENABLE = 0x2400
_CLOEXEC = 8
_SAMPLE = 9
_PERF_HEADER = struct.Struct("<IHHQI")


class PerfRecords(Reader):
    """Records, in the order of their times. They have left the rings when they are yielded."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        """Make the rings of all online CPUs, and put them into the array. Raises KernelError."""
        super().__init__(fd, spec)
        self._rings: list[tuple[int, mmap.mmap]] = []
        call = system_calls().perf_event_open
        try:
            for cpu in online_cpus():
                event = checked(
                    LIBC.syscall(call, _ATTRIBUTES, -1, cpu, -1, _CLOEXEC), "perf_event"
                )
                self._rings.append((event, mmap.mmap(event, _SIZE + mmap.PAGESIZE)))
                fcntl.ioctl(event, _ENABLE)
                map_update(fd, struct.pack("<I", cpu), struct.pack("<I", event))
        except OSError as error:
            self.close()
            raise KernelError(f"map {spec.name} gets no reader: {error.strerror}") from None

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        return spec.type is MapType.PERF_EVENT_ARRAY

    def read(self, clear: bool) -> Iterator[Chunk]:
        size = self._spec.value_size
        # The kernel makes a sample's length, with the four bytes before it, a multiple of 8. Bytes
        # of the packet may follow the record.
        least = round_up(size + 4, 8) - 4
        found: list[tuple[int, bytes]] = []
        for _, ring in self._rings:
            for time, sample in _samples(ring):
                if len(sample) >= least:
                    found.append((time, sample[:size]))
                else:
                    self.left_out += 1
        found.sort(key=lambda each: each[0])
        yield None, np.frombuffer(b"".join(sample for _, sample in found), f"V{size}")

    def close(self) -> None:
        for event, ring in self._rings:
            ring.close()
            os.close(event)


def _samples(ring: mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """Yield time and bytes of the samples of a ring, and then free their place."""
    head, at = struct.unpack_from("<QQ", ring, 1024)
    data = ring[mmap.PAGESIZE :] * 2
    while at < head:
        place = at % _SIZE
        kind, _, length, time, size = _PERF_HEADER.unpack_from(data, place)
        if kind == _SAMPLE:
            begin = place + _PERF_HEADER.size
            yield time, data[begin : begin + size]
        at += length
    struct.pack_into("<Q", ring, 1032, at)
