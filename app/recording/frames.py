"""Frames of a recording: an entry of 32 bytes, and a payload under zstd.

The payload of a window is a number of sections, their sizes (4 bytes each, little-endian), and the
sections under zstd. Together they are the size of a header, the header (a JSON object with the
fields of the snapshot that change), and the columns as byte planes: first byte 0 of every row, then
byte 1, and so on. Most flows were in the window before, so a row has the place of its flow there
instead of addresses and ports. No part is ever executed.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from app.api import wire
from app.outputs.views import VIEWS
from bpf.arrays import Array
from bpf.errors import ProbedeckError
from probes.snapshot import Snapshot

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

MAGIC = b"\x89PDREC1\n"
"""First bytes of a segment."""
ENTRY = np.dtype([
    ("utc_ns", "<u8"), ("offset", "<u4"), ("size", "<u4"), ("rows", "<u4"), ("kind", "u1"),
    ("flags", "u1"), ("table", "<u2"), ("crc", "<u4"), ("check", "<u4"),
])  # fmt: skip
"""An entry of the index, and the head of its frame. `offset` is its place in the segment, `size`
the bytes of the payload behind it, `crc` the CRC-32 of the payload, `check` the CRC-32 of the
entry's other 28 bytes. `utc_ns` is the end of a window, or the time of an event."""
_FIELDS = Struct("<QIIIBBHI")
_CHECK = Struct("<I")
STATIC = {"probe", "interface", "side", "metric", "schema", "hooks"}
"""Fields of a snapshot that change seldom: they stand in the frame of its table."""
_CHANGING = {name for name in wire.NAMES if name not in STATIC}
_IDENTITY = frozenset({
    "source", "destination", "source_port", "destination_port", "protocol", "version", "vlan",
    "tunnel", "tunnel_id", "direction", "interface", "hop", "responder", "labels", "near", "far",
    "near_port", "far_port", "cookie", "inode", "cgroup", "netns", "owner", "by", "holders",
    "qdisc", "number", "tgid", "start_ns", "uid", "user", "comm", "unit", "container", "pod",
    "policy",
})  # fmt: skip
"""Fields that name the thing of a row."""
_FACTORS = np.frombuffer(os.urandom(8 << 10), "u8") | np.uint64(1)
REFERS = 1
"""Flag of a window: rows with a row of the same identity in the window before name its place."""
ALONE_EVERY = 16
"""Windows of a table from one that stands alone to the next."""
_SPLIT_FROM = 16 << 10
"""Bytes from which each column is compressed alone: its bytes are alike, but not the columns."""
_MAX_SECTIONS = 1024
_LEVEL = 3
MAX_PAYLOAD = 512 << 20
_MAX_HEADER = 1 << 20
"""Bytes, uncompressed."""


class DamageError(ProbedeckError):
    """Bytes that no recording can have."""


class FrameKind(IntEnum):
    """Kinds of frames. A reader skips the kinds that it does not know."""

    HEAD = 1
    """First frame of a segment: versions, host and stream."""
    TABLE = 2
    """Description of a table, before its first window in the segment."""
    WINDOW = 3
    EVENT = 4
    STATE = 5
    """A part of the controller's state, when it has changed; `table` is the part."""
    GAP = 6
    """Items of a table that are missing before this frame: a Gap, as JSON."""


class Entry(NamedTuple):
    """An ENTRY as Python's values."""

    utc_ns: int
    offset: int
    size: int
    rows: int
    kind: int
    flags: int
    table: int
    crc: int

    @property
    def end(self) -> int:
        return self.offset + ENTRY.itemsize + self.size

    def pack(self) -> bytes:
        fields = _FIELDS.pack(*self)
        return fields + _CHECK.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """Raises DamageError."""
        fields = raw[: _FIELDS.size]
        if len(raw) != ENTRY.itemsize or _CHECK.unpack(raw[_FIELDS.size :])[0] != zlib.crc32(
            fields
        ):
            raise DamageError("an entry has a wrong checksum")
        return cls(*_FIELDS.unpack(fields))


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A table of a segment: the fields that its windows share."""

    fields: bytes
    """JSON object of the STATIC fields."""
    dtype: np.dtype[Any]
    name: tuple[str, str]
    """Probe, and metric or table."""

    @classmethod
    def parse(cls, payload: bytes) -> RecordedTable:
        """Raises DamageError."""
        try:
            found = json.loads(inflated(payload, _MAX_HEADER))
            dtype = wire.restore(found["dtype"])
            if not dtype.itemsize:
                raise ValueError("rows without bytes")
            fields = json.dumps({name: found[name] for name in STATIC}).encode()
            return cls(fields, dtype, (str(found["probe"]), str(found["metric"])))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise DamageError(f"the description of a table is unreadable: {error}") from None


def table_frame(item: Snapshot) -> bytes:
    """Return the payload that describes the table of a snapshot, with the meanings of columns."""
    views = [view for view in VIEWS.values() if view.takes(item) and view.probe and not view.make]
    columns = {column.name: column.meaning for view in views for column in view.columns}
    found = wire.fields_of(item, STATIC)
    return deflated(
        json.dumps({**found, "dtype": wire.describe(item.rows.dtype), "columns": columns}).encode()
    )


def window_frame(item: Snapshot, last: Array | None) -> tuple[bytes, int]:
    """Return the payload of a window, and its flags.

    `last` are the rows of the table's window before it in the segment; None: the frame stands
    alone.
    """
    header = json.dumps(wire.fields_of(item, _CHANGING)).encode()
    data, layout = _bytes_of(item.rows), layout_of(item.rows.dtype)
    flags, parts = 0, [_CHECK.pack(len(header)) + header]
    fresh = data
    if last is not None and layout.identity:
        places = _places(data, _bytes_of(last), layout)
        new = places < 0
        known = places[~new].astype("i4")
        steps = np.diff(known, prepend=np.int32(-1)) - 1
        # Small numbers of either sign become small numbers.
        steps = (steps << 1) ^ (steps >> 31)
        flags, fresh = REFERS, data[new]
        parts.append(new.tobytes() + _planes(steps.astype("<i4")[:, None].view("u1")))
    parts += [_planes(fresh[:, begin:end]) for begin, end in layout.identity]
    parts += [_planes(data[:, begin:end]) for begin, end in layout.values]
    if sum(map(len, parts)) < _SPLIT_FROM:
        parts = [b"".join(parts)]
    sections = [deflated(part) for part in parts]
    sizes = np.array([len(sections), *map(len, sections)], "<u4")
    return sizes.tobytes() + b"".join(sections), flags


def window_of(entry: Entry, payload: bytes, table: RecordedTable, last: Array | None) -> Snapshot:
    """Return the snapshot of a window's frame; `last` as in `window_frame`. Raises DamageError."""
    count, layout = entry.rows, layout_of(table.dtype)
    if count * table.dtype.itemsize > MAX_PAYLOAD:
        raise DamageError(f"a window of {count} rows is too large")
    text = _joined(payload, count * (table.dtype.itemsize + 5) + _MAX_HEADER)
    at = 4 + (_CHECK.unpack(text[:4])[0] if len(text) >= 4 else len(text))
    header = text[5:at]
    rows = np.empty(count, table.dtype)
    data = _bytes_of(rows)

    def take(shape: tuple[int, int]) -> Array:
        """Return the next planes as rows of bytes."""
        nonlocal at
        size = shape[0] * shape[1]
        if at + size > len(text):
            raise DamageError("a window has not as many bytes as its entry says")
        at += size
        return np.frombuffer(text, "u1", size, at - size).reshape(shape[1], shape[0]).T

    fresh = np.arange(count)
    if entry.flags & REFERS:
        new = take((count, 1)).ravel() != 0
        fresh, old = np.flatnonzero(new), np.flatnonzero(~new)
        steps = np.ascontiguousarray(take((len(old), 4))).view("<i4").ravel()
        steps = ((steps >> 1) & 0x7FFFFFFF) ^ -(steps & 1)
        known = np.cumsum(steps.astype("i8") + 1) - 1
        if last is None or (len(known) and not 0 <= known.min() <= known.max() < len(last)):
            raise DamageError("a window refers to rows that are missing")
        # Whole rows are one copy; their values follow.
        data[old] = _bytes_of(last).take(known, axis=0)
    every: Array | slice = slice(None)
    for part, size, places in ((layout.identity, len(fresh), fresh), (layout.values, count, every)):
        found, of = take((size, _width(part))), 0
        for begin, end in _joined_places(part):
            data[places, begin:end] = found[:, of : of + end - begin]
            of += end - begin
    if at != len(text):
        raise DamageError("a window has more bytes than its entry says")
    try:
        # Two JSON objects become one.
        return wire.snapshot_of(table.fields[:-1] + b"," + header, rows)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise DamageError("a window has a header that this version can't read") from None


class RowLayout(NamedTuple):
    """Places of the bytes of a row, as pairs of begin and end."""

    identity: tuple[tuple[int, int], ...]
    """Bytes that name the thing of a row: in the next window they are the same."""
    values: tuple[tuple[int, int], ...]


@lru_cache(256)
def layout_of(dtype: np.dtype[Any]) -> RowLayout:
    """Return the layout of a dtype. Bytes between fields are values."""
    fields: Mapping[str, Any] = dtype.fields or {}
    named = sorted((fields[name][1], name) for name in dtype.names or () if name in _IDENTITY)
    identity = [(at, at + fields[name][0].itemsize) for at, name in named]
    if any(end > begin for (_, end), (begin, _) in pairwise(identity)):
        identity = []  # fields that overlap
    cuts = {0, dtype.itemsize}
    for name in dtype.names or ():
        cuts |= {fields[name][1], fields[name][1] + fields[name][0].itemsize}
    inside = {at for begin, end in identity for at in range(begin, end)}
    values = [each for each in pairwise(sorted(cuts)) if each[0] not in inside]
    return RowLayout(tuple(identity), tuple(values))


def _width(places: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in places)


@lru_cache(256)
def _joined_places(places: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Join places that adjoin."""
    found: list[tuple[int, int]] = []
    for begin, end in places:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return tuple(found)


def _columns(data: Array, places: tuple[tuple[int, int], ...]) -> Array:
    """Return the bytes at some places of each row, (n, bytes of all places)."""
    parts = [data[:, begin:end] for begin, end in _joined_places(places)]
    return np.concatenate(parts, axis=1)


def _places(data: Array, before: Array, layout: RowLayout) -> Array:
    """Return the place (n,) of each row of `data` in `before` by its identity; -1 if it is new."""
    if not len(before):
        return np.full(len(data), -1)
    words = -(-_width(layout.identity) // 8)
    keys, known = np.zeros((len(data), words), "u8"), np.zeros((len(before), words), "u8")
    for words_of, rows in ((keys, data), (known, before)):
        columns = _columns(rows, layout.identity)
        words_of.view("u1")[:, : columns.shape[1]] = columns
    ids, known_ids = (each @ _FACTORS[:words] for each in (keys, known))
    order = np.argsort(known_ids)
    at = np.minimum(np.searchsorted(known_ids[order], ids), len(known) - 1)
    places: Array = order[at]
    # Rows of equal ids may differ.
    places[(keys != known[places]).any(axis=1)] = -1
    return places


def _bytes_of(rows: Array) -> Array:
    """Return the memory of rows (n,), (n, bytes of a row), copied if needed."""
    return np.ascontiguousarray(rows).view("u1").reshape(len(rows), rows.dtype.itemsize)


def _joined(payload: bytes, most: int) -> bytes:
    """Return the uncompressed sections of a payload. Raises DamageError."""
    count = int.from_bytes(payload[:4], "little")
    if not 0 < count <= _MAX_SECTIONS or len(payload) < 4 * (count + 1):
        raise DamageError("a window has an impossible number of sections")
    at, parts = 4 * (count + 1), []
    for size in np.frombuffer(payload, "<u4", count, 4).tolist():
        parts.append(inflated(payload[at : at + size], most))
        most -= len(parts[-1])
        at += size
    return b"".join(parts)


def deflated(data: bytes) -> bytes:
    return zstd.compress(data, _LEVEL)


def inflated(data: bytes, most: int) -> bytes:
    """Return at most so many bytes, uncompressed. Raises DamageError."""
    decompressor = zstd.ZstdDecompressor()
    try:
        found: bytes = decompressor.decompress(data, max_length=most)
    except (zstd.ZstdError, MemoryError) as error:
        raise DamageError(f"a frame can't be uncompressed: {error}") from None
    if not decompressor.eof:
        raise DamageError("a frame is longer than its kind may be")
    return found


def _planes(data: Array) -> bytes:
    return data.T.tobytes()
