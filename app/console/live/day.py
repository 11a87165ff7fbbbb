"""The last day of a recording on one line: traffic by the minute, and times of events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from app.recording.frames import FrameKind
from app.recording.reader import Recording
from app.recording.tiers import MINUTES
from bpf.arrays import Array, Rows
from bpf.errors import UsageError
from bpf.quantities import bit_rate, clock
from probes.snapshot import Event, Snapshot
from widgets.sparkline import round_scale, sparkline
from widgets.table.rows import Pieces
from widgets.tones import Tone

MINUTE_NS = 60 * 10**9
DAY_NS = 24 * 60 * MINUTE_NS
_AGAIN_S = 60.0
"""Seconds between two looks for further minutes."""
_HERE = "┃"
"""The moment that the screens show."""


MINUTE = np.dtype([("end_ns", "i8"), ("bit_rate", "f8")])
"""Traffic of a minute, per second. Times are UTC."""


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """A day that ends with the recording."""

    end_ns: int
    """UTC."""
    minutes: Rows[MINUTE]
    """dtype MINUTE, (n,), ascending."""
    events_ns: Array
    """UTC times of warnings and errors, (m,)."""


class RecordedDay:
    """Reads the day, and later what has come since."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._sums: Recording | None = None
        self._minutes: list[tuple[int, float]] = []
        self._events: list[int] = []
        self._day = Day(0, np.empty(0, MINUTE), np.empty(0, "i8"))
        self._looked_s = -_AGAIN_S

    def close(self) -> None:
        if self._sums is not None:
            self._sums.close()

    def read(self) -> Day:
        """Return the day, at most a minute old."""
        if time.monotonic() - self._looked_s >= _AGAIN_S:
            self._looked_s = time.monotonic()
            end_ns = int(self._recording.moments().max(initial=0))
            begin_ns = end_ns - DAY_NS
            for item in self._sums_since(max(begin_ns, *(at for at, _ in self._minutes[-1:]), 0)):
                total = item.rows["bytes"].sum() + sum(one.bytes for one in item.rest)
                self._minutes.append((item.end_utc_ns, int(total) * 8 / max(item.seconds, 1.0)))
            since_ns = max(begin_ns, self._day.end_ns)
            self._events += [
                item.utc_ns
                for item in self._recording.items(since_ns, end_ns, kind=FrameKind.EVENT)
                if isinstance(item, Event) and item.severity != "info"
            ]
            self._minutes = [each for each in self._minutes if each[0] > begin_ns]
            self._events = [each for each in self._events if each > begin_ns]
            minutes = np.array(self._minutes, MINUTE)
            self._day = Day(end_ns, minutes, np.array(self._events, "i8"))
        return self._day

    def _sums_since(self, utc_ns: int) -> list[Snapshot]:
        with suppress(UsageError):
            # The first minute may not be over.
            self._sums = self._sums or Recording(
                str(self._recording.directory), MINUTES, self._recording.run
            )
            found = self._sums.items(utc_ns)
            return [item for item in found if isinstance(item, Snapshot)]
        return []


def added(days: Sequence[Day]) -> Day:
    """Return the day of several recordings together; it ends with the last of them."""
    end_ns = max(day.end_ns for day in days)
    rows = np.concatenate([day.minutes for day in days])
    # Sums of minutes end with the last window of the minute.
    minutes, of = np.unique((rows["end_ns"] - 1) // MINUTE_NS, return_inverse=True)
    sums = np.zeros(len(minutes), MINUTE)
    sums["end_ns"] = (minutes + 1) * MINUTE_NS
    np.add.at(sums["bit_rate"], of, rows["bit_rate"])
    events = np.sort(np.concatenate([day.events_ns for day in days]))
    begin_ns = end_ns - DAY_NS
    return Day(end_ns, sums[sums["end_ns"] > begin_ns], events[events > begin_ns])


def day_pieces(day: Day, moment_ns: int, cells: int) -> Pieces:
    """Return the day on a line of so many cells, with its end and its scale behind it.

    A sign marks events, another one the moment.
    """
    begin_ns, cell_ns = day.end_ns - DAY_NS, DAY_NS / cells
    values, marked = np.full(cells, np.nan), np.zeros(cells, bool)

    def places(times: Array) -> Array:
        return np.clip((times - begin_ns) // cell_ns, 0, cells - 1).astype("i8")

    np.fmax.at(values, places(day.minutes["end_ns"] - 1), day.minutes["bit_rate"])
    marked[places(day.events_ns)] = True
    scale = round_scale(np.fmax.reduce(values, initial=0.0))
    here = int(places(np.array(moment_ns - 1)))
    parts = [
        sparkline(values[part], np.zeros(len(values[part]), bool), marked[part], scale)
        for part in (slice(here), slice(here + 1, None))
    ]
    top = f"  {bit_rate(scale)}" if len(day.minutes) else ""
    return (
        (" 24 h ", Tone.MUTED), *parts[0], (_HERE, Tone.WARN), *parts[1],
        (f" {clock(day.end_ns)}{top}", Tone.MUTED),
    )  # fmt: skip
