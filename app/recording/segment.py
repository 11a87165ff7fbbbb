"""A segment of a recording: its entries, and the items of its frames."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from app.api.models import adapter
from app.exporters.ledger import Gap
from app.files import open_file
from app.recording.frames import (
    ALONE_EVERY,
    ENTRY,
    MAGIC,
    MAX_PAYLOAD,
    MAX_TEXT,
    OLD_MAGIC,
    REFERS,
    DamageError,
    Entry,
    FrameKind,
    Last,
    RecordedTable,
    WindowText,
    inflated,
    last_of,
)
from app.recording.writer import DATA, SEGMENT, index_of
from bpf.arrays import Array, Rows
from bpf.quantities import clock
from probes.snapshot import Event, Snapshot

_SIZE = ENTRY.itemsize
_READ = os.O_RDONLY | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class RecordedState:
    """A part of the controller's state since a moment."""

    part: int
    """Place in STATE_PARTS, from 1; 0: the losses since the start."""
    text: bytes
    """JSON."""


RecordedItem = Snapshot | Event | RecordedState


class Segment:
    """A segment, which may still grow. Files are opened when they are needed."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError for a file of another name, and for a segment of an older version."""
        self.path = path
        time, _, self.stream = path.name.removesuffix(DATA).rpartition(".")
        begun = datetime.strptime(time, f"{SEGMENT}.%fZ").replace(tzinfo=UTC)
        self.begin_ns = int(begun.timestamp() * 1e6) * 1000
        self._tables: dict[int, RecordedTable] = {}
        self._entries: Rows[ENTRY] = np.empty(0, ENTRY)
        """Of whole frames."""
        self._file: int | None = None
        self.damage: dict[int, str] = {}
        """Sentences about unreadable bytes, by the place of the first byte."""
        self._last: dict[tuple[int, int], Last] = {}
        """Of each kind and table the frame that was read last."""
        self._head: dict[str, str] = {}
        self._moments = -1, np.empty(0, "i8")
        """Number of entries when the moments were read, and these."""
        self._bytes = 0
        """Bytes of the data when the entries were read."""
        with suppress(DamageError):
            if self.magic == OLD_MAGIC:
                self.close()
                raise ValueError(f"{path.name} has format 1")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read_at(self, size: int, at: int) -> bytes:
        """Raises DamageError."""
        try:
            if self._file is None:
                self._file = open_file(self.path, _READ)
            return os.pread(self._file, size, at)
        except OSError as error:
            raise DamageError(error.strerror or "it is unreadable") from None

    def entries(self) -> Rows[ENTRY]:
        """Return the entries of whole frames, (n,), in the order of the file.

        If the file is unreadable there are none, and the reason is noted.
        """
        size = self._bytes
        try:
            # Without opening it: a step in a replay asks a thousand segments.
            found = os.stat(self.path if self._file is None else self._file)
            why = "" if stat.S_ISREG(found.st_mode) else "it is no file"
        except OSError as error:
            why = error.strerror or "it is unreadable"
        if why:
            self._entries, self.damage[0] = self._entries[:0], why
        else:
            size = found.st_size
        if size != self._bytes:
            self._bytes = size
            self._entries = self._indexed(size)
            further = b"".join(entry.pack() for entry in self._scanned(size))
            self._entries = np.frombuffer(self._entries.tobytes() + further, ENTRY)
        return self._entries

    def _indexed(self, size: int) -> Rows[ENTRY]:
        """Return the entries of the index, up to the first that does not fit to its neighbour."""
        self.damage.clear()
        try:
            with open(open_file(index_of(self.path), _READ), "rb") as file:
                raw = file.read()
        except OSError:
            return self._entries[:0]
        raw = raw[: len(raw) // _SIZE * _SIZE]
        found = np.frombuffer(raw, ENTRY)
        begins = found["offset"].astype("i8")
        ends = begins + _SIZE + found["size"]
        fits = begins == np.concatenate(([len(MAGIC)], ends[:-1]))
        fits &= ends <= size
        whole = len(found) if fits.all() else int(np.argmin(fits))
        return found[:whole]

    def _scanned(self, size: int) -> Iterator[Entry]:
        """Yield the whole frames that the index lacks."""
        at = self.end
        while at < size:
            try:
                entry = self._entry_at(at)
                self._payload(entry)
            except DamageError as error:
                self.damage[at] = f"{size - at} bytes at the end: {error.message}"
                return
            yield entry
            at = entry.offset + _SIZE + entry.size

    @property
    def end(self) -> int:
        """Bytes of whole frames."""
        last = self._entries[-1:]
        end = int(last["offset"].sum() + last["size"].sum())
        return end + _SIZE if end else len(MAGIC)

    def _entry_at(self, at: int) -> Entry:
        entry = Entry.unpack(self._read_at(_SIZE, at))
        if entry.offset != at:
            raise DamageError("an entry stands at a wrong place")
        return entry

    def entry(self, place: int) -> Entry:
        """Return an entry by its place. Raises DamageError."""
        return Entry.unpack(self._entries[place].tobytes())

    def _payload(self, entry: Entry) -> bytes:
        if entry.size > MAX_PAYLOAD:
            raise DamageError("a frame is too large")
        found = self._read_at(entry.size, entry.offset + _SIZE)
        if len(found) != entry.size:
            raise DamageError("a frame is cut off")
        if zlib.crc32(found) != entry.crc:
            raise DamageError("a frame has a wrong checksum")
        return found

    def table(self, number: int) -> RecordedTable:
        """Return a table by its number. Raises DamageError."""
        if number not in self._tables:
            entries = self.entries()
            mine = (entries["kind"] == FrameKind.TABLE) & (entries["table"] == number)
            places = np.flatnonzero(mine)
            if not len(places):
                raise DamageError("the description of a table is missing")
            payload = self._payload(self.entry(int(places[0])))
            self._tables[number] = RecordedTable.parse(payload)
        return self._tables[number]

    def item(self, place: int) -> RecordedItem | Gap | None:
        """Return the item of a frame; None for the head and for tables. Raises DamageError."""
        entry = self.entry(place)
        match entry.kind:
            case FrameKind.WINDOW:
                window = self._frame(place)[1]
                return window.snapshot() if window is not None else None
            case FrameKind.EVENT | FrameKind.GAP as kind:
                of = Event if kind == FrameKind.EVENT else Gap
                try:
                    found: Event | Gap = adapter(of).validate_json(self._frame(place)[0])
                    return found
                except ValueError:
                    raise DamageError("an event is unreadable") from None
            case FrameKind.STATE:
                return RecordedState(entry.table, self._frame(place)[0])
        return None

    def _frame(self, place: int, chain: int = 0) -> tuple[bytes, WindowText | None]:
        """Return the text of a frame; of a window also its reader. Raises DamageError.

        `chain`: frames that are read because this one refers to them.
        """
        entry, last, window = self.entry(place), Last(), None
        payload = self._payload(entry)
        if entry.flags & REFERS:
            last = self._before(place, entry, chain)
        of_window = entry.kind == FrameKind.WINDOW
        text = inflated(payload, MAX_PAYLOAD if of_window else MAX_TEXT, last.text)
        if of_window:
            window = WindowText(entry, text, self.table(entry.table), last.data)
        data = window.data if window is not None else None
        self._last[entry.kind, entry.table] = last_of([text], data, place)
        return text, window

    def _before(self, place: int, entry: Entry, chain: int) -> Last:
        """Return the frame to which a frame refers. Raises DamageError."""
        entries = self._entries[:place]
        mine = (entries["kind"] == entry.kind) & (entries["table"] == entry.table)
        before = int(np.flatnonzero(mine)[-1]) if mine.any() else -1
        key = entry.kind, entry.table
        # At most ALONE_EVERY frames refer to each other.
        if before < 0 or chain > ALONE_EVERY:
            raise DamageError("a frame refers to a frame that is missing")
        if key not in self._last or self._last[key].place != before:
            self._frame(before, chain + 1)
        return self._last[key]

    def items(self, mask: Array | None = None) -> Iterator[RecordedItem | Gap]:
        """Yield the items of all frames, or of a mask (n,) of them, and those that the run could
        not record; note unreadable frames."""
        count = len(self.entries())
        for place in range(count) if mask is None else np.flatnonzero(mask).tolist():
            try:
                if (item := self.item(place)) is not None:
                    yield item
            except DamageError as error:
                at = int(self._entries["offset"][place])
                self.damage[at] = f"{error.message}{self._subject(place)}"

    def _subject(self, place: int) -> str:
        """Return table and time of a damaged window, as the end of a sentence."""
        with suppress(DamageError):
            entry = self.entry(place)
            if entry.kind == FrameKind.WINDOW:
                name = " ".join(filter(None, self.table(entry.table).name))
                return f": {name} until {clock(entry.utc_ns)} UTC"
        return ""

    def between(self, begin_ns: int, end_ns: int, kind: FrameKind | None = None) -> Array:
        """Return a mask (n,) of the frames from a UTC time up to another one, of a kind or all."""
        entries = self.entries()
        mask: Array = (entries["utc_ns"] > begin_ns) & (entries["utc_ns"] <= end_ns)
        return mask if kind is None else mask & (entries["kind"] == kind)

    def moments(self) -> Array:
        """Return the ends of the windows that screens show, UTC, (n,)."""
        entries = self.entries()
        if self._moments[0] == len(entries):
            return self._moments[1]
        windows = entries[entries["kind"] == FrameKind.WINDOW]
        numbers, counts = np.unique(windows["table"], return_counts=True)
        chosen = numbers[np.argsort(-counts, kind="stable")][:1].tolist()
        with suppress(DamageError):
            names = {number: self.table(number).name for number in numbers.tolist()}
            chosen = [number for number, name in names.items() if name == ("flow", "")] or chosen
        found = windows["utc_ns"][np.isin(windows["table"], chosen)].astype("i8")
        self._moments = len(entries), found
        return found

    @property
    def magic(self) -> bytes:
        """First bytes. Raises DamageError."""
        return self._read_at(len(MAGIC), 0)

    @property
    def head(self) -> dict[str, str]:
        """Version, host and run; empty if they are unreadable, or not yet written."""
        if not self._head:
            with suppress(DamageError, ValueError, AttributeError, RecursionError):
                found = json.loads(inflated(self._payload(self._entry_at(len(MAGIC))), MAX_TEXT))
                self._head = {str(name): str(value) for name, value in found.items()}
        return self._head

    @property
    def run(self) -> str:
        """Id of the run; the name of the file if its head is unreadable."""
        return self.head.get("run") or self.path.name

    @property
    def number(self) -> int:
        """Place among the segments of the run, from 0."""
        number = self.head.get("number", "")
        return int(number) if number.isdecimal() else 0

    @property
    def rows(self) -> int:
        """Rows of all windows."""
        return int(self.entries()["rows"].sum())

    @property
    def end_ns(self) -> int:
        """UTC: the last frame, or else the begin."""
        return int(self.entries()["utc_ns"].max(initial=self.begin_ns))
