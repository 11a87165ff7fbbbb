"""What the controller asks of a probe, and the thread that polls it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from bpf.errors import DeckError
from bpf.interface import Interface
from probes.snapshot import Event, Snapshot

_NICE = -10
_READING_NS = 100_000
"""Longer readings of the clocks were interrupted."""
_CLOCK_SET_NS = 1_000_000
Publish = Callable[[Snapshot | Event], None]


class Probe(Protocol):
    """Something that measures in windows."""

    name: str
    interface: Interface

    @property
    def alarm_fd(self) -> int:
        """Becomes readable when the probe wants its window to end early."""

    def poll(self) -> Snapshot:
        """End the window: swap, wait, drain. Called by one thread at a time."""

    def close(self) -> None:
        """Detach and give everything back."""


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
    Event, and ends it; an interface that has gone away does too, after a last poll.
    """

    def __init__(
        self, probe: Probe, interval: float, publish: Publish, *, first: float | None = None
    ) -> None:
        """`first` is how long the first window lasts; like all others where it is None."""
        self._probe = probe
        self._first = interval if first is None else first
        self.interval = interval
        """Seconds; a new value holds from the next window on."""
        self._publish = publish
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"poll {probe.name}", daemon=True)
        self.failure: DeckError | None = None
        """Why it ended by itself."""

    def start(self) -> None:
        self._thread.start()

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
        except DeckError as error:
            self._fail(error)
        except Exception as error:
            # A fault of ours: it must be seen, and what is attached taken away in good order.
            self._fail(DeckError(f"{self._probe.name} ended: {type(error).__name__}: {error}"))

    def _poll_until_stopped(self) -> None:
        interface = self._probe.interface
        was_up = True
        due = time.monotonic() + self._first
        with select.epoll() as epoll:
            epoll.register(self._wake_fd, select.EPOLLIN)
            epoll.register(self._probe.alarm_fd, select.EPOLLIN)
            while True:
                epoll.poll(max(0.0, due - time.monotonic()))
                last = self._stopping
                self._publish(self._probe.poll())
                if last:
                    return
                now = time.monotonic()
                if now >= due:
                    # Windows that could not be kept are not made up for.
                    due = max(due + self.interval, now)
                if not interface.exists():
                    raise DeckError(f"interface {interface.name} went away")
                if interface.is_up() != was_up:
                    was_up = not was_up
                    severity, word = ("info", "up") if was_up else ("warning", "down")
                    self._publish(Event.now(severity, interface.name, f"the interface is {word}"))

    def _fail(self, error: DeckError) -> None:
        self.failure = error
        self._publish(Event.now("error", self._probe.name, str(error)))
