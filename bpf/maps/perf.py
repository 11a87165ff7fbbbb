"""Consumer of a perf event array: a ring for each CPU, which a program fills by perf_submit().

A ring is the memory of a software event of perf_event_open(2). Its records have a header {u32 type,
u16, u16 size}, and samples then {u64 time, u32 length, bytes}. The array holds the events as long
as a descriptor of it is open.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np

from bpf.abi import MapType
from bpf.errors import KernelError
from bpf.machine import LIBC, checked, online_cpus, system_calls
from bpf.maps.layout import round_up
from bpf.maps.readers import Chunk, Reader
from bpf.syscall import MapSpec, map_update

PAGES = 64
"""Pages of the ring of a CPU, a power of two."""
_SIZE = PAGES * mmap.PAGESIZE
_ATTRIBUTES = struct.pack("<IIQQQQQIIQ", 1, 64, 10, 1, 1 << 2 | 1 << 10, 0, 0, 1, 0, 0)
"""struct perf_event_attr: PERF_COUNT_SW_BPF_OUTPUT, each sample with its time and raw bytes."""
_ENABLE = 0x2400
_CLOEXEC = 8
_SAMPLE = 9
_HEADER = struct.Struct("<IHHQI")


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
        kind, _, length, time, size = _HEADER.unpack_from(data, place)
        if kind == _SAMPLE:
            begin = place + _HEADER.size
            yield time, data[begin : begin + size]
        at += length
    struct.pack_into("<Q", ring, 1032, at)
