"""The process that replays a capture: it sends its frames into the far end of a cable."""

from __future__ import annotations

import ctypes as ct
import errno
import json
import select
import socket
import time
from dataclasses import asdict, dataclass, field

from app.lab import netns
from app.lab.capture import CaptureFile, link_words

READ_BYTES = 1 << 20
"""Of a capture at once."""
_SEND_BUFFER_BYTES = 1 << 16
"""A frame counts until it has been received: so many at once overrun no queue of the cable, the
shortest of which takes 256."""
_LOOK_FRAMES = 256
"""After so many without a pause it is looked whether to stop."""
_LONGEST = 1 << 16
"""No cable takes more; of what claims to be longer no frame is made up."""
_LATE_S = 0.1
"""What is worth telling."""
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of a capture's frames; those that were not sent are of one of three kinds."""

    frames: int
    """That were read."""
    sent: int
    filled: int
    """Of those, such as were cut when they were captured; the rest of them is zeros."""
    too_long: int
    too_short: int
    """For Ethernet."""
    left_out: dict[int, int] = field(default_factory=dict)
    """Frames that can't be Ethernet's, by link type."""
    seconds: float = 0.0
    """From the first frame to the last."""
    late: float = 0.0
    """Seconds; how long after its time the last frame came."""
    broken: str = ""
    """How the file ends where it is not whole."""
    stopped: bool = False
    """Whether it was told to stop before the end."""

    @staticmethod
    def parse(text: bytes) -> SendReport:
        """The outcome that wrote itself as `text`."""
        values = json.loads(text)
        left_out = {int(kind): count for kind, count in values.pop("left_out").items()}
        return SendReport(**values, left_out=left_out)

    def dump(self) -> bytes:
        """The outcome for `parse`."""
        return json.dumps(asdict(self)).encode()

    @property
    def whole(self) -> bool:
        """Whether everything in the file was replayed as it was."""
        return self.sent == self.frames and not (self.filled or self.broken)

    def words(self, name: str) -> str:
        """All of it in a line, of the file `name`."""
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
    """Replay `file` at an interface of namespace `ns`, and report the outcome.

    It begins at `begin_ns` (CLOCK_MONOTONIC) at the earliest, `speed` divides the time between
    frames (0: none), and it stops where the other end of `reports` ends.
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
    """What became of it, a field of SendReport. Raises OSError where there is no cable any more."""
    while True:
        try:
            cable.send(frame)
            return "sent"
        except OSError as error:
            # Some kernels say so when a queue of the cable had no room for it.
            if error.errno == errno.ENOBUFS:
                continue
            if error.errno == errno.EMSGSIZE:
                return "too_long"
            if error.errno == errno.EINVAL:
                return "too_short"
            raise
