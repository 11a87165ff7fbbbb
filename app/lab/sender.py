"""The process that replays a capture: it sends the frames into the far end of a cable."""

from __future__ import annotations

import ctypes as ct
import errno
import json
import select
import socket
import time
from dataclasses import asdict, dataclass, field

from app.lab import netns
from app.lab.capture import READ_BYTES, CaptureFile, link_words

_SEND_BUFFER_BYTES = 1 << 16
"""Most bytes of unreceived frames: they fit the shortest queue of the cable, 256 frames."""
_LOOK_FRAMES = 256
"""Frames without a pause before the next check for a stop."""
_LONGEST = 1 << 16
"""Most bytes of a frame; longer frames are not filled up, for no cable takes them."""
_LATE_S = 0.1
"""Shortest delay that the report mentions."""
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class SendReport:
    """Result of a replay. A frame is sent, too long, too short or left out."""

    frames: int
    """Frames in the file."""
    sent: int
    filled: int
    """Sent frames that the capture had cut; zeros replace the missing bytes."""
    too_long: int
    too_short: int
    """Too short for Ethernet."""
    left_out: dict[int, int] = field(default_factory=dict)
    """Number of frames that cannot become Ethernet frames, by link type."""
    seconds: float = 0.0
    """Time from the first frame to the last."""
    late: float = 0.0
    """Delay of the last frame in seconds."""
    broken: str = ""
    """The defect of the file; empty for a whole file."""
    stopped: bool = False
    """Whether the replay stopped before the end."""

    @staticmethod
    def parse(text: bytes) -> SendReport:
        values = json.loads(text)
        left_out = {int(kind): count for kind, count in values.pop("left_out").items()}
        return SendReport(**values, left_out=left_out)

    def dump(self) -> bytes:
        """Return the report as text for `parse`."""
        return json.dumps(asdict(self)).encode()

    @property
    def whole(self) -> bool:
        """Whether every frame of the file was sent unchanged."""
        return self.sent == self.frames and not (self.filled or self.broken)

    def words(self, name: str) -> str:
        """Return the report on file `name` as one line."""
        of = "" if self.stopped else f" of {self.frames}"
        parts = [f"replayed {self.sent}{of} frames of {name} in {self.seconds:.1f} s"]
        counts = {
            f"longer than the cable's {netns.MTU} bytes": self.too_long,
            "too short for Ethernet": self.too_short,
            **{f"of link type {link_words(kind)}": n for kind, n in self.left_out.items()},
            "cut when they were captured and filled up with zeros": self.filled,
        }
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        if self.late > _LATE_S:
            parts.append(f"the last one {self.late:.1f} s late")
        ends = f"; the file is not whole: {self.broken}" if self.broken else ""
        ends += "; it was stopped before the end" if self.stopped else ""
        return ", ".join(parts) + ends


def serve(ns: int, interface: str, file: int, reports: int, speed: float, begin_ns: int) -> None:
    """Replay `file` at an interface of namespace `ns`, and send the report.

    The replay starts at `begin_ns` of CLOCK_MONOTONIC or later. `speed` divides the time between
    frames; 0 sends without pauses. Closing the other end of `reports` stops the replay.
    """
    netns.setns(ns)
    ct.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with (
        socket.socket(fileno=reports) as control,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as cable,
        open(file, "rb", buffering=READ_BYTES) as capture,
    ):
        cable.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        cable.bind((interface, 0))
        outcome = _replay(CaptureFile(capture, ""), cable, control, speed, begin_ns)
        control.send(outcome.dump())


def _replay(
    capture: CaptureFile, cable: socket.socket, control: socket.socket, speed: float, begin_ns: int
) -> SendReport:
    counts = dict.fromkeys(("sent", "too_long", "too_short"), 0)
    frames = filled = 0
    first_ns: int | None = None
    start_ns = due_ns = begin_ns
    stopped = False
    for time_ns, data, length in capture:
        if first_ns is None:
            start_ns = due_ns = max(begin_ns, time.monotonic_ns())
            first_ns = time_ns
        elif speed:
            due_ns = start_ns + round((time_ns - first_ns) / speed)
        wait_ns = due_ns - time.monotonic_ns()
        # Unlike poll, Python's select knows microseconds.
        if (wait_ns > 0 or frames % _LOOK_FRAMES == 0) and select.select(
            [control], (), (), max(0, wait_ns) / 1e9
        )[0]:
            stopped = True
            break
        frames += 1
        what = "too_long" if length > _LONGEST else _send(cable, data.ljust(length, b"\0"))
        counts[what] += 1
        filled += what == "sent" and length > len(data)
    end_ns = time.monotonic_ns()
    return SendReport(
        frames=frames + capture.left_out.total(),
        filled=filled,
        **counts,
        left_out=dict(capture.left_out),
        seconds=max(0, end_ns - start_ns) / 1e9,
        late=max(0, end_ns - due_ns) / 1e9 if speed else 0.0,
        broken=capture.broken,
        stopped=stopped,
    )


def _send(cable: socket.socket, frame: bytes) -> str:
    """Send a frame and return its field of SendReport. Raises OSError if the cable is gone."""
    while True:
        try:
            cable.send(frame)
            return "sent"
        except OSError as error:
            # Some kernels report a full queue of the cable.
            if error.errno == errno.ENOBUFS:
                continue
            if error.errno == errno.EMSGSIZE:
                return "too_long"
            if error.errno == errno.EINVAL:
                return "too_short"
            raise
