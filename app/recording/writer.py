"""The writer of a recording: segments, their index, and the end of old ones.

A segment is two files. `TIME.STREAM.seg` has frames; `TIME.STREAM.idx` has the entries of these
frames again. A frame is appended by one call, and its entry by another. So a killed process leaves
at most one torn frame, at the end, and a reader finds frames that the index lacks.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from errno import ENOENT, ENOSPC
from itertools import chain
from pathlib import Path
from typing import Any

from app import VERSION
from app.files import as_invoker, open_file
from app.recording.frames import (
    ALONE_EVERY,
    ENTRY,
    MAGIC,
    Entry,
    FrameKind,
    deflated,
    table_frame,
    window_frame,
)
from bpf.arrays import Array
from probes.snapshot import Snapshot

DATA, INDEX, CAPTURE = ".seg", ".idx", ".pcapng"
STREAMS = {"full": 600.0, "10s": 6 * 3600.0, "1m": 24 * 3600.0}
"""Streams of a recording, by the seconds of a segment: every window, and sums of 10 s and 1 min."""
SEGMENT_BYTES = 64 << 20
SEGMENT = "%Y%m%dT%H%M%S"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND


@dataclass(slots=True)
class _Table:
    """A table of the present segment."""

    static: Any
    """The fields that its windows share."""
    number: int
    last: Array | None = None
    """Rows of its last window."""
    windows: int = 0


class SegmentWriter:
    """Appends frames to the segments of one stream. Every method raises OSError."""

    def __init__(
        self, directory: Path, stream: str, begun: Callable[[int], None], run: str
    ) -> None:
        """`begun` is called with the time of each segment, after its first frame. `run` is the id
        of the run."""
        self._directory = directory
        self._stream = stream
        self._begun = begun
        self._files: tuple[int, int] | None = None
        """Descriptors of the data and of the index."""
        self._end = self._began = 0.0
        self._size = 0
        self._tables: dict[tuple[str, str, str], _Table] = {}
        """By probe, side and metric."""
        self._numbers = 0
        self._run, self._segments = run, 0

    def window(self, item: Snapshot) -> None:
        """Append a window; before the first one of its table, the table's description."""
        self._make_room(item.rows.nbytes, item.end_utc_ns)
        static = item.interface, item.schema, item.hooks, item.rows.dtype
        key = item.probe, item.side, item.metric
        table = self._tables.get(key)
        if table is None or table.static != static:
            self._append(FrameKind.TABLE, item.end_utc_ns, table_frame(item), self._numbers)
            table = self._tables[key] = _Table(static, self._numbers)
            self._numbers += 1
        alone = not table.windows % ALONE_EVERY
        payload, flags = window_frame(item, None if alone else table.last)
        self._append(
            FrameKind.WINDOW, item.end_utc_ns, payload, table.number, flags=flags,
            rows=len(item.rows),
        )  # fmt: skip
        table.last, table.windows = item.rows, table.windows + 1

    def add(self, kind: FrameKind, utc_ns: int, payload: bytes, table: int = 0) -> None:
        """Append a frame of another kind."""
        self._make_room(len(payload), utc_ns)
        self._append(kind, utc_ns, payload, table)

    def sync(self) -> None:
        """Let the data reach the disk: only a lost power supply needs it."""
        for file in self._files or ():
            os.fdatasync(file)

    def close(self) -> None:
        for file in self._files or ():
            os.close(file)
        self._files = None

    def _make_room(self, size: int, utc_ns: int) -> None:
        """Begin the first segment, or another if the present one is old, full or removed.

        `size` are the bytes of the next frame, at most, and `utc_ns` is its time.
        """
        if self._files is not None and not os.fstat(self._files[0]).st_nlink:
            self.close()
            raise OSError(ENOENT, "the segment was removed")
        full = self._numbers >= 1 << 16 or self._size + size > max(SEGMENT_BYTES, 2 * size)
        if self._files is not None and (full or time.monotonic() >= self._end):
            self.close()
        if self._files is None:
            self._begin(utc_ns)
            self._begun(utc_ns)

    def _begin(self, utc_ns: int) -> None:
        at, data = datetime.fromtimestamp(max(0, utc_ns) / 1e9, UTC), None
        while data is None:
            name = f"{at:{SEGMENT}}.{at.microsecond:06}Z.{self._stream}"
            try:
                data = open_file(self._directory / (name + DATA), _APPEND)
            except FileExistsError:
                at += timedelta(microseconds=1)
        try:
            index = open_file(self._directory / (name + INDEX), _APPEND)
        except OSError:
            os.close(data)
            raise
        self._files, self._size = (data, index), 0
        self._end = time.monotonic() + STREAMS[self._stream]
        self._tables, self._numbers = {}, 0
        head = {"version": VERSION, "host": socket.gethostname(), "stream": self._stream,
                "run": self._run, "number": self._segments}  # fmt: skip
        self._segments += 1
        try:
            self._append(FrameKind.HEAD, utc_ns, deflated(json.dumps(head).encode()), 0)
        except OSError:
            # Nothing of it can be read.
            self.close()
            with as_invoker():
                for suffix in (DATA, INDEX):
                    (self._directory / (name + suffix)).unlink(missing_ok=True)
            raise

    def _append(
        self, kind: FrameKind, utc_ns: int, payload: bytes, table: int, *, flags: int = 0,
        rows: int = 0,
    ) -> None:  # fmt: skip
        assert self._files is not None
        data, index = self._files
        begin = self._size
        before = MAGIC if not begin else b""
        offset = begin + len(before)
        entry = Entry(
            max(0, utc_ns), offset, len(payload), rows, kind, flags, table, zlib.crc32(payload)
        )
        packed = entry.pack()
        try:
            whole = before + packed + payload
            if os.write(data, whole) < len(whole):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            if os.write(index, packed) < len(packed):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError:
            # No torn frame stays within the segment.
            entries = os.fstat(index).st_size // ENTRY.itemsize
            os.ftruncate(index, entries * ENTRY.itemsize)
            os.ftruncate(data, begin)
            raise
        self._size = begin + len(whole)


def remove_old(directory: Path, seconds: float, most: float) -> None:
    """Remove segments and captures that are older than `seconds`, and then, while all files have
    more than `most` bytes, the oldest captures and segments of all windows. The newest segment of a
    stream stays.

    Raises OSError.
    """
    with as_invoker():
        found = sorted(chain(directory.glob(f"*{DATA}"), directory.glob(f"capture-*{CAPTURE}")))
        states = {path: path.stat() for path in found}
        sizes = {path: state.st_size + _size(index_of(path)) for path, state in states.items()}
        left, now = sum(sizes.values()), time.time()
        newest = {path.name.split(".")[-2]: path for path in found if path.suffix == DATA}
        for path in sorted(found, key=lambda path: states[path].st_mtime_ns):
            if path in newest.values():
                continue
            too_much = left > most and path.name.endswith((f".full{DATA}", CAPTURE))
            if too_much or now - states[path].st_mtime > seconds:
                path.unlink(missing_ok=True)
                index_of(path).unlink(missing_ok=True)
                left -= sizes[path]


def index_of(data: Path) -> Path:
    """Return the index of a segment's data."""
    return data.with_suffix(INDEX)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
