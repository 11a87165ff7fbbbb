"""Which moment the screens show: the present, one that is kept, and one that it is compared to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from textual.app import App

from app.commands.moment import moment
from bpf.errors import UsageError
from widgets.format import age, clock
from widgets.status import StatusItem
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.live.paths import PathView
    from app.console.live.state import Frame, State
    from app.console.live.timeline import Timeline

SPANS = (60.0, 300.0, 900.0, 3600.0, math.inf)
"""Seconds that charts may look back; the last one is all there is."""
_MINUTE = 60.0


class MomentApp(App[int]):
    """An app whose screens show a frame: that of the present, or one of the past."""

    state: State
    present: Frame
    """What there was at the last update, paused or not."""
    frame: Frame
    """What the screens show; while paused it stays what it is."""
    timeline: Timeline
    """The frames of the past."""

    def __init__(self) -> None:
        super().__init__(ansi_color=False)
        self.marked: Frame | None = None
        """What the frame is compared to."""
        self.span = SPANS[0]
        """Seconds that charts look back."""
        self._paused = False
        self._pause_reason = ""
        """Why the frame that is paused at is shown, where it was not asked for by its time."""

    def open_moments(self) -> None:
        """Begin to take windows in; before that there is no moment."""
        # numpy and the probes' tables, which the first paint does without.
        from app.console.live.state import State
        from app.console.live.timeline import Timeline

        self.state, self.timeline = State(), Timeline()
        self.frame = self.present = self.state.frame()

    @property
    def paused(self) -> bool:
        """Whether the screens stay at a moment; everything goes on beside that."""
        return self._paused

    @property
    def elsewhen(self) -> bool:
        """Whether anything but the present by itself is shown."""
        return self._paused or self.marked is not None

    @property
    def compared(self) -> tuple[Frame, Frame] | None:
        """The earlier and the later of two frames, where two are looked at."""
        if self.marked is None:
            return None
        first, last = sorted((self.marked, self.frame), key=lambda frame: frame.at)
        return first, last

    def refresh_view(self) -> None:
        """Bring the frame up to date, and the screen in front; a paused one stays as it was."""
        self.present = self.state.frame()
        self.timeline.keep(self.present)
        if not self._paused:
            self.frame = self.present

    def pause_at(self, frame: Frame, reason: str = "") -> None:
        """Have a frame shown from the next `refresh_view` on; `reason` is why, if not for its
        time."""
        self.frame, self._paused, self._pause_reason = frame, True, reason

    def frame_since(self, utc_ns: int) -> Frame:
        """The first frame that knows what happened at a time. Raises UsageError."""
        first = next(iter(self.timeline.frames), None)
        if first is None or first.last is None or utc_ns < first.last.start_utc_ns:
            raise UsageError(f"nothing is kept of {clock(utc_ns)} UTC", hint=self.kept_since())
        return self.timeline.since(utc_ns) or self.present

    def _show_moment(self, frame: Frame) -> None:
        self.pause_at(frame)
        self.refresh_view()

    def leave_moment(self) -> bool:
        """End a comparison, or else go back to the present; whether there was one of them."""
        if self.marked is not None:
            self.marked = None
            self.refresh_view()
        elif self._paused:
            self.do_time_live()
        else:
            return False
        return True

    def path_past(self) -> Iterator[PathView]:
        """Views whose bins have the frame's last `span` seconds, newest first."""
        from app.console.live.paths import SECONDS

        yield from (frame.paths for frame in self.timeline.back(self.frame, SECONDS - 1, self.span))

    def kept_since(self) -> str:
        """A hint at the first moment that is kept."""
        frames = self.timeline.frames
        return f"kept since {clock(frames[0].utc_ns)} UTC" if frames else "there was no window yet"

    def moment_badge(self) -> StatusItem | None:
        """What the status strip begins with while paused."""
        if not self._paused:
            return None
        told = f"PAUSED {clock(self.frame.utc_ns)} UTC" if self.frame.utc_ns else "PAUSED"
        return StatusItem(told, Tone.WARN, badge=True)

    def moment_items(self) -> list[StatusItem]:
        """What follows that in the strip."""
        items = []
        if self._paused and self.frame.at:
            ago = age(time.monotonic() - self.frame.at)
            items.append(StatusItem(f"{ago} ago", Tone.WARN, priority=1))
        if self._pause_reason:
            items.append(StatusItem(self._pause_reason, Tone.ACCENT, priority=1))
        if self.compared is not None:
            words = (
                clock(frame.utc_ns) if self._paused or frame is self.marked else "now"
                for frame in self.compared
            )
            items.append(StatusItem(f"COMPARING {' with '.join(words)}", Tone.ACCENT, badge=True))
        return items

    def do_view_pause(self) -> None:
        if self._paused:
            self.do_time_live()
        else:
            self._show_moment(self.frame)

    def do_time_live(self) -> None:
        self._paused, self._pause_reason = False, ""
        self.refresh_view()

    def do_time_back(self, windows: int = 1) -> None:
        self._turn_to(self.timeline.step(self.frame, -windows))

    def do_time_forward(self, windows: int = 1) -> None:
        self._turn_to(self.timeline.step(self.frame, windows))

    def do_time_back_minute(self) -> None:
        self._turn_to(self.timeline.move(self.frame, -_MINUTE))

    def do_time_forward_minute(self) -> None:
        self._turn_to(self.timeline.move(self.frame, _MINUTE))

    def _turn_to(self, frame: Frame | None) -> None:
        if frame is None:
            raise UsageError("there is no other window in that direction", hint=self.kept_since())
        self._show_moment(frame)

    def do_time_go(self, text: str) -> None:
        wanted = moment(text, self.present.utc_ns or time.time_ns())
        if (frame := self.timeline.until(wanted)) is None:
            raise UsageError(f"nothing is kept of {text}", hint=self.kept_since())
        self._show_moment(frame)

    def do_time_mark(self) -> None:
        if self.marked is not None:
            self.marked = None
        elif self.frame.last is None:
            raise UsageError("there is no moment to compare to", hint=self.kept_since())
        else:
            self.marked = self.frame
        self.refresh_view()

    def do_time_zoom_in(self) -> None:
        self._zoom(-1)

    def do_time_zoom_out(self) -> None:
        self._zoom(1)

    def _zoom(self, by: int) -> None:
        place = SPANS.index(self.span) + by
        self.span = SPANS[max(0, min(place, len(SPANS) - 1))]
        self.refresh_view()
