"""Totals by interface, in a run on several interfaces."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np

from bpf.abi import MapFlag, MapType
from bpf.arrays import Array, Rows
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.programs.program import make_map
from bpf.syscall import MapSpec
from probes.filter.table import Coded
from probes.flow.clock import FlowClock
from probes.flow.records import BINS, FLOW, NAME, FlowDirection, TableSizes
from probes.snapshot import Peak

INTERFACE = np.dtype([
    ("interface", NAME), ("in_packets", "u8"), ("in_bytes", "u8"), ("out_packets", "u8"),
    ("out_bytes", "u8"), ("repeated_in_packets", "u8"), ("repeated_in_bytes", "u8"),
    ("repeated_out_packets", "u8"), ("repeated_out_bytes", "u8"),
])  # fmt: skip
"""Packets of an interface in a window, of flows, also of those that the CPU budget cuts. Counted
ones are in `in` and `out`; the sums with `repeated` are the interface's own counters."""
_ODD = 0x9E3779B97F4A7C15
_WAYS = {FlowDirection.INGRESS: "in", FlowDirection.EGRESS: "out"}


def names_of(rows: Array) -> Coded:
    """Return the names of the interfaces of rows (n,) with the fields of dtype FLOW."""
    words = (
        np.ascontiguousarray(rows["interface"]).view("u8").reshape(len(rows), NAME.itemsize // 8)
    )
    # Two words: a sort of the names themselves takes ten times as long.
    _, first, of = np.unique(
        words[:, 0] ^ words[:, 1] * np.uint64(_ODD), return_index=True, return_inverse=True
    )
    return Coded(of, [name.decode(errors="replace") for name in rows["interface"][first].tolist()])


def totals(flows: Rows[FLOW], repeated: Rows[FLOW]) -> Rows[INTERFACE]:
    """Return the totals of a window, by name."""
    both = np.concatenate([flows["interface"], repeated["interface"]])
    names, of = np.unique(both, return_inverse=True)
    found = np.zeros(len(names), INTERFACE)
    found["interface"] = names
    for rows, places, prefix in (
        (flows, of[: len(flows)], ""),
        (repeated, of[len(flows) :], "repeated_"),
    ):
        for way, word in _WAYS.items():
            mine = rows["direction"] == way
            for unit in ("packets", "bytes"):
                sums = _sums(places[mine], rows[unit][mine], len(names))
                found[f"{prefix}{word}_{unit}"] = sums
    return found


def _sums(places: Array, values: Array, count: int) -> Array:
    """Exact sums (count,) of values (n,), which numpy.bincount would make floats."""
    sums = np.zeros(count, "u8")
    np.add.at(sums, places, values)
    return sums


_MORE = 3
"""Bins before those of a window: the one that has begun, the one to which a packet was just adding,
and its neighbour."""
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
