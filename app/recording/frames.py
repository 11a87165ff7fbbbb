"""Frames of a recording: an entry of 32 bytes, and a payload, which is a text under zstd.

The text of a window is the size of a header (4 bytes, little-endian), the header (a JSON object
with the fields of the snapshot that change), the identities of the rows, and the other columns as
byte planes: first byte 0 of every row, then byte 1, and so on. A flow that was in the window before
has its place there as its identity, and the other direction of a flow has the place of that flow.
No part is ever executed.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from app.api import wire
from app.outputs.views import VIEWS
from bpf.arrays import Array, bytes_of
from bpf.errors import ProbedeckError
from probes.snapshot import Snapshot

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

MAGIC, OLD_MAGIC = b"\x89PDREC2\n", b"\x89PDREC1\n"
"""First bytes of a segment, by its format: 2, and 1, which no version reads any more."""
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
_TURNED = {
    "source": "destination", "destination": "source",
    "source_port": "destination_port", "destination_port": "source_port",
}  # fmt: skip
"""Fields of a flow that have each other's places in its other direction."""
_FACTORS = np.frombuffer(os.urandom(8 << 10), "u8") | np.uint64(1)
REFERS = 1
"""Flag of a frame that needs the one of its kind and table before it: for zstd, and for the rows
whose identities are there."""
ALONE_EVERY = 16
"""Frames of a kind and table from one that stands alone to the next."""
_SPLIT_FROM = 16 << 10
"""Bytes from which each column is compressed alone: its bytes are alike, but not the columns."""
_LEVEL, _SMALL_LEVEL = 3, 9
_MOST_BEFORE = 64 << 10
"""Bytes of a text that zstd takes as the beginning of the next one; a longer text is left out,
because it would take time and saves nothing."""
MAX_PAYLOAD, MAX_TEXT = 512 << 20, 64 << 20
"""Bytes, uncompressed: of a window, and of any other frame."""


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
            found = json.loads(inflated(payload, MAX_TEXT))
            dtype = wire.restore(found["dtype"])
            if not dtype.itemsize:
                raise ValueError("rows without bytes")
            fields = json.dumps({name: found[name] for name in STATIC}).encode()
            return cls(fields, dtype, (str(found["probe"]), str(found["metric"])))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise DamageError(f"the description of a table is unreadable: {error}") from None


class Last(NamedTuple):
    """The last frame of a kind and table, to which the next one refers."""

    text: bytes = b""
    """Without a long one."""
    data: Array | None = None
    """Rows of a window: (n, bytes of a row)."""
    place: int = 0
    """Of a reader: in the segment. Of a writer: among the frames of this kind and table, from 1."""


def last_of(parts: Sequence[bytes], data: Array | None, place: int) -> Last:
    """`parts` make up the text."""
    is_long = sum(map(len, parts)) >= _MOST_BEFORE
    return Last(b"" if is_long else b"".join(parts), data, place)


def table_text(item: Snapshot) -> bytes:
    """Return the text that describes the table of a snapshot, with the meanings of columns."""
    views = [view for view in VIEWS.values() if view.takes(item) and view.probe and not view.make]
    columns = {column.name: column.meaning for view in views for column in view.columns}
    found = {"dtype": wire.describe(item.rows.dtype), "columns": columns}
    return json.dumps(wire.fields_of(item, STATIC) | found).encode()


def window_parts(item: Snapshot, last: Array | None) -> list[bytes]:
    """Return the text of a window in parts.

    `last` is the data of the table's window before it in the segment; None: the frame stands alone.
    """
    header = json.dumps(wire.fields_of(item, _CHANGING)).encode()
    data, layout = bytes_of(item.rows), layout_of(item.rows.dtype)
    parts, fresh = [_CHECK.pack(len(header)) + header], data
    if layout.identity:
        known = data[:0] if last is None else last
        places = _places(data, known, layout)
        parts.append(_references(places, known))
        fresh = data[places < 0]
    if layout.turned:
        places = _places(fresh, _turned(fresh, layout), layout)
        places[places >= np.arange(len(places))] = -1
        # One that is found by its other direction is no other direction itself.
        places[(places >= 0) & (places[places] >= 0)] = -1
        parts.append(_references(places, fresh))
        fresh = fresh[places < 0]
    parts.append(_columns(fresh, layout.identity).tobytes())
    return parts + [_planes(data[:, begin:end]) for begin, end in layout.values]


class WindowText:
    """The text of a window: the identities of its rows are read at once, the rest on demand."""

    def __init__(self, entry: Entry, text: bytes, table: RecordedTable, last: Array | None) -> None:
        """`last`: the `data` of the table's window before it; None: the frame stands alone. Raises
        DamageError."""
        self._text, self._table = text, table
        self._at = 4 + (_CHECK.unpack(text[:4])[0] if len(text) >= 4 else len(text))
        self._header = text[5 : self._at]
        layout, count = layout_of(table.dtype), entry.rows
        places = self._references(count, last) if layout.identity else np.arange(0)
        new = np.flatnonzero(places < 0)
        others = self._references(len(new), new) if layout.turned else np.full(len(new), -1)
        known = others >= 0
        fresh = np.zeros((len(new), table.dtype.itemsize), "u1")
        first = self._take(int((~known).sum()), _width(layout.identity))
        _set(fresh, np.flatnonzero(~known), layout.identity, first)
        if layout.turned:
            fresh[known] = _turned(fresh[others[known]], layout)
        self._values = self._take(_width(layout.values), count).T
        if self._at != len(text):
            raise DamageError("a window has more bytes than its entry says")
        self.data = np.empty((count, table.dtype.itemsize), "u1")
        """The memory of the rows: their identities, and later all."""
        if last is not None and len(last) and layout.identity:
            # Whole rows are one copy; new ones and values follow.
            self.data = last.take(places, axis=0, mode="clip")
        self.data[new] = fresh

    def snapshot(self) -> Snapshot:
        """Return the snapshot, once. Raises DamageError."""
        values = layout_of(self._table.dtype).values
        _set(self.data, slice(None), values, self._values)
        rows = self.data.view(self._table.dtype).ravel()
        try:
            # Two JSON objects become one.
            return wire.snapshot_of(self._table.fields[:-1] + b"," + self._header, rows)
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise DamageError("a window has a header that this version can't read") from None

    def _take(self, lines: int, width: int) -> Array:
        """Return the next bytes, (lines, width)."""
        size, at = lines * width, self._at
        if at + size > len(self._text):
            raise DamageError("a window has not as many bytes as its entry says")
        self._at += size
        return np.frombuffer(self._text, "u1", size, at).reshape(lines, width)

    def _references(self, count: int, among: Array | None) -> Array:
        """Return the next places of `_references`, (count,), in `among`."""
        there = self._take(1, count)[0] == 0
        steps = np.ascontiguousarray(self._take(4, int(there.sum())).T).view("<u4").ravel()
        if len(steps) and (among is None or not len(among)):
            raise DamageError("a window refers to rows that are missing")
        places = np.full(count, -1)
        places[there] = (np.cumsum(steps + 1, dtype="i8") - 1) % len(
            steps if among is None else among
        )
        return places


class RowLayout(NamedTuple):
    """Places of the bytes of a row, as pairs of begin and end."""

    identity: tuple[tuple[int, int], ...]
    """Bytes that name the thing of a row: in the next window they are the same."""
    values: tuple[tuple[int, int], ...]
    turned: list[int]
    """Of a flow: the places of the bytes of its other direction; empty if rows are no flows."""
    direction: int
    """Of a flow: place of its direction."""


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
    edges = [at for at in range(dtype.itemsize + 1) if (at in inside) != (at - 1 in inside)]
    joined = tuple(zip(edges[::2], edges[1::2], strict=True))
    values = [each for each in pairwise(sorted(cuts)) if each[0] not in inside]
    is_flow = bool(identity) and fields.keys() >= {*_TURNED, "direction"}
    is_flow = is_flow and all(fields[one][0] == fields[other][0] for one, other in _TURNED.items())
    turned = [*range(dtype.itemsize)] if is_flow else []
    for name, other in _TURNED.items() if turned else ():
        at, begin = fields[name][1], fields[other][1]
        turned[at : at + fields[name][0].itemsize] = range(begin, begin + fields[name][0].itemsize)
    return RowLayout(joined, tuple(values), turned, fields.get("direction", (0, 0))[1])


def _width(places: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in places)


def _columns(data: Array, places: tuple[tuple[int, int], ...]) -> Array:
    """Return the bytes at some places of each row, (n, bytes of all places)."""
    parts = [data[:, begin:end] for begin, end in places]
    return np.concatenate([data[:, :0], *parts], axis=1)


def _set(
    data: Array, rows: Array | slice, places: tuple[tuple[int, int], ...], found: Array
) -> None:
    """Set the bytes at some places of some rows, see `_columns`."""
    at = 0
    for begin, end in places:
        data[rows, begin:end] = found[:, at : at + end - begin]
        at += end - begin


def _turned(data: Array, layout: RowLayout) -> Array:
    """Return rows with the identities of the other directions of flows."""
    found = data[:, layout.turned]
    found[:, layout.direction] ^= 1
    return found


def _places(data: Array, known: Array, layout: RowLayout) -> Array:
    """Return the place (n,) of each row of `data` in `known` by its identity; -1 if it is new."""
    if not len(known):
        return np.full(len(data), -1)
    ids, known = (_columns(each, layout.identity) for each in (data, known))
    words = -(-ids.shape[1] // 8)
    keys, others = np.zeros((len(ids), words), "u8"), np.zeros((len(known), words), "u8")
    for words_of, each in ((keys, ids), (others, known)):
        words_of.view("u1")[:, : each.shape[1]] = each
    hashes, known_hashes = (each @ _FACTORS[:words] for each in (keys, others))
    order = np.argsort(known_hashes)
    at = np.minimum(np.searchsorted(known_hashes[order], hashes), len(known) - 1)
    places: Array = order[at]
    # Identities of equal hashes may differ.
    places[(keys != others[places]).any(axis=1)] = -1
    return places


def _references(places: Array, among: Array) -> bytes:
    """Return places (n,) in `among` as bytes: whether each is missing, and the steps between the
    others, round the end of `among`."""
    known = places[places >= 0]
    steps = (np.diff(known, prepend=-1) - 1) % max(1, len(among))
    return (places < 0).tobytes() + _planes(steps.astype("<u4")[:, None].view("u1"))


def deflated(parts: Sequence[bytes], before: bytes = b"") -> bytes:
    """Return a text, in parts, as a payload; `before` is the text of the frame before it."""
    level = _LEVEL
    if sum(map(len, parts)) < _SPLIT_FROM:
        parts, level = [b"".join(parts)], _SMALL_LEVEL
    compressor = zstd.ZstdCompressor(level, zstd_dict=_beginning(before))
    # A block a part.
    blocks = [compressor.compress(part, compressor.FLUSH_BLOCK) for part in parts[:-1]]
    return b"".join(blocks) + compressor.compress(parts[-1], compressor.FLUSH_FRAME)


def inflated(data: bytes, most: int, before: bytes = b"") -> bytes:
    """Return at most so many bytes of a payload's text. Raises DamageError."""
    decompressor = zstd.ZstdDecompressor(_beginning(before))
    try:
        found: bytes = decompressor.decompress(data, max_length=most)
    except (zstd.ZstdError, MemoryError) as error:
        raise DamageError(f"a frame can't be uncompressed: {error}") from None
    if not decompressor.eof:
        raise DamageError("a frame is longer than its kind may be")
    return found


def _beginning(before: bytes) -> Any:
    # zstd takes no shorter one.
    return zstd.ZstdDict(before, is_raw=True).as_prefix if len(before) >= 8 else None


def _planes(data: Array) -> bytes:
    return data.T.tobytes()
