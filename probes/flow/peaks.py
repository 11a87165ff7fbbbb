"""Peaks of traffic: the most bytes of an interface within some 8 ms, from flow.c's bins.

A bin has the bytes of some 4 ms. Two neighbours are added, so a burst that is shorter than a bin
counts whole, wherever it begins.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np

from bpf.abi import MapFlag, MapType
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.programs.program import make_map
from bpf.syscall import MapSpec
from probes.flow.clock import FlowClock
from probes.flow.records import BINS, FlowDirection, TableSizes
from probes.snapshot import Peak

_MORE = 3
"""Bins before those of a window: a begun one, one to which a packet was just adding, and the
neighbour of that."""
_NUMBER_SHIFT = np.uint64(32)
_BYTES = np.uint64((1 << 32) - 1)


class Peaks:
    """The bins of all interfaces of a probe; no swap changes them."""

    def __init__(self, clock: FlowClock, sizes: TableSizes) -> None:
        """Raises KernelError if memory is short."""
        size = sizes.bins
        self.fd = make_map(MapSpec("bins", MapType.ARRAY, 4, 8, size // 8, MapFlag.MMAPABLE))
        bins = np.frombuffer(mmap.mmap(self.fd, size), "u8")
        self._bins = bins.reshape(-1, len(FlowDirection), sizes.interfaces, BINS)
        self._clock = clock

    def of(self, interface: Interface, start_ns: int, end_ns: int) -> Iterator[Peak]:
        """Yield the peaks of a window that ends now; none if it is longer than the ring of bins."""
        count = (end_ns - start_ns) // self._clock.bin_ns + _MORE
        if count >= BINS:
            return
        back = np.arange(count, -1, -1)
        numbers = (self._clock.bin_at(end_ns) - back) % (1 << 32 - self._clock.bin_shift)
        words = self._bins[..., numbers % BINS]
        is_of = words >> _NUMBER_SHIFT == numbers.astype("u8")
        sums = np.where(is_of, words & _BYTES, np.uint64(0)).sum(axis=0)
        most = (sums[..., 1:] + sums[..., :-1]).max(axis=-1)
        for direction, number in np.argwhere(most).tolist():
            name, size = interface.name, int(most[direction, number])
            if isinstance(interface, InterfaceGroup):
                name = interface.name_of(number)
                direction ^= interface.inside[number]
            side = FlowDirection(direction).name.lower()
            yield Peak(name, side, size, 2 * self._clock.bin_ns)

    def close(self) -> None:
        del self._bins
        os.close(self.fd)
