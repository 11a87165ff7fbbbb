"""The polling thread of a probe."""

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

_LOOK_S = 1.0
"""Seconds between two checks of the interfaces."""
Publish = Callable[[Item], None]


class Probe(Protocol):
    """A source of windows."""

    @property
    def name(self) -> str: ...

    @property
    def interfaces(self) -> Sequence[Interface]:
        """Watched interfaces. The probe ends when the last of them goes away."""

    @property
    def alarm_fd(self) -> int:
        """Descriptor that becomes readable when the window must end early; -1: none."""

    def export(self) -> Sequence[Item]:
        """End the window: swap, wait, drain. Return the items to publish."""


class UtcClock:
    """Converts CLOCK_MONOTONIC to UTC, so that adjoining windows adjoin in UTC too.

    The offset changes only by more than a millisecond, when somebody sets the clock: smaller
    differences come from the time between the two readings.
    """

    def __init__(self) -> None:
        self._offset_ns = 0

    def utc_ns(self, monotonic_ns: int) -> int:
        """Return a recent moment as nanoseconds since the epoch."""
        while True:
            before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            if after - before < 100_000:
                break  # A longer reading was interrupted.
        if abs(utc - before - self._offset_ns) > 1_000_000:
            self._offset_ns = utc - before
        return monotonic_ns + self._offset_ns


class Poller:
    """One thread for one probe: polls at the end of each interval, or earlier on the probe's alarm.

    `stop` polls and publishes the last window. An error is published as an Event and ends the
    poller. If the last interface goes away, the poller polls once more and ends.
    """

    def __init__(
        self, probe: Probe, interval: float, publish: Publish, *, first: float | None = None
    ) -> None:
        """The first window lasts `first` seconds; None: as long as the others."""
        self._probe = probe
        self._first = interval if first is None else first
        self._interval = interval
        self._publish = publish
        self._stopping = False
        self.lock = threading.RLock()
        """Held from the end of a window until its items are published."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"poll {probe.name}", daemon=True)
        self.failure: ProbedeckError | None = None
        """Error that ended the thread; None while it runs."""

    def start(self) -> None:
        self._thread.start()

    def export(self) -> None:
        """End the window and publish its items, by any thread."""
        with self.lock:
            self.publish(self._probe.export())

    def publish(self, items: Sequence[Item]) -> None:
        """Publish the items of a window; the caller holds the lock since its end."""
        for item in items:
            self._publish(item)

    @property
    def interval(self) -> float:
        """Seconds; 0: only `stop` polls. A new value ends the window."""
        return self._interval

    @interval.setter
    def interval(self, seconds: float) -> None:
        if seconds != self._interval:
            self._interval = seconds
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Poll once more, publish the window, and join the thread."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        # A late poll loses packets; a late screen does not. Without CAP_SYS_NICE the default
        # priority stays.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
        try:
            self._poll_until_stopped()
        except ProbedeckError as error:
            self._fail(error)
        except Exception as error:
            # A bug: publish it, so that the operator sees it and the probe is detached in order.
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
                    self.export()
                if last:
                    return
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                    due = time.monotonic()  # The interval has changed.
                now = time.monotonic()
                if now >= due and not self._stopping:
                    # Late windows are skipped, not caught up.
                    due = max(due + self._interval, now) if self._interval else math.inf
                self._look_at_interfaces(down, exported=ends)

    def _look_at_interfaces(self, down: set[str], *, exported: bool) -> None:
        """Publish events of interfaces that went down or up; `down` has the names of those down.

        Raises ProbedeckError if all interfaces are gone.
        """
        interfaces = self._probe.interfaces
        if not any(interface.exists() for interface in interfaces):
            if not exported:
                self.export()
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
