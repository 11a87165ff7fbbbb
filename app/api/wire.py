"""Snapshots and events as bytes, for consoles on other hosts.

A record is the length of its header (4 bytes, big-endian), the header (a JSON object), and as many
bytes of rows as the header says, in their memory layout. No part of it is ever executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import lru_cache
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from bpf.arrays import Array
from bpf.errors import ProbedeckError
from probes.snapshot import Event, Snapshot
from probes.tables.conversion import TableSchema


class MalformedError(ProbedeckError):
    """Bytes that no record can have."""


MEDIA_TYPE = "application/vnd.probedeck.records.v1"
_MAX_HEADER = 1 << 20
_MAX_ROWS = 512 << 20
"""Bytes."""
_MOST_LAYOUTS = 256
_MAX_LAYOUT = 16 << 10
"""Remembered descriptions of dtypes, and most characters of each."""
_SCALAR = re.compile(r"[<>|=][biufSVmM]\d{1,9}(\[\d*[a-zA-Z]+\])?")
"""Numbers and raw bytes only: no objects, and no text, as not all bytes are text."""
_HINTS = get_type_hints(Snapshot, localns={"TableSchema": TableSchema, "np": np})
_FIELDS = [f for f in fields(Snapshot) if f.name != "rows"]
NAMES = [f.name for f in _FIELDS]
"""Fields of a snapshot without its rows."""
_Window: type[Any] = make_dataclass(
    "_Window", [(f.name, _HINTS[f.name], field(default=f.default)) for f in _FIELDS]
)
"""A Snapshot without rows. Fields with defaults may be missing: older controllers send fewer."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Number of records that a slow reader has missed."""

    windows: Mapping[str, int] = field(default_factory=dict)
    """Windows by probe."""
    events: int = 0
    cause: str = ""
    """Why, if the reader was not too slow."""

    def __bool__(self) -> bool:
        return bool(self.windows or self.events)


@dataclass(frozen=True, slots=True)
class _Header:
    """A record without its rows; a record of a later kind has neither of the first three."""

    event: Event = None  # type: ignore[assignment]  # null is malformed, unlike a missing one
    lost: Lost = None  # type: ignore[assignment]
    snapshot: _Window = None  # type: ignore[valid-type]
    dtype: Any = None
    rows: Any = None
    bytes: Any = 0


WireRecord = Snapshot | Event | Lost
_HEADER = TypeAdapter(_Header)
_WINDOW: TypeAdapter[Any] = TypeAdapter(_Window)
_EVENT = TypeAdapter(Event)
_LOST = TypeAdapter(Lost)
_layouts: dict[tuple[str, ...], tuple[Any, np.dtype[Any]]] = {}
"""Descriptions of dtypes with their dtypes, by the names of fields. The tables of a thousand hosts
have a few layouts, and to make a dtype takes longer than the rest of a small record."""


def encode(record: WireRecord) -> bytes:
    if isinstance(record, Event):
        return _frame({"event": _EVENT.dump_python(record)})
    if isinstance(record, Lost):
        return _frame({"lost": _LOST.dump_python(record)})
    rows = record.rows.tobytes()
    header = {
        "snapshot": fields_of(record),
        "dtype": describe(record.rows.dtype),
        "rows": len(record.rows),
        "bytes": len(rows),
    }
    return _frame(header) + rows


def fields_of(record: Snapshot, only: set[str] | None = None) -> dict[str, Any]:
    """Return the fields of a snapshot without its rows as values of JSON; `only` some of them."""
    values = {name: getattr(record, name) for name in NAMES}
    # pydantic writes dicts only, and `losses` may be another mapping.
    window = _Window(**values | {"losses": dict(record.losses)})
    found: dict[str, Any] = _WINDOW.dump_python(window, mode="json", include=only)
    return found


def snapshot_of(text: bytes, rows: Array) -> Snapshot:
    """Return the snapshot of such fields, as JSON. Raises ValueError."""
    return _with_rows(_WINDOW.validate_json(text), rows)


def _with_rows(window: Any, rows: Array) -> Snapshot:
    return Snapshot(**{name: getattr(window, name) for name in NAMES}, rows=rows)


def _frame(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "big") + text


ALIVE = _frame({})


class Decoder:
    """Decodes records from pieces of any size."""

    def __init__(self, max_rows: int | None = None) -> None:
        """A table of more than `max_rows` bytes is skipped, and counts as a lost window. By default
        a table of 512 MiB is malformed."""
        self._max_rows = max_rows
        self._data = bytearray()
        self._header: _Header | None = None
        self._wanted = 4
        self._in_length = True
        self._skipped = 0
        """Bytes still to come of a table that is too large."""

    def feed(self, data: bytes) -> Iterator[WireRecord]:
        """Return the records that `data` completes. Raises MalformedError."""
        rest = memoryview(data)
        while True:
            if self._skipped:
                passed = min(self._skipped, len(rest))
                self._skipped -= passed
                rest = rest[passed:]
            missing = self._wanted - len(self._data)
            if self._skipped or len(rest) < missing:
                self._data += rest
                return
            if self._data:
                self._data += rest[:missing]
                part, self._data = self._data, bytearray()
            else:
                part = bytearray(rest[:missing])
            rest = rest[missing:]
            if (record := self._take(part)) is not None:
                yield record

    @property
    def pending(self) -> bool:
        """Whether the last record is cut off so far."""
        return bool(self._data or self._skipped or not self._in_length)

    def end(self) -> None:
        """Raises MalformedError if a record is cut off."""
        if self.pending:
            raise MalformedError("the stream ends within a record")

    def _take(self, part: bytearray) -> WireRecord | None:
        if self._in_length:
            self._in_length = False
            self._wanted = _at_most(int.from_bytes(part, "big"), _MAX_HEADER)
            return None
        try:
            if self._header is None:
                self._header = _HEADER.validate_json(part)
                size = _at_most(self._header.bytes, _MAX_ROWS)
                if size and (self._max_rows is None or size <= self._max_rows):
                    self._wanted = size
                    return None
                part, self._skipped = bytearray(), size
            header, self._header = self._header, None
            self._wanted, self._in_length = 4, True
            return _left_out(header) if self._skipped else _record(header, part)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            what = "not as declared" if isinstance(error, ValidationError) else error
            raise MalformedError(f"the stream holds a record that can't be read: {what}") from None


def _at_most(length: Any, limit: int) -> int:
    if type(length) is not int or not 0 <= length <= limit:
        raise MalformedError(f"the stream holds a record of {str(length)[:20]} bytes")
    return length


def _record(header: _Header, data: bytearray) -> WireRecord | None:
    """Return a record; None for an unknown kind. Raises errors of decoding."""
    if header.snapshot is None:
        return header.event or header.lost
    dtype = _dtype(header.dtype)
    count = _at_most(header.rows, _MAX_ROWS)
    if dtype.itemsize * count != len(data) or not dtype.itemsize:
        raise ValueError(f"{count} rows of {dtype.itemsize} bytes are not {len(data)} bytes")
    rows: np.ndarray[tuple[int, ...], np.dtype[Any]] = np.ndarray((count,), dtype, data)
    return _with_rows(header.snapshot, rows)


def _left_out(header: _Header) -> WireRecord | None:
    """Return the loss of a table that is too large."""
    window: Any = header.snapshot
    cause = f"a table of {header.bytes} bytes is too large"
    return None if window is None else Lost({window.probe: 1}, cause=cause)


def _dtype(node: Any) -> np.dtype[Any]:
    """Return the dtype of a description, as `restore` does, and remember it."""
    if not isinstance(node, dict):
        return restore(node)
    names = tuple(node["names"])
    known = _layouts.get(names)
    if known is not None and known[0] == node:
        return known[1]
    dtype = restore(node)
    if len(_layouts) < _MOST_LAYOUTS and len(str(node)) <= _MAX_LAYOUT:
        _layouts[names] = node, dtype
    return dtype


@lru_cache(_MOST_LAYOUTS)
def describe(dtype: np.dtype[Any]) -> Any:
    """Describe a dtype in JSON, with overlapping fields, gaps and dimensions."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base), list(shape)]
    if dtype.names is None:
        return dtype.str
    members = [dtype.fields[name] for name in dtype.names] if dtype.fields else []
    return {
        "names": list(dtype.names),
        "formats": [describe(member[0]) for member in members],
        "offsets": [member[1] for member in members],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def restore(node: Any) -> np.dtype[Any]:
    """Return the dtype of a description. Raises ValueError, TypeError or KeyError."""
    if isinstance(node, str):
        if not _SCALAR.fullmatch(node):
            raise ValueError(f"no number: {node[:40]!r}")
        return np.dtype(node)
    if isinstance(node, list):
        base, shape = node
        return np.dtype((restore(base), tuple(shape)))
    parts: Any = {name: node[name] for name in ("names", "offsets", "itemsize")}
    parts["formats"] = [restore(part) for part in node["formats"]]
    dtype: np.dtype[Any] = np.dtype(parts, align=bool(node["aligned"]))
    return dtype
