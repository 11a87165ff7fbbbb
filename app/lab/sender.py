"""The process that replays a capture: it sends the frames into the far end of a cable."""

from __future__ import annotations

import errno
import fcntl
import json
import select
import socket
import struct
import time
from dataclasses import asdict, dataclass, field

from app.lab import netns
from app.lab.capture import FRAME_HEADER, MAX_LATE_NS, READ_BYTES, CaptureFile, link_words
from bpf.machine import enter_network, wake_precisely
from bpf.quantities import duration

_SEND_BUFFER_BYTES = 1 << 16
"""Most bytes of unreceived frames: they fit the shortest queue of the cable, 256 frames."""
_LOOK_FRAMES = 256
"""Frames without a pause before the next check for a stop."""
_LONGEST = netns.MAX_MTU + FRAME_HEADER + 4
"""Most bytes of a frame, with a VLAN tag; no cable takes longer frames."""
_LATE_S = 0.1
"""Shortest delay that the report mentions."""
_SIOCGIFMTU = 0x8921


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
    skipped: float = 0.0
    """Seconds without frames that the replay left out."""
    mtu: int = netns.MTU
    """Most bytes of a packet on the cable."""

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
        parts = [f"replayed {self.sent}{of} frames of {name} in {duration(self.seconds)}"]
        counts = {
            f"longer than the cable's {self.mtu} bytes": self.too_long,
            "too short for Ethernet": self.too_short,
            **{f"of link type {link_words(kind)}": n for kind, n in self.left_out.items()},
            "cut when they were captured and filled up with zeros": self.filled,
        }
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        if self.skipped:
            parts.append(f"{duration(self.skipped)} without frames left out")
        if self.late > _LATE_S:
            parts.append(f"the last one {duration(self.late)} late")
        ends = f"; the file is not whole: {self.broken}" if self.broken else ""
        ends += "; it was stopped before the end" if self.stopped else ""
        return ", ".join(parts) + ends


def serve(
    ns: int, interface: str, file: int, reports: int, speed: float, begin_ns: int, max_gap: float
) -> None:
    """Replay `file` at an interface of namespace `ns`, and send the report.

    The replay starts at `begin_ns` of CLOCK_MONOTONIC or later. `speed` divides the time between
    frames; 0 sends without pauses. At most `max_gap` seconds of the capture lie between two frames.
    Closing the other end of `reports` stops the replay.
    """
    enter_network(ns)
    wake_precisely()
    with (
        socket.socket(fileno=reports) as control,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as cable,
        open(file, "rb", buffering=READ_BYTES) as capture,
    ):
        cable.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        cable.bind((interface, 0))
        schedule = _Schedule(speed, begin_ns, max_gap)
        outcome = _replay(CaptureFile(capture, ""), cable, control, schedule)
        control.send(outcome.dump())


class _Schedule:
    """When each frame of a capture is due."""

    def __init__(self, speed: float, begin_ns: int, max_gap: float) -> None:
        self.speed = speed
        self._max_gap_ns = max_gap * 1e9
        self.start_ns = begin_ns
        """When the first frame is due."""
        self._latest_ns: int | None = None
        self._passed_ns = 0
        """From the first frame to the latest one, without gaps that are left out."""
        self.skipped_ns = 0

    def due_ns(self, time_ns: int) -> int:
        """Return when the next frame, captured at `time_ns`, is due."""
        if self._latest_ns is None:
            self.start_ns = max(self.start_ns, time.monotonic_ns())
            self._latest_ns = time_ns
        gap_ns = time_ns - self._latest_ns
        if gap_ns > self._max_gap_ns:
            self.skipped_ns += gap_ns - round(self._max_gap_ns)
            gap_ns = round(self._max_gap_ns)
        self._passed_ns += gap_ns if gap_ns >= -MAX_LATE_NS else 0
        self._latest_ns = time_ns
        return self.start_ns + (round(self._passed_ns / self.speed) if self.speed else 0)


def _replay(
    capture: CaptureFile, cable: socket.socket, control: socket.socket, schedule: _Schedule
) -> SendReport:
    counts = dict.fromkeys(("sent", "too_long", "too_short"), 0)
    frames = filled = 0
    due_ns = 0
    stopped = False
    for time_ns, data, length in capture:
        due_ns = schedule.due_ns(time_ns)
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
        seconds=max(0, end_ns - schedule.start_ns) / 1e9,
        late=max(0, end_ns - due_ns) / 1e9 if schedule.speed and frames else 0.0,
        broken=capture.broken,
        stopped=stopped,
        skipped=schedule.skipped_ns / 1e9 if schedule.speed else 0.0,
        mtu=_mtu_of(cable),
    )


def _mtu_of(cable: socket.socket) -> int:
    interface = cable.getsockname()[0].encode()
    answer = fcntl.ioctl(cable, _SIOCGIFMTU, struct.pack("16s24x", interface))
    mtu: int = struct.unpack_from("i", answer, 16)[0]
    return mtu


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
