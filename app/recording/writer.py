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
from datetime import UTC, datetime, timedelta
from errno import ENOENT, ENOSPC
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from app import VERSION
from app.files import as_invoker, open_file
from app.recording.frames import (
    ALONE_EVERY,
    ENTRY,
    MAGIC,
    REFERS,
    Entry,
    FrameKind,
    Last,
    deflated,
    last_of,
    table_text,
    window_parts,
)
from bpf.arrays import Array, bytes_of
from probes.snapshot import Snapshot

DATA, INDEX, CAPTURE = ".seg", ".idx", ".pcapng"
STREAMS = {"full": 600.0, "10s": 6 * 3600.0, "1m": 24 * 3600.0}
"""Streams of a recording, by the seconds of a segment: every window, and sums of 10 s and 1 min."""
SEGMENT_BYTES = 64 << 20
SEGMENT = "%Y%m%dT%H%M%S"
_NONE = np.empty(0, "u1")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND


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
        self._tables: dict[tuple[str, str, str], tuple[Any, int]] = {}
        """By probe, side and metric: the fields that its windows share, and its number."""
        self._numbers = 0
        self._last: dict[tuple[FrameKind, int], Last] = {}
        self._run, self._segments = run, 0

    def window(self, item: Snapshot) -> None:
        """Append a window; before the first one of its table, the table's description."""
        self._make_room(item.rows.nbytes, item.end_utc_ns)
        static = item.interface, item.schema, item.hooks, item.rows.dtype
        key = item.probe, item.side, item.metric
        if key not in self._tables or self._tables[key][0] != static:
            self._append(FrameKind.TABLE, item.end_utc_ns, [table_text(item)], self._numbers)
            self._tables[key] = static, self._numbers
            self._numbers += 1
        number = self._tables[key][1]
        parts = window_parts(item, self._before(FrameKind.WINDOW, number).data)
        self._append(FrameKind.WINDOW, item.end_utc_ns, parts, number, item.rows)

    def add(self, kind: FrameKind, utc_ns: int, text: bytes, number: int = 0) -> None:
        """Append a frame of another kind."""
        self._make_room(len(text), utc_ns)
        self._append(kind, utc_ns, [text], number)

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
        self._tables, self._numbers, self._last = {}, 0, {}
        head = {"version": VERSION, "host": socket.gethostname(), "stream": self._stream,
                "run": self._run, "number": self._segments}  # fmt: skip
        self._segments += 1
        try:
            self._append(FrameKind.HEAD, utc_ns, [json.dumps(head).encode()])
        except OSError:
            # Nothing of it can be read.
            self.close()
            with as_invoker():
                for suffix in (DATA, INDEX):
                    (self._directory / (name + suffix)).unlink(missing_ok=True)
            raise

    def _before(self, kind: FrameKind, number: int) -> Last:
        """Return the frame to which the next one refers."""
        last = self._last.get((kind, number), Last())
        return last if last.place % ALONE_EVERY else Last()

    def _append(
        self, kind: FrameKind, utc_ns: int, parts: list[bytes], number: int = 0,
        rows: Array = _NONE,
    ) -> None:  # fmt: skip
        assert self._files is not None
        data, index = self._files
        begin = self._size
        last = self._before(kind, number)
        payload = deflated(parts, last.text)
        before = MAGIC if not begin else b""
        entry = Entry(
            max(0, utc_ns), begin + len(before), len(payload), len(rows), kind,
            REFERS if last.place else 0, number, zlib.crc32(payload),
        )  # fmt: skip
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
        self._last[kind, number] = last_of(parts, bytes_of(rows), last.place + 1)


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
