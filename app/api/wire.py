"""Snapshots and events as bytes, for consoles on other hosts.

A record is the length of its header (4 bytes, big-endian), the header (a JSON object), and as many
bytes of rows as the header says, in their memory layout. No part of it is ever executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from bpf.errors import ProbedeckError
from probes.snapshot import Event, Snapshot
from probes.tables.conversion import TableSchema


class MalformedError(ProbedeckError):
    """Bytes that no record can have."""


MEDIA_TYPE = "application/vnd.probedeck.records.v1"
_MAX_HEADER = 1 << 20
_MAX_ROWS = 512 << 20
"""Bytes."""
_SCALAR = re.compile(r"[<>|=][biufSVmM]\d{1,9}(\[\d*[a-zA-Z]+\])?")
"""Numbers and raw bytes only: no objects, and no text, as not all bytes are text."""
_HINTS = get_type_hints(Snapshot, localns={"TableSchema": TableSchema, "np": np})
_FIELDS = [f for f in fields(Snapshot) if f.name != "rows"]
_NAMES = [f.name for f in _FIELDS]
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

    def __bool__(self) -> bool:
        return bool(self.windows or self.events)


WireRecord = Snapshot | Event | Lost
_WINDOW: TypeAdapter[Any] = TypeAdapter(_Window)
_EVENT = TypeAdapter(Event)
_LOST = TypeAdapter(Lost)


def encode(record: WireRecord) -> bytes:
    if isinstance(record, Event):
        return _frame({"event": _EVENT.dump_python(record)})
    if isinstance(record, Lost):
        return _frame({"lost": _LOST.dump_python(record)})
    window = _Window(**{name: getattr(record, name) for name in _NAMES})
    rows = record.rows.tobytes()
    header = {
        "snapshot": _WINDOW.dump_python(window, mode="json"),
        "dtype": describe(record.rows.dtype),
        "rows": len(record.rows),
        "bytes": len(rows),
    }
    return _frame(header) + rows


def _frame(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "big") + text


ALIVE = _frame({})


class Decoder:
    """Decodes records from pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._header: dict[str, Any] | None = None
        self._wanted = 4
        self._in_length = True

    def feed(self, data: bytes) -> Iterator[WireRecord]:
        """Return the records that `data` completes. Raises MalformedError."""
        self._data += data
        while len(self._data) >= self._wanted:
            part = bytes(self._data[: self._wanted])
            del self._data[: self._wanted]
            if (record := self._take(part)) is not None:
                yield record

    def end(self) -> None:
        """Raises MalformedError if a record is cut off."""
        if self._data or not self._in_length:
            raise MalformedError("the stream ends within a record")

    def _take(self, part: bytes) -> WireRecord | None:
        if self._in_length:
            self._in_length = False
            self._wanted = _at_most(int.from_bytes(part, "big"), _MAX_HEADER)
            return None
        try:
            if self._header is None:
                self._header = json.loads(part)
                if not isinstance(self._header, dict):
                    raise ValueError("its header is no object")
                self._wanted = _at_most(self._header.get("bytes", 0), _MAX_ROWS)
                if self._wanted:
                    return None
                part = b""
            header, self._header = self._header, None
            self._wanted, self._in_length = 4, True
            return _record(header, part)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            what = "not as declared" if isinstance(error, ValidationError) else error
            raise MalformedError(f"the stream holds a record that can't be read: {what}") from None


def _at_most(length: Any, limit: int) -> int:
    if type(length) is not int or not 0 <= length <= limit:
        raise MalformedError(f"the stream holds a record of {str(length)[:20]} bytes")
    return length


def _record(header: dict[str, Any], data: bytes) -> WireRecord | None:
    """Return a record; None for an unknown kind. Raises errors of decoding."""
    if "event" in header:
        return _EVENT.validate_python(header["event"])
    if "lost" in header:
        return _LOST.validate_python(header["lost"])
    if "snapshot" not in header:
        return None
    dtype = restore(header["dtype"])
    count = _at_most(header["rows"], _MAX_ROWS)
    if dtype.itemsize * count != len(data) or not dtype.itemsize:
        raise ValueError(f"{count} rows of {dtype.itemsize} bytes are not {len(data)} bytes")
    rows: np.ndarray[tuple[int, ...], np.dtype[Any]] = np.ndarray((count,), dtype, data)
    window = _WINDOW.validate_python(header["snapshot"])
    return Snapshot(**{name: getattr(window, name) for name in _NAMES}, rows=rows)


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
