"""A recording: its segments in order of time, and questions to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.commands.moment import moment
from app.files import as_invoker, expand
from app.outputs.view import is_table
from app.recording.frames import MAGIC, FrameKind
from app.recording.segment import RecordedItem, Segment
from app.recording.writer import DATA, STREAMS
from bpf.arrays import Array
from bpf.errors import Closing, UsageError
from bpf.quantities import clock, counted
from probes.snapshot import Event, Snapshot

FULL = next(iter(STREAMS))
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """A segment, for lists."""

    name: str
    begin_ns: int
    end_ns: int
    """UTC: the last window or event."""
    bytes: int
    frames: int
    rows: int
    """Rows of all windows."""
    host: str


class Recording(Closing):
    """Reads a recording, which may still grow. One thread uses it."""

    def __init__(self, directory: str, stream: str = FULL) -> None:
        """Raises UsageError if the directory has no segment of the stream."""
        self.directory, self._stream = expand(directory), stream
        self._segments: dict[Path, Segment] = {}
        self._moments: dict[Path, tuple[int, Array]] = {}
        """Entries of each segment when its moments were read, and these."""
        if not self.segments():
            hint = "give the DIR of --record"
            raise UsageError(f"{directory} has no recording", hint=hint)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()

    def segments(self) -> list[Segment]:
        """Return the segments of the stream that exist now, oldest first. Raises UsageError."""
        try:
            with as_invoker():
                found = set(self.directory.glob(f"*.{self._stream}{DATA}"))
        except OSError as error:
            raise UsageError(f"{self.directory} is unreadable: {error.strerror}") from None
        for gone in self._segments.keys() - found:
            self._segments.pop(gone).close()
        for path in found - self._segments.keys():
            with suppress(ValueError):
                self._segments[path] = Segment(path)
        return sorted(self._segments.values(), key=lambda segment: segment.begin_ns)

    def items(self, begin_ns: int = 0, end_ns: int = 1 << 62) -> Iterator[RecordedItem]:
        """Yield the items from a UTC time up to another one, in the order of their publication.

        A window belongs to its end. Damaged frames are left out, and noted in their segments.
        """
        for segment in self._between(begin_ns, end_ns):
            yield from segment.items(segment.between(begin_ns, end_ns))
            segment.close()

    def events(self, begin_ns: int, end_ns: int) -> Iterator[Event]:
        """Yield the events from a UTC time up to another one."""
        for segment in self._between(begin_ns, end_ns):
            yield from segment.events(begin_ns, end_ns)
            segment.close()

    def event_times(self) -> Array:
        """Return the UTC times of all events, (n,), ascending."""
        parts = []
        for segment in self.segments():
            entries = segment.entries()
            parts.append(entries["utc_ns"][entries["kind"] == FrameKind.EVENT].astype("i8"))
            segment.close()
        return np.sort(np.concatenate(parts))

    def _between(self, begin_ns: int, end_ns: int) -> Iterable[Segment]:
        """Return the segments that may have items of a time."""
        segments = self.segments()
        ends = [segment.begin_ns for segment in segments[1:]] + [1 << 63]
        # A clock that was set back dates the next windows before their segment.
        slack = 60 * 10**9
        return [
            segment for segment, end in zip(segments, ends, strict=True)
            if end > begin_ns - slack and segment.begin_ns < end_ns + slack
        ]  # fmt: skip

    def moments(self) -> Array:
        """Return the ends of the windows that screens show, UTC, (n,), ascending.

        Windows of flows, or else of the table with the most windows.
        """
        parts = []
        for segment in self.segments():
            entries = segment.entries()
            known = self._moments.get(segment.path)
            if known is None or known[0] != len(entries):
                known = self._moments[segment.path] = len(entries), segment.moments()
                segment.close()
            parts.append(known[1])
        return np.unique(np.concatenate(parts))

    def run_before(self, utc_ns: int) -> list[Segment]:
        """Return the segments of the run of a moment, up to that moment, oldest first."""
        segments = [each for each in self.segments() if each.begin_ns <= utc_ns]
        run = segments[-1].head.get("run") if segments else None
        return [each for each in segments if each.head.get("run") == run]

    def between(self, begin: str, end: str) -> tuple[int, int]:
        """Return two typed times as UTC; an age is one before the end. Raises UsageError."""
        last = max(one.end_ns for one in self.summaries())
        since = moment(begin, last) // _SECOND_NS * _SECOND_NS if begin else 0
        return since, moment(end, last) if end else 1 << 62

    def damage(self) -> Iterator[str]:
        """Yield a sentence for each damage that reading has met."""
        for segment in self._segments.values():
            for at, words in sorted(segment.damage.items()):
                yield f"{segment.path.name}: at byte {at}: {words}"

    def summaries(self) -> Iterator[SegmentSummary]:
        """Yield what each segment has, oldest first."""
        for segment in self.segments():
            entries = segment.entries()
            times = entries["utc_ns"][np.isin(entries["kind"], (FrameKind.WINDOW, FrameKind.EVENT))]
            last = int(times.max()) if len(times) else segment.begin_ns
            yield SegmentSummary(
                segment.path.name, segment.begin_ns, last, segment.size if len(entries) else 0,
                len(entries), int(entries["rows"].sum()), segment.head.get("host", ""),
            )  # fmt: skip
            segment.close()

    def faults(self) -> Iterator[str]:
        """Read every frame; yield a sentence for each damage, and for windows that are missing."""
        last: dict[tuple[str, str, bool], tuple[int, int]] = {}
        for segment in self.segments():
            entries = segment.entries()
            if len(entries) and not segment.begins_well():
                yield f"{segment.path.name}: the first {len(MAGIC)} bytes are wrong"
            for item in segment.items() if len(entries) else ():
                if not isinstance(item, Snapshot):
                    continue
                # Flows come after other tables of their window; some tables of other probes come
                # in some windows only.
                is_flows = is_table(item, "flow", "")
                key = item.probe, item.interface, is_flows
                window, start_ns = last.get(key, (item.window - 1, 0))
                # A run that begins counts from one.
                if item.window > window + 1 and item.start_ns >= start_ns:
                    count, at = item.window - window - 1, clock(item.start_utc_ns)
                    yield f"{item.probe}: {counted(count, 'window')} before {at} UTC not recorded"
                last[key] = item.window, item.start_ns
            segment.close()
        yield from self.damage()
