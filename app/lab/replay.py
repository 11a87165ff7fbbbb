"""Replaying a capture: its frames come in at the client's interface as they once did elsewhere.

A process of the lab sends them into the far end of the client's cable. The client takes none of
them but broadcast and multicast: none is for its own Ethernet address.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO

from app.lab.capture import CaptureFile
from app.lab.sender import READ_BYTES, SendReport
from bpf.errors import ProbedeckError, UsageError
from probes.snapshot import Event

if TYPE_CHECKING:
    from app.lab import Lab

_REPORT_BYTES = 1 << 16
_LEAVE_S = 1.0
"""For the process to tell how far it came."""


def speed_of(text: str) -> float:
    """A factor, or `max`, as `Replay` takes it; raises UsageError."""
    try:
        return 0.0 if text == "max" else float(text)
    except ValueError:
        hint = "how much faster than recorded, such as 2 or 0.5, or max"
        raise UsageError(f"--speed {text!r} is no number", hint=hint) from None


class Replay:
    """A capture to be replayed in a lab.

    `speed` divides the time between its frames; 0: there is none. `delay` is how many seconds
    nothing comes before, for conditions that compare with that. Raises UsageError for a file that
    is no capture or can't be replayed, and for another speed.
    """

    def __init__(self, path: str, speed: float = 1.0, *, delay: float = 0.0) -> None:
        if not (math.isfinite(speed) and speed >= 0):
            raise UsageError(f"a speed of {speed:g} is not possible", hint="0: without a pause")
        self.path = path
        self.speed = speed
        self.delay = delay
        with self.open() as file:
            CaptureFile(file, path)

    def open(self) -> BinaryIO:
        """The file; raises UsageError."""
        try:
            file = open(self.path, "rb", buffering=READ_BYTES)  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise UsageError(
                f"{self.path} is not a file of its own", hint="write the capture to one"
            )
        return file

    @contextmanager
    def running(
        self, lab: Lab, publish: Callable[[Event], None], over: Callable[[], None]
    ) -> Iterator[None]:
        """Replay it; where the block is left before the end, it stops.

        At the end another thread publishes what became of it, and then calls `over`. Raises
        UsageError and ProbedeckError.
        """
        replaying = lab.replay(self)

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
    """A replay that has begun."""

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports

    def wait(self) -> SendReport:
        """Wait until the replay ends; call it once. Raises ProbedeckError if its process ended."""
        with self._reports, contextlib.suppress(OSError):
            if report := self._reports.recv(_REPORT_BYTES):
                return SendReport.parse(report)
        raise ProbedeckError("the replay was cut short: its process has ended")

    def stop(self) -> None:
        """Have it stop where it is; nothing happens where it is over."""
        with contextlib.suppress(OSError):
            self._reports.shutdown(socket.SHUT_WR)
