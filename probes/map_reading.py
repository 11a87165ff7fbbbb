"""Readings of a probe's maps for people: bounded, without a change of the maps.

A probe lends descriptors of its maps under its lock. The reading itself holds no lock, so it delays
no window. A map of an exported metric is not read: the tables of the last window have its rows.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpf.abi import MapType
from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.errors import KernelError, ProbedeckError
from bpf.maps.kinds import Shape, fields
from bpf.maps.layout import EntryLayout
from bpf.maps.map import Entries, Map, ReadMethod
from bpf.maps.readers import Iteration
from bpf.programs.program import Program, sized
from bpf.syscall import MapSpec
from probes.reports import MapReading, MapReadings
from probes.snapshot import Snapshot
from probes.tables.conversion import TableSchema, columns, flat_rows, schema_of
from probes.tables.map_layout import rows_of

if TYPE_CHECKING:
    from probes.config.model import Side

MOST_ENTRIES = 10_000
"""Entries that are read of a map."""
_MOST_BYTES = 4 << 20
"""Bytes that are read of a map."""
_LARGEST_ENTRY = 64 << 10
"""Bytes of an entry, with the values of all CPUs. A larger entry is not read: it is a table."""
_MOST_COLUMNS = 32
_NOTES = {
    Shape.QUEUE: "reading would take its entries out",
    Shape.STACK: "reading would take its entries out",
}


@dataclass(frozen=True, slots=True)
class LentMap:
    """A map that a probe lends for a reading. The borrower closes the descriptor."""

    side: Side
    declared: CompiledMap
    """Its descriptors are closed."""
    fd: int
    is_internal: bool
    """Whether its values are a probe's own affair."""
    types: Mapping[str, str]
    """Configured types of its fields."""
    tables: tuple[Snapshot, ...]
    """Exported tables of the last window."""
    metrics: tuple[str, ...]
    cleared: bool
    """Whether an export empties it."""


def lend(
    side: Side,
    program: Program,
    internal: Container[str] = (),
    *,
    types: Mapping[str, Mapping[str, str]] = {},
    tables: Mapping[str, Sequence[Snapshot]] = {},
    metrics: Mapping[str, Sequence[str]] = {},
    cleared: Container[str] = (),
) -> Iterator[LentMap]:
    """Yield the maps of a program, with descriptors of their own. The arguments are by map."""
    for name, declared in program.declared.items():
        if declared.is_constant:
            continue
        yield LentMap(
            side, declared, os.dup(program.map_fd(name)), name in internal, types.get(name, {}),
            tuple(tables.get(name, ())), tuple(metrics.get(name, ())), name in cleared,
        )  # fmt: skip


def read_maps(
    probe: str, generation: int, tables: Sequence[Snapshot], lent: Iterable[LentMap], most: int
) -> MapReadings:
    """Read lent maps, at most `most` rows of each, and close them."""
    last = next(iter(tables), None)
    at_ns, readings, left = time.monotonic_ns(), [], list(lent)
    try:
        while left:
            with _closing(left.pop(0)) as one:
                readings.append(_read(one, most))
    finally:
        for each in left:
            os.close(each.fd)
    window, seconds = (last.window, last.seconds) if last else (0, 0.0)
    readings.sort(key=lambda one: (one.side != "ingress", not one.rows, not one.line, one.line))
    return MapReadings(probe, generation, window, seconds, at_ns, tuple(readings))


@contextlib.contextmanager
def _closing(lent: LentMap) -> Iterator[LentMap]:
    try:
        yield lent
    finally:
        os.close(lent.fd)


def _read(lent: LentMap, most: int) -> MapReading:
    about = fields(Path(f"/proc/self/fdinfo/{lent.fd}").read_text(encoding="ascii"))
    spec = sized(lent.declared.spec, int(about["max_entries"]))
    entries, at_least, fill = None, False, None
    schema: TableSchema | None = None
    rows: Array | None = None
    note = ""
    if lent.tables:
        table = lent.tables[0]
        schema, rows = table.schema, table.rows
        if spec.kind.shape != Shape.ARRAY:
            entries, fill = len(rows), table.occupancy
    else:
        try:
            found, entries, at_least, note = _contents(lent, spec)
            if found is not None:
                schema = schema_of(lent.declared, lent.types)
                rows = _summed(found, percpu=spec.kind.percpu)
            if lent.cleared and not note:
                note = "no window has ended yet: this is the window so far"
        except (OSError, ProbedeckError) as error:
            note = f"it cannot be read: {error}"
    if fill is None and entries is not None and not at_least:
        fill = min(1.0, entries / spec.max_entries)
    names: tuple[str, ...] = ()
    cells: tuple[tuple[Any, ...], ...] = ()
    if schema is not None and rows is not None:
        names = columns(schema, rows.dtype)[:_MOST_COLUMNS]
        if len(rows) > most:
            note = f"the {most} largest of {len(rows)} entries"
        utc_ns = time.time_ns() - time.monotonic_ns()
        shown = flat_rows(schema, _largest(rows, spec, most), utc_ns)
        cells = tuple(row[:_MOST_COLUMNS] for row in islice(shown, most))
    return MapReading(
        lent.side, spec.name, spec.kind.name, str(schema.kind) if schema else "", spec.max_entries,
        entries, at_least, fill, int(about.get("memlock", 0)), lent.declared.line, lent.metrics,
        lent.cleared, names, cells, note,
    )  # fmt: skip


def _contents(lent: LentMap, spec: MapSpec) -> tuple[Entries | None, int | None, bool, str]:
    """Return entries, the number of entries in use, whether there are more, and a note."""
    shape, size = spec.kind.shape, EntryLayout.of(spec).values_size + spec.key_size
    most = max(1, min(MOST_ENTRIES, _MOST_BYTES // max(1, size)))
    if spec.type is MapType.RINGBUF:
        return None, _waiting(lent.fd, spec.max_entries), False, ""
    if spec.type is MapType.STACK_TRACE:
        count = sum(1 for _ in islice(Iteration(lent.fd, spec).keys(), most))
        return None, count, count == most < spec.max_entries, ""
    if lent.is_internal and shape in (Shape.HASH, Shape.LPM):
        with _opened(lent, spec) as opened:
            count = len(opened.first(most))
        return None, count, most <= count < spec.max_entries, ""
    if lent.is_internal or shape is None or shape in _NOTES:
        return None, None, False, _NOTES.get(shape, "") if shape else ""
    if lent.declared.unreadable:
        return None, None, False, lent.declared.unreadable
    if size > _LARGEST_ENTRY:
        return None, None, False, f"an entry has {size} bytes, too many to show"
    with _opened(lent, spec) as opened:
        found = opened.first(most)
    more = len(found) >= most and most < spec.max_entries
    note = f"of {spec.max_entries} entries about {len(found)} are read" if more else ""
    if shape == Shape.ARRAY:
        return found, None, more, note
    return found, len(found), more, note


def _opened(lent: LentMap, spec: MapSpec) -> Map:
    """Open a map by a method that can stop early."""
    key, value = lent.declared.key, lent.declared.value
    fd = os.dup(lent.fd)
    try:
        with contextlib.suppress(KernelError):
            return Map(fd, spec, key, value, routine=ReadMethod.BATCH)
        return Map(fd, spec, key, value, routine=ReadMethod.ITERATE)
    except BaseException:
        os.close(fd)
        raise


def _waiting(fd: int, size: int) -> int:
    """Return the bytes of a ring buffer that nobody has read."""
    page = mmap.PAGESIZE
    with (
        mmap.mmap(fd, page, prot=mmap.PROT_READ) as consumer,
        mmap.mmap(fd, page, prot=mmap.PROT_READ, offset=page) as producer,
    ):
        consumed = int.from_bytes(consumer[:8], "little")
        return min(size, int.from_bytes(producer[:8], "little") - consumed)


def _summed(found: Entries, *, percpu: bool) -> Array:
    """Return the rows; a value for each CPU if a field is no number."""
    if percpu:
        with contextlib.suppress(TypeError):
            return rows_of(found, "sum")
    return rows_of(found, "")


def _largest(rows: Array, spec: MapSpec, most: int) -> Array:
    """Return at most `most` rows: those of the largest values, an array's by index."""
    is_array = spec.kind.shape == Shape.ARRAY
    if is_array and len(rows) <= most:
        return rows
    weight = _weight(rows["value"])
    if weight is None:
        return rows[:most]
    chosen = np.argsort(weight, kind="stable")[::-1][:most]
    return rows[np.sort(chosen) if is_array else chosen]


def _weight(values: Array) -> Array | None:
    """Return the first number of each value, summed over its elements; None without a number."""
    names = values.dtype.names
    if names is not None:
        weights = (_weight(values[name]) for name in names)
        return next((weight for weight in weights if weight is not None), None)
    if values.dtype.kind not in "iuf":
        return None
    return values.reshape(len(values), -1).sum(axis=1) if len(values) else values.reshape(-1)
