"""Replay of a capture: its frames arrive at the client's interface with their original timing.

A process of the lab sends them into the far end of the client's cable. The client accepts only
broadcast and multicast, because no frame has its Ethernet address.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Thread

from app.lab import netns
from app.lab.capture import FRAME_HEADER, CaptureFile, check_capture, open_capture
from app.lab.sender import SendReport
from bpf.errors import ProbedeckError, UsageError
from probes.snapshot import Event

MAX_GAP = 10.0
"""Longest time between two frames in seconds, by default."""
_MTU_FRAMES = 1_000_000
_REPORT_BYTES = 1 << 16
_LEAVE_S = 1.0
"""Longest wait for the report of a stopped replay."""


def speed_of(text: str) -> float:
    """Parse a factor or `max` for `Replay`. Raises UsageError."""
    try:
        return 0.0 if text == "max" else float(text)
    except ValueError:
        hint = "a factor, such as 2 (twice as fast as recorded), or max"
        raise UsageError(f"--speed {text!r} is no number", hint=hint) from None


class Replay:
    """A capture for a replay in a lab.

    `speed` divides the time between frames; 0 sends without pauses. A time without frames has at
    most `max_gap` seconds, before the division. The first frame comes after `delay` seconds,
    because conditions compare with the time before. Raises UsageError for a file that cannot be
    replayed, and for an impossible speed or gap.
    """

    def __init__(
        self, path: str, speed: float = 1.0, *, delay: float = 0.0, max_gap: float = MAX_GAP
    ) -> None:
        if not (math.isfinite(speed) and speed >= 0):
            raise UsageError(f"a speed of {speed:g} is not possible", hint="0: without a pause")
        if not max_gap >= 0:
            raise UsageError(f"a gap of {max_gap:g} s is not possible", hint="inf: of any length")
        self.path = path
        self.speed = speed
        self.max_gap = max_gap
        self.delay = delay
        check_capture(path)

    def mtu(self) -> int:
        """Return the MTU of a cable for the capture, by its first million frames."""
        with open_capture(self.path) as file:
            frames = islice(CaptureFile(file, self.path), _MTU_FRAMES)
            longest = max((frame.length for frame in frames), default=0)
        return min(max(longest - FRAME_HEADER, netns.MTU), netns.MAX_MTU)

    @contextmanager
    def running(
        self,
        start: Callable[[Replay], Replaying],
        publish: Callable[[Event], None],
        over: Callable[[], None],
    ) -> Iterator[None]:
        """Replay the capture during the block; leaving the block stops it.

        `start` is the method `Lab.replay`. At the end another thread publishes the report, then
        calls `over`. Raises UsageError and ProbedeckError.
        """
        replaying = start(self)

        def wait() -> None:
            try:
                outcome = replaying.wait()
                severity = "info" if outcome.whole else "warning"
                event = Event.now(severity, "replay", outcome.words(self.path))
            except ProbedeckError as error:
                event = Event.now("error", "replay", str(error))
            publish(event)
            over()

        thread = Thread(target=wait, name="replay", daemon=True)
        thread.start()
        try:
            yield
        finally:
            replaying.stop()
            thread.join(_LEAVE_S)


class Replaying:
    """A replay that runs."""

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports

    def wait(self) -> SendReport:
        """Wait for the report; call this once. Raises ProbedeckError if the process ended."""
        with self._reports, contextlib.suppress(OSError):
            if report := self._reports.recv(_REPORT_BYTES):
                return SendReport.parse(report)
        raise ProbedeckError("the replay was cut short: its process has ended")

    def stop(self) -> None:
        """Stop the replay, if it still runs."""
        with contextlib.suppress(OSError):
            self._reports.shutdown(socket.SHUT_WR)
