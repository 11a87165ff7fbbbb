"""A recording: its segments in order of time, and questions to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from app.exporters.ledger import EVENTS, Gap, TableKey
from app.files import as_invoker, expand
from app.recording.frames import MAGIC, FrameKind
from app.recording.segment import RecordedItem, Segment
from app.recording.writer import DATA, STREAMS
from bpf.arrays import Array
from bpf.errors import Closing, UsageError
from bpf.quantities import clock, counted, moment
from probes.snapshot import Snapshot

FULL = next(iter(STREAMS))
_SECOND_NS = 10**9


class Recording(Closing):
    """Reads a recording, which may still grow. One thread uses it."""

    def __init__(self, directory: str, stream: str = FULL, run: str = "") -> None:
        """Only of runs whose id begins with `run`.

        Raises UsageError if the directory has no segment of the stream, or none of such a run.
        """
        self.directory, self._stream, self.run = expand(directory), stream, run
        self._segments: dict[Path, Segment] = {}
        self._runs: list[list[Segment]] = []
        self._listed_ns = 0
        """Time of the directory's last change, if `_runs` are of it."""
        if not self.segments():
            text = f"{directory} has no recording that this version reads"
            hint = "give the DIR of --record"
            if run and self._segments:
                ids = ", ".join(dict.fromkeys(each.run for each in self._segments.values()))
                text, hint = f"{directory} has no run {run}", f"there are {ids}"
            raise UsageError(text, hint=hint)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()

    def segments(self) -> list[Segment]:
        """Return the segments of the stream that exist now, run by run. Raises UsageError."""
        return [segment for run in self.runs() for segment in run]

    def runs(self) -> list[list[Segment]]:
        """Return the segments of each run, in the order of their begins. Raises UsageError."""
        now_ns = time.time_ns()
        try:
            with as_invoker():
                there = self.directory.exists()
                changed_ns = self.directory.stat().st_mtime_ns if there else -1
                if changed_ns == self._listed_ns:
                    return self._runs
                found = set(self.directory.glob(f"*.{self._stream}{DATA}"))
        except OSError as error:
            raise UsageError(f"{self.directory} is unreadable: {error.strerror}") from None
        for gone in self._segments.keys() - found:
            self._segments.pop(gone).close()
        for path in found - self._segments.keys():
            with suppress(ValueError):
                self._segments[path] = Segment(path)
        runs: dict[str, list[Segment]] = {}
        for segment in sorted(self._segments.values(), key=lambda each: each.begin_ns):
            if segment.run.startswith(self.run):
                runs.setdefault(segment.run, []).append(segment)
            segment.close()
        # A clock that was set back dates a segment before the one that it follows.
        self._runs = [sorted(run, key=lambda each: each.number) for run in runs.values()]
        # A file that is made within a tick of the file system's clock changes no time.
        self._listed_ns = changed_ns if now_ns - changed_ns > _SECOND_NS else 0
        return self._runs

    def items(
        self, begin_ns: int = 0, end_ns: int = 1 << 62, run: Sequence[Segment] = (),
        kind: FrameKind | None = None,
    ) -> Iterator[RecordedItem]:  # fmt: skip
        """Yield the items from a UTC time up to another one, in the order of their publication.

        `run` are the segments of a run; without it, all runs come one after the other. `kind`: of
        this kind only. A window belongs to its end. Damaged frames are left out, and noted in their
        segments.
        """
        for segment in self._between(begin_ns, end_ns, run):
            items = segment.items(segment.between(begin_ns, end_ns, kind))
            yield from (item for item in items if not isinstance(item, Gap))
            segment.close()

    def _between(
        self, begin_ns: int, end_ns: int, run: Sequence[Segment] = ()
    ) -> Iterable[Segment]:
        """Return the segments that may have items of a time, of one run or of all."""
        # A clock that was set back dates the next windows before their segment.
        slack = 60 * 10**9
        for segments in [run] if run else self.runs():
            ends = [segment.begin_ns for segment in segments[1:]] + [1 << 63]
            for segment, end in zip(segments, ends, strict=True):
                if segment.begin_ns < end_ns + slack and (
                    end > begin_ns - slack or end < segment.begin_ns
                ):
                    yield segment

    def event_times(self) -> Array:
        """Return the UTC times of events, (n,), ascending; see `moments`."""
        of_events = 0, 1 << 62, FrameKind.EVENT
        return self._times(
            lambda each: each.entries()["utc_ns"][each.between(*of_events)].astype("i8")
        )

    def moments(self) -> Array:
        """Return the ends of the windows that screens show, UTC, (n,), ascending.

        Windows of flows, or else of the table with the most windows. While two runs have the same
        time, only moments of the run that began last count.
        """
        return self._times(Segment.moments)

    def _times(self, times_of: Callable[[Segment], Array]) -> Array:
        found = np.empty(0, "i8")
        for run in self.runs():
            apart = (found < run[0].begin_ns) | (found > run[-1].end_ns)
            found = np.concatenate([found[apart], *map(times_of, run)])
            for segment in run:
                segment.close()
        return np.unique(found)

    def runs_at(self, utc_ns: int) -> list[list[Segment]]:
        """Return the runs that have a time, or else the last one before it; each with its segments
        up to that time, oldest first. Moments are of the last run."""
        runs = [run for run in self.runs() if run[0].begin_ns <= utc_ns]
        there = [run for run in runs if utc_ns <= run[-1].end_ns] or runs[-1:]
        return [[each for each in run if each.begin_ns <= utc_ns] for run in there]

    def between(self, begin: str, end: str) -> tuple[int, int]:
        """Return two typed times as UTC; an age is one before the end. Raises UsageError."""
        last = max(each.end_ns for each in self.segments())
        since = moment(begin, last) // _SECOND_NS * _SECOND_NS if begin else 0
        return since, moment(end, last) if end else 1 << 62

    def damage(self) -> Iterator[str]:
        """Yield a sentence for each damage that reading has met."""
        for segment in self._segments.values():
            for at, words in sorted(segment.damage.items()):
                yield f"{segment.path.name}: at byte {at}: {words}"

    def faults(self) -> Iterator[str]:
        """Read every frame; yield a sentence for each damage, and for items that are missing."""
        for run in self.runs():
            yield from _missing(run)
        yield from self.damage()


def _missing(run: Sequence[Segment]) -> Iterator[str]:
    """Yield a sentence for each time whose items a run lacks."""
    for one, after in pairwise(run):
        if (lacking := after.number - one.number - 1) > 0:
            what = f"{counted(lacking, 'segment')} of run {after.run[:8]}"
            yield _sentence(what, one.end_ns, after.begin_ns)
    last: dict[tuple[str, str, bool], Snapshot] = {}
    gaps: list[tuple[tuple[str, str, bool], int]] = []
    """Keys of tables, and the ends of their gaps."""
    for segment in run:
        if len(segment.entries()) and segment.magic != MAGIC:
            yield f"{segment.path.name}: the first {len(MAGIC)} bytes are wrong"
        for item in segment.items():
            if isinstance(item, Gap):
                gaps.append((_key(item.table), item.end_ns))
                what = counted(item.items, "event" if item.table == EVENTS else "window")
                of = item.table
                name = " ".join(filter(None, (of.probe, of.side, of.metric)))
                yield _sentence(f"{name}: {what}", item.begin_ns, item.end_ns)
            if not isinstance(item, Snapshot):
                continue
            key = _key(item)
            before = last.get(key, item)
            lacking, begin_ns = item.window - before.window - 1, before.end_utc_ns
            # A probe that begins anew counts from one.
            if lacking > 0 and not any(
                of == key and begin_ns <= end_ns <= item.start_utc_ns for of, end_ns in gaps
            ):
                what = f"{item.probe}: {counted(lacking, 'window')}"
                yield _sentence(what, begin_ns, item.start_utc_ns)
            last[key] = replace(item, rows=item.rows[:0].copy())
        segment.close()


def _key(table: Snapshot | TableKey) -> tuple[str, str, bool]:
    """Return what counts the windows of a table, alone.

    Flows come after other tables of their window; some tables of other probes come in some windows
    only.
    """
    return table.probe, table.interface, (table.probe, table.metric) == ("flow", "")


def _sentence(what: str, begin_ns: int, end_ns: int) -> str:
    return f"{what} from {clock(begin_ns)} to {clock(end_ns)} UTC not recorded"
