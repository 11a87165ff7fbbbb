"""Frames of a recording, each built from the windows before its moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from app.console.live.day import Day, RecordedDay
from app.console.live.frames import MAX_EVENTS, Frame
from app.console.live.state import LiveState
from app.recording.frames import ENTRY, FrameKind
from app.recording.plane import RecordedPlane, losses_of
from app.recording.reader import Recording
from app.recording.segment import RecordedState, Segment
from bpf.arrays import Array
from probes.control_plane import ControlPlane
from probes.snapshot import Event, History, Losses, Snapshot

_LEAST_NS, _MOST_NS = 61 * 10**9, 600 * 10**9
"""A frame is built from the windows of so long: flows are shown for a minute."""
_MOST_ROWS = 300_000
"""Rows from which a frame is built, beyond the least time."""
_FORWARD = 16
"""Windows that the last frame may lead forward; beyond, a frame is built anew."""
_NEAR = 4
"""Segments in which a frame may begin."""
_SEGMENTS_OF_EVENTS = 24
"""Segments whose events a frame has: four hours."""
_SHIFT_S = time.monotonic() - time.time()
"""The way from UTC to `time.monotonic()`, for all recordings: their frames are compared."""


class Moments(Protocol):
    """The frames of one recording, or of several: the ways from a moment to another one.

    One thread uses it.
    """

    plane: ControlPlane
    """It answers as of the last frame."""

    def close(self) -> None:
        """Close the files."""

    def day(self) -> Day:
        """Return the last day of the recording."""

    def note(self, frame: Frame) -> str:
        """Return the run of a frame if other runs have its time, too; else an empty text."""
        return ""

    def times(self) -> tuple[Array, Array]:
        """Return the UTC times of all moments, (n,), and of all events, (m,), ascending."""

    def moments(self) -> Array:
        """Return the UTC times that have a frame, (n,), ascending."""

    def frame(self, utc_ns: int) -> Frame:
        """Return the frame of a moment."""

    @property
    def last_ns(self) -> int:
        """UTC: the last moment; 0 without windows."""
        moments = self.moments()
        return int(moments[-1]) if len(moments) else 0

    @property
    def first_ns(self) -> int:
        """UTC: the first moment; 0 without windows."""
        moments = self.moments()
        return int(moments[0]) if len(moments) else 0

    def at(self, utc_ns: int) -> Frame | None:
        """Return the last frame until a time; None if the recording begins later."""
        moments = self.moments()
        place = int(np.searchsorted(moments, utc_ns, "right")) - 1
        return self.frame(int(moments[place])) if place >= 0 else None

    def since(self, utc_ns: int) -> Frame | None:
        """Return the first frame from a time on; None if the recording ends before."""
        moments = self.moments()
        place = int(np.searchsorted(moments, utc_ns))
        return self.frame(int(moments[place])) if place < len(moments) else None

    def step(self, frame: Frame, by: int) -> Frame | None:
        """Return the frame `by` frames after `frame`, or before it if negative: at most the last
        one in that direction; None if `frame` is the last one."""
        moments = self.moments()
        # By whole nanoseconds: the first place behind the frame, or its own.
        place = int(np.searchsorted(moments, frame.utc_ns + (by > 0))) + by - (by > 0)
        place = max(0, min(place, len(moments) - 1))
        if not len(moments) or (int(moments[place]) - frame.utc_ns) * by <= 0:
            return None
        return self.frame(int(moments[place]))

    def move(self, frame: Frame, seconds: float) -> Frame | None:
        """Return a frame as `step` does, at least so many seconds away."""
        wanted = frame.utc_ns + round(seconds * 1e9)
        if seconds > 0:
            return self.since(wanted) or self.step(frame, 1 << 30)
        return self.at(wanted) or self.step(frame, -(1 << 30))


class RecordedFrames(Moments):
    """Builds the frames of one recording."""

    plane: RecordedPlane

    def __init__(self, directory: str, run: str = "") -> None:
        """Only of runs whose id begins with `run`. Raises UsageError without a recording."""
        self.plane = RecordedPlane()
        self._recording = Recording(directory, run=run)
        self._day = RecordedDay(self._recording)
        self._state = LiveState(_arrival)
        self._reached_ns = 0
        """UTC: moment of the last frame; 0: none."""
        self._parts: dict[int, bytes] = {}
        self._run: list[Segment] = []
        """The first segment of the run of the last frame."""

    def close(self) -> None:
        self._day.close()
        self._recording.close()

    @property
    def host(self) -> str:
        """Name of the host in the newest segment, else of the directory."""
        segments = self._recording.segments()
        return segments[-1].head.get("host") or self._recording.directory.name

    @property
    def losses(self) -> Losses:
        """Losses since the start of the run, until the last frame."""
        return self._state.losses

    def note(self, frame: Frame) -> str:
        ids = [run[0].run[:8] for run in self._recording.runs_at(frame.utc_ns)]
        return f"run {ids.pop()}, not {', '.join(ids)}" if ids[1:] else ""

    def day(self) -> Day:
        return self._day.read()

    def times(self) -> tuple[Array, Array]:
        return self.moments(), self._recording.event_times()

    def moments(self) -> Array:
        return self._recording.moments()

    def frame(self, utc_ns: int) -> Frame:
        further = (utc_ns - self._reached_ns) / 1e9 / (self.plane.interval or 1.0)
        segments = self._recording.runs_at(utc_ns)[-1]
        goes_on = segments[:1] == self._run and self._reached_ns > 0
        if not (goes_on and 0 <= further <= _FORWARD):
            self._run = segments[:1]
            self._begin(segments, utc_ns)
        if utc_ns > self._reached_ns:
            for item in self._recording.items(self._reached_ns, utc_ns, segments):
                if isinstance(item, RecordedState):
                    self._parts[item.part] = item.text
                    if not item.part:
                        self._state.lost_until_now(losses_of(item.text))
                    continue
                self._state.take(item)
                if isinstance(item, Snapshot):
                    # Names are learned; other items are in the state.
                    publish = self.plane.publish
                    (publish if item.probe == "names" else self.plane.history.append)(item)
            self._reached_ns = utc_ns
        self.plane.turn_to(dict(self._parts))
        return self._state.frame()

    def _begin(self, segments: list[Segment], utc_ns: int) -> None:
        """Begin a state some time before a moment, with the losses and the events until then.

        `segments`: the segments of the run until the moment.
        """
        begin_ns = _begin_of(segments[-_NEAR:], utc_ns)
        if not begin_ns and len(segments) > _NEAR:
            begin_ns = segments[-_NEAR].begin_ns
        self._state, self._parts = LiveState(_arrival), {}
        self.plane.history, self._reached_ns = History(), begin_ns
        for part in _states(segments, begin_ns):
            self._parts[part.part] = part.text
        self.plane.turn_to(dict(self._parts))
        self._state.begin(self.plane.losses if begin_ns else None)
        last = segments[-_SEGMENTS_OF_EVENTS:]
        for event in [*self._recording.items(0, begin_ns, last, FrameKind.EVENT)][-MAX_EVENTS:]:
            assert isinstance(event, Event)
            self._state.take(event)
        if not begin_ns and segments:
            # Items of another run belong to other frames.
            self._reached_ns = segments[0].begin_ns - 1


def _arrival(item: Snapshot) -> float:
    return item.end_utc_ns / 1e9 + _SHIFT_S


def _begin_of(segments: list[Segment], utc_ns: int) -> int:
    """Return the time from which a frame is built; 0: the begin of the run.

    A state follows until the moment: it has the losses since the start of the run.
    """
    entries = np.concatenate([np.empty(0, ENTRY), *(each.entries() for each in segments)])
    age = utc_ns - entries["utc_ns"].astype("i8")
    rows = np.cumsum(entries["rows"][::-1].astype("i8") * (age[::-1] >= 0))[::-1]
    old = (age > _MOST_NS) | ((age > _LEAST_NS) & (rows > _MOST_ROWS))
    states = (entries["kind"] == FrameKind.STATE) & (entries["table"] == 0) & (age >= 0)
    old &= entries["utc_ns"] < entries["utc_ns"][states].max(initial=0)
    return int(entries["utc_ns"][old].max(initial=0))


def _states(segments: list[Segment], utc_ns: int) -> Iterator[RecordedState]:
    """Yield the parts of the state until a time, in the segment of that time."""
    of = [each for each in segments if each.begin_ns <= utc_ns][-1:] or segments[:1]
    for segment in of:
        entries = segment.entries()
        until = max(utc_ns, int(entries["utc_ns"][:1].max(initial=0)))
        mask = (entries["kind"] == FrameKind.STATE) & (entries["utc_ns"] <= until)
        # The last of each part.
        places = {int(entries["table"][at]): at for at in np.flatnonzero(mask).tolist()}
        chosen = np.zeros(len(entries), bool)
        chosen[list(places.values())] = True
        for item in segment.items(chosen):
            if isinstance(item, RecordedState):
                yield item
