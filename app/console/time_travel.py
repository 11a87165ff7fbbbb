"""The moment that the screens show: the present, a frame of the past, or two frames compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from bpf.errors import UsageError
from bpf.quantities import age, clock, moment, zone, zone_offset_ns
from widgets.status import StatusItem
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.live.frames import Frame
    from app.console.live.paths import PathView
    from app.console.live.recorded import Moments
    from app.console.live.state import ShownHosts
    from app.console.live.timeline import Timeline

SPANS = (60.0, 300.0, 900.0, 3600.0, math.inf)
"""Seconds that charts may look back; the last span is everything."""
_MINUTE = 60.0
_MOMENT = 1e-3


class TimeTravel:
    """Pauses at frames of the past, steps through them, and compares two of them."""

    state: ShownHosts
    present: Frame
    """The state at the last update, paused or not."""
    frame: Frame
    """The frame that the screens show; while paused it does not change."""
    timeline: Timeline
    """The frames of the past in memory."""
    past: Moments | None = None
    """The frames of the run's recording; None until it is open."""

    def __init__(
        self, refresh: Callable[[], None], recording: Callable[[], Moments] | None = None,
        *, replays: bool = False,
    ) -> None:  # fmt: skip
        """`refresh` brings the screen in front up to date, and calls `advance`.

        `recording` opens the recording of the run, and raises UsageError before its first window.
        `replays`: the console shows this recording only, without a live run.
        """
        self._refresh = refresh
        self._recording = recording
        self.replays = replays
        self.playing = False
        """Whether a replay goes on, a window a second."""
        self.marked: Frame | None = None
        """The frame that `frame` is compared with."""
        self.span = SPANS[0]
        """Seconds that charts look back."""
        self.paused = False
        """Whether the screens stay at a frame; probes and time line go on."""
        self.pause_reason = ""
        """The event that led to the paused frame; empty if the user chose a time."""

    def open(self, state: ShownHosts) -> None:
        """Begin to take windows in; there is no frame before."""
        from app.console.live.timeline import Timeline

        self.state, self.timeline = state, Timeline()
        self.marked, self.paused, self.pause_reason = None, False, ""
        shown = None
        if self.past is not None and self.replays:
            # Other hosts at the same moment, or at the next one that they have.
            shown = self.past.at(self.frame.utc_ns) or self.past.since(self.frame.utc_ns)
        elif self.replays and self._recording is not None:
            self.past = self._recording()
        self.frame = self.present = shown or self.state.frame()

    @property
    def is_live(self) -> bool:
        """Whether the screens show the present, and compare it with nothing."""
        return not self.paused and self.marked is None

    @property
    def compared(self) -> tuple[Frame, Frame] | None:
        """The earlier and the later frame of a comparison; None without a comparison."""
        if self.marked is None:
            return None
        first, last = sorted((self.marked, self.frame), key=lambda frame: frame.at)
        return first, last

    @property
    def since_window(self) -> float:
        """Seconds since the last window."""
        return time.monotonic() - self.state.last_at

    def advance(self) -> None:
        """Keep the present in the time line, and show it unless paused."""
        if self.replays:
            self.present = self.frame
            return
        self.present = self.state.frame()
        self.timeline.keep(self.present)
        if not self.paused:
            self.frame = self.present

    def pause_at(self, frame: Frame, reason: str = "") -> None:
        """Show a frame from the next refresh on; for `reason` see `pause_reason`."""
        from app.console.live.timeline import whole

        self.frame, self.paused, self.pause_reason = whole(frame), True, reason

    def frame_since(self, utc_ns: int) -> Frame:
        """Return the first frame after a time. Raises UsageError if no frame is that old."""
        from app.console.live.timeline import whole

        frames = self.timeline.frames
        if not frames or frames[0].last is None or utc_ns < frames[0].last.start_utc_ns:
            if (past := self.recorded()) is not None and past.first_ns <= utc_ns:
                return past.since(utc_ns) or self.present
            raise UsageError(
                f"nothing is kept of {clock(utc_ns)} {zone()}", hint=self._kept_since()
            )
        found = next((frame for frame in frames if frame.utc_ns >= utc_ns), self.present)
        return whole(found)

    def leave(self) -> bool:
        """End the comparison, else go back to the present; False if there is neither."""
        if self.marked is not None:
            self.marked = None
            self._refresh()
        elif self.paused and not self.replays:
            self.do_time_live()
        else:
            return False
        return True

    def past_paths(self, host: str) -> Iterator[PathView]:
        """Views of a host whose bins have the frame's last `span` seconds, newest first.

        A single host has an empty name.
        """
        from app.console.live.paths import SECONDS

        frames = self.timeline.back(self.frame, SECONDS - 1, self.span)
        return (part.paths for frame in frames if (part := frame.of(host)) is not None)

    def _kept_since(self) -> str:
        frames = self.timeline.frames
        first = frames[0].utc_ns if frames else 0
        if (past := self.recorded()) is not None:
            first = past.first_ns or first
        return f"kept since {clock(first)} {zone()}" if first else "there was no window yet"

    def recorded(self) -> Moments | None:
        """Return the frames of the recording; None without one, or before its first window."""
        if self.past is None and self._recording is not None:
            with suppress(UsageError):
                self.past = self._recording()
        return self.past

    def _beyond(self, at: float) -> Moments | None:
        """Return the frames of the recording if those in memory begin after a time, as `at`."""
        frames = self.timeline.frames
        return self.recorded() if not frames or at < frames[0].at else None

    def status_items(self) -> list[StatusItem]:
        """Items of the status strip: age of the frame, reason of the pause, comparison."""
        items = []
        if self.paused and self.frame.at:
            ago = age(time.monotonic() - self.frame.at)
            items.append(StatusItem(f"{ago} ago", Tone.WARN, priority=1))
        if self.paused and self.past is not None and (note := self.past.note(self.frame)):
            items.append(StatusItem(note, Tone.WARN, priority=2))
        if self.pause_reason:
            items.append(StatusItem(self.pause_reason, Tone.ACCENT, priority=1))
        if self.compared is not None:
            words = (
                clock(frame.utc_ns) if self.paused or frame is self.marked else "now"
                for frame in self.compared
            )
            items.append(StatusItem(f"COMPARING {' with '.join(words)}", Tone.ACCENT, badge=True))
        return items

    def play(self) -> None:
        """Show the next window, if a replay goes on."""
        if self.playing and self.past is not None:
            found = self.past.step(self.frame, 1)
            self.playing = found is not None
            self._show(found or self.frame)

    def do_view_pause(self) -> None:
        if self.replays:
            self.playing = not self.playing
            self._refresh()
        elif self.paused:
            self.do_time_live()
        else:
            self._show(self.frame)

    def do_time_live(self) -> None:
        if self.replays:
            self._turn_to(self.past.at(self.past.last_ns) if self.past else None)
            return
        self.paused, self.pause_reason = False, ""
        self._refresh()

    def do_time_back(self, windows: int = 1) -> None:
        # A moment before this frame: of the first one in memory, too.
        past = self._beyond(self.frame.at - _MOMENT)
        self._turn_to((past or self.timeline).step(self.frame, -windows))

    def do_time_forward(self, windows: int = 1) -> None:
        self._turn_to((self._beyond(self.frame.at) or self.timeline).step(self.frame, windows))

    def do_time_back_minute(self) -> None:
        past = self._beyond(self.frame.at - _MINUTE)
        self._turn_to((past or self.timeline).move(self.frame, -_MINUTE))

    def do_time_forward_minute(self) -> None:
        self._turn_to((self._beyond(self.frame.at) or self.timeline).move(self.frame, _MINUTE))

    def _turn_to(self, frame: Frame | None) -> None:
        if frame is None:
            raise UsageError("there is no other window in that direction", hint=self._kept_since())
        self._show(frame)

    def do_time_go(self, text: str) -> None:
        now = self.past.last_ns if self.replays and self.past else self.present.utc_ns
        wanted = moment(text, now or time.time_ns(), zone_offset_ns())
        kept = [frame for frame in self.timeline.frames if frame.utc_ns <= wanted]
        past = None if kept else self.recorded()
        found = kept[-1] if kept else past.at(wanted) if past is not None else None
        if found is None:
            raise UsageError(f"nothing is kept of {text}", hint=self._kept_since())
        self._show(found)

    def _show(self, frame: Frame) -> None:
        self.pause_at(frame)
        self._refresh()

    def do_time_event_back(self) -> None:
        self._turn_to(_event_frame(self, -1))

    def do_time_event_forward(self) -> None:
        self._turn_to(_event_frame(self, 1))

    def do_time_mark(self) -> None:
        if self.marked is not None:
            self.marked = None
        elif self.frame.last is None:
            raise UsageError("there is no moment to compare to", hint=self._kept_since())
        else:
            self.marked = self.frame
        self._refresh()

    def do_time_zoom_in(self) -> None:
        self._zoom(-1)

    def do_time_zoom_out(self) -> None:
        self._zoom(1)

    def _zoom(self, by: int) -> None:
        index = SPANS.index(self.span) + by
        self.span = SPANS[max(0, min(index, len(SPANS) - 1))]
        self._refresh()


def _event_frame(time: TimeTravel, way: int) -> Frame | None:
    """Return the next frame in a direction, 1 or -1, that is the first to show an event."""
    import numpy as np  # the console draws before numpy is imported

    past = time.recorded()
    moments, events = past.times() if past is not None else (np.empty(0, "i8"),) * 2
    kept = [frame.utc_ns for frame in time.timeline.frames if frame.utc_ns]
    moments = np.union1d(moments, np.array(kept, "i8"))
    events = np.union1d(events, np.array([event.utc_ns for event in time.present.events], "i8"))
    at = np.searchsorted(moments, events)
    seen = np.unique(moments[at[at < len(moments)]])
    place = int(np.searchsorted(seen, time.frame.utc_ns + (way > 0))) - (way < 0)
    return time.frame_since(int(seen[place])) if 0 <= place < len(seen) else None
