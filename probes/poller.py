"""What the controller asks of a probe, and the thread that polls it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bpf.attach.interface import Interface
from bpf.errors import ProbedeckError
from probes.snapshot import Event, Item

_NICE = -10
_READING_NS = 100_000
"""Longer readings of the clocks were interrupted."""
_CLOCK_SET_NS = 1_000_000
_LOOK_S = 1.0
"""How often it is seen whether the interfaces are still there."""
Publish = Callable[[Item], None]


class Probe(Protocol):
    """Something that measures in windows."""

    @property
    def name(self) -> str: ...

    @property
    def interfaces(self) -> Sequence[Interface]:
        """What it watches; with the last of them gone it ends."""

    @property
    def alarm_fd(self) -> int:
        """Becomes readable when the probe wants its window to end early; -1: it never does."""

    def export(self) -> Sequence[Item]:
        """End the window: swap, wait, drain. What came of it, to be published."""


class UtcClock:
    """CLOCK_MONOTONIC as UTC, so that windows that adjoin do so in UTC too.

    The two clocks run alike until somebody sets one: smaller differences are only the time that
    passes between reading the one and the other.
    """

    def __init__(self) -> None:
        self._offset_ns = 0

    def utc_ns(self, monotonic_ns: int) -> int:
        """A moment of now or of shortly before, as nanoseconds since the epoch."""
        while True:
            before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            if after - before < _READING_NS:
                break
        if abs(utc - before - self._offset_ns) > _CLOCK_SET_NS:
            self._offset_ns = utc - before
        return monotonic_ns + self._offset_ns


class Poller:
    """One thread for one probe: polls at each interval's end, or earlier on the probe's alarm.

    The last window is polled and published when it is stopped. What goes wrong is published as an
    Event, and ends it; the last of its interfaces going away does too, after a last poll.
    """

    def __init__(
        self, probe: Probe, interval: float, publish: Publish, *, first: float | None = None
    ) -> None:
        """`first` is how long the first window lasts; like all others where it is None."""
        self._probe = probe
        self._first = interval if first is None else first
        self._interval = interval
        self._publish = publish
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"poll {probe.name}", daemon=True)
        self.failure: ProbedeckError | None = None
        """Why it ended by itself."""

    def start(self) -> None:
        self._thread.start()

    @property
    def interval(self) -> float:
        """Seconds; 0: only the last window is polled. A new value ends the window."""
        return self._interval

    @interval.setter
    def interval(self, seconds: float) -> None:
        if seconds != self._interval:
            self._interval = seconds
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Poll once more, publish that, and end; returns when the thread has ended."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        # Packets are lost when it comes late, and the screen can wait. Without the right to: well.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            self._poll_until_stopped()
        except ProbedeckError as error:
            self._fail(error)
        except Exception as error:
            # A fault of ours: it must be seen, and what is attached taken away in good order.
            self._fail(ProbedeckError(f"{self._probe.name} ended: {type(error).__name__}: {error}"))

    def _poll_until_stopped(self) -> None:
        down: set[str] = set()
        due = time.monotonic() + self._first if self._interval else math.inf
        with select.epoll() as epoll:
            epoll.register(self._wake_fd, select.EPOLLIN)
            if self._probe.alarm_fd >= 0:
                epoll.register(self._probe.alarm_fd, select.EPOLLIN)
            while True:
                woken = epoll.poll(max(0.0, min(due - time.monotonic(), _LOOK_S)))
                last = self._stopping
                ends = bool(woken) or time.monotonic() >= due
                if ends:
                    self._export()
                if last:
                    return
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                    due = time.monotonic()  # the interval has changed
                now = time.monotonic()
                if now >= due and not self._stopping:
                    # Windows that could not be kept are not made up for.
                    due = max(due + self._interval, now) if self._interval else math.inf
                self._look_at_interfaces(down, exported=ends)

    def _export(self) -> None:
        for item in self._probe.export():
            self._publish(item)

    def _look_at_interfaces(self, down: set[str], *, exported: bool) -> None:
        """Tell of those that went down or up since the last look, by name in `down`."""
        interfaces = self._probe.interfaces
        if not any(interface.exists() for interface in interfaces):
            if not exported:
                self._export()
            raise ProbedeckError(f"interface {interfaces[0].name} went away")
        for interface in interfaces:
            if interface.is_up() == (interface.name in down):
                down ^= {interface.name}
                severity, word = "info", "is up"
                if interface.name in down:
                    severity, word = "warning", "is down" if interface.exists() else "went away"
                self._publish(Event.now(severity, interface.name, f"the interface {word}"))

    def _fail(self, error: ProbedeckError) -> None:
        self.failure = error
        self._publish(Event.now("error", self._probe.name, str(error)))
