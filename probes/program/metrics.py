"""The metrics exporter: from the maps of a program to the tables of a window (Algorithms 2 and 3).

The load of a program decides which maps are read and how; `bpf.maps.map` chooses the system calls.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bpf.abi import MapFlag, MapType
from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.errors import ProbedeckError, UsageError
from bpf.maps.kinds import Shape
from bpf.maps.map import Entries, Map, ReadMethod
from bpf.maps.ring import record_room
from bpf.programs.program import create_like, sized
from bpf.syscall import MapSpec
from probes.config.map_config import Metric
from probes.tables.conversion import TableSchema
from probes.tables.map_layout import rows_of


@dataclass(frozen=True, slots=True)
class MetricRows:
    """The rows of one metric in a window."""

    metric: Metric
    schema: TableSchema
    rows: Array
    """Dtype `[("key", K), ("value", V)]`; V has a dimension for CPUs unless it is aggregated."""
    occupancy: float
    """Share of the map that is full, 0 to 1; 0 for perf events, and for arrays: always full."""
    left_out: int = 0
    """Records that had another size."""


@dataclass(frozen=True, slots=True)
class MetricMap:
    """A map with metrics. Two metrics may aggregate one map differently."""

    declared: CompiledMap
    metrics: Sequence[tuple[Metric, TableSchema]]
    expiry: tuple[str, float] | None = None
    """Field and greatest age of entries, in seconds; None if they do not expire."""

    @property
    def name(self) -> str:
        return self.declared.spec.name

    @property
    def map_name(self) -> str:
        """Name of the map; of a global variable its section's."""
        return self.declared.section or self.name

    @property
    def private(self) -> bool:
        """Whether each clone of the program has a copy (S1.14).

        Perf events belong to one reader, and so to one clone.
        """
        return self.declared.spec.type is MapType.PERF_EVENT_ARRAY or any(
            metric.snapshot for metric, _ in self.metrics
        )

    def open(self, fd: int) -> Map:
        """Open a map of this declaration, see `open_map`.

        A map whose entries expire is read by batches: programs that delete entries would hide
        others from a drain, and a batch locks each bucket.
        """
        routine = ReadMethod.MMAP if self.declared.section else None
        return open_map(self.declared, fd, ReadMethod.BATCH if self.expiry else routine)

    def read(self, source: Map, end_ns: int) -> list[MetricRows]:
        """Read the tables of the window that ended at `end_ns`; empty or sweep the map if asked to.

        A sweep also removes an entry that a packet renews after the read. Raises ProbedeckError,
        which names the map, if the kernel refuses.
        """
        clears = self.private or any(metric.init for metric, _ in self.metrics)
        exported = [(metric, schema) for metric, schema in self.metrics if metric.export]
        try:
            if not exported and not self.expiry:
                source.clear()  # S1.18
                return []
            before = source.left_out
            entries = source.read(clear=clears)
            if self.expiry:
                source.discard(entries.keys[_expired(entries, *self.expiry, end_ns)])
        except OSError as error:
            raise ProbedeckError(f"map {self.name} cannot be read: {error.strerror}") from None
        full = len(entries) / _room(source.spec)
        left_out = source.left_out - before
        return [
            MetricRows(metric, schema, rows_of(entries, metric.agg), full, left_out)
            for metric, schema in exported
        ]


def _room(spec: MapSpec) -> float:
    """Return the entries of a full map, or the records of a full ring buffer."""
    if spec.type is MapType.RINGBUF:
        return spec.max_entries // record_room(spec.value_size)
    always = spec.kind.shape == Shape.ARRAY or spec.type is MapType.PERF_EVENT_ARRAY
    return math.inf if always else spec.max_entries


def _expired(entries: Entries, field: str, seconds: float, end_ns: int) -> Array:
    """Return which entries are too old at `end_ns`, shape (n,)."""
    part, *names = field.split(".")
    times = entries.keys if part == "key" else entries.values
    for name in names:
        times = times[name]
    return times < max(0, end_ns - round(seconds * 1e9))


def open_map(
    declared: CompiledMap,
    fd: int,
    routine: ReadMethod | None = None,
    *,
    entries: int | None = None,
) -> Map:
    """Return the map behind `fd`, with the layout of its declaration.

    The caller still owns `fd`. `entries` is the map's number of entries; None: as declared. Raises
    UsageError for an unreadable layout, KernelError if no read method works.
    """
    spec = sized(made_spec(declared), entries)
    if spec.kind.records and declared.value:
        spec = replace(spec, value_size=declared.value.itemsize)
    if declared.unreadable:
        raise UsageError(f"map {spec.name} cannot be read: {declared.unreadable}")
    own = os.dup(fd)
    try:
        return Map(own, spec, declared.key, declared.value, routine=routine)
    except BaseException:
        os.close(own)
        raise


def made_spec(declared: CompiledMap) -> MapSpec:
    """Return the declared spec; arrays also get the flag for mmap."""
    return replace(declared.spec, flags=declared.spec.flags | _more_flags(declared))


def make_map(declared: CompiledMap) -> int:
    """Return a descriptor: of a new map, or for maps of maps and constants of the compiled one."""
    if declared.spec.kind.nested or declared.is_constant:
        return os.dup(declared.fd)
    return create_like(declared, _more_flags(declared))


def _more_flags(declared: CompiledMap) -> int:
    return MapFlag.MMAPABLE if declared.spec.kind.mmap else 0
