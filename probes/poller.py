"""The polling thread of a probe, and the publisher that hands its items to listeners."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, ParamSpec, Protocol

from bpf.errors import ProbedeckError
from probes.snapshot import Event, History, Item, Snapshot

_LONGEST_SLEEP_S = 3600.0
_SHORTEST_FIRST_S = 0.25
"""Least seconds of a first window, or half the interval: rates of a shorter one say little."""
_TOGETHER_NS = 2_000_000
"""Windows that end within this time end together."""
Publish = Callable[[Item], None]
_P = ParamSpec("_P")


class Listeners(Generic[_P]):
    """Calls listeners with each published value. Any thread may call the methods."""

    _listeners: tuple[Callable[_P, object], ...] = ()
    """Replaced, not changed."""

    def listen(self, listener: Callable[_P, object]) -> None:
        """Call `listener` from now on, in threads that must not wait."""
        self._listeners = (*self._listeners, listener)

    def publish(self, *values: _P.args, **named: _P.kwargs) -> None:
        for listener in self._listeners:
            listener(*values, **named)


class Publisher(Listeners[[Item]]):
    """Publishes windows and events: keeps the windows, calls listeners, then the followers."""

    def __init__(self, *followers: Callable[[Item], Iterable[Event]]) -> None:
        """Each of `followers` returns the events that an item leads to."""
        self.history = History()
        """The last snapshots of every probe."""
        self._followers = followers

    def publish(self, item: Item) -> None:
        if isinstance(item, Snapshot):
            self.history.append(item)
        super().publish(item)
        for follow in self._followers:
            for event in follow(item):
                self.publish(event)


class Probe(Protocol):
    """A source of windows."""

    @property
    def name(self) -> str: ...

    @property
    def alarm_fd(self) -> int:
        """Descriptor that becomes readable when the window must end early; -1: none."""

    def export(self) -> Sequence[Item]:
        """End the window: swap, wait, drain. Return the items to publish."""

    def relieve(self) -> bool:
        """Make room in full tables while the window goes on; False if the window must end."""


class UtcClock:
    """Converts CLOCK_MONOTONIC to UTC, so that adjoining windows adjoin in UTC too.

    The offset changes only by more than a millisecond, when somebody sets the clock: smaller
    differences come from the time between the two readings.
    """

    def __init__(self) -> None:
        self._offset_ns = 0
        self.given = False
        """Whether moments come in UTC already, see `BuiltinProbe.keep_time`."""

    def utc_ns(self, monotonic_ns: int) -> int:
        """Return a recent moment as nanoseconds since the epoch."""
        if self.given:
            return monotonic_ns
        while True:
            before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            if after - before < 100_000:
                break  # A longer reading was interrupted.
        if abs(utc - before - self._offset_ns) > 1_000_000:
            self._offset_ns = utc - before
        return monotonic_ns + self._offset_ns


class Poller:
    """One thread for one probe: polls at the end of each interval, or earlier on the probe's alarm.

    Windows end at whole multiples of the interval in UTC: windows of several probes, and of hosts
    with the same time, begin and end together. A window that ends early does not move the next.
    `stop` polls and publishes the last window. An error is published as an Event and ends the
    poller.
    """

    def __init__(
        self, probe: Probe, interval: float, publish: Publish, *, first: float | None = None
    ) -> None:
        """The first window lasts `first` seconds; None: about as long as the others."""
        self._probe = probe
        self._first = first
        self._interval = interval
        self._publish = publish
        self._stopping = False
        self.lock = threading.RLock()
        """Held from the end of a window until its items are published."""
        self._wanted_ns = 0
        """A window is to end at this time or later, CLOCK_MONOTONIC."""
        self._ended_ns = 0
        """No later than the end of the last published window."""
        self._ended = threading.Condition()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"poll {probe.name}", daemon=True)
        self.failure: ProbedeckError | None = None
        """Error that ended the thread; None while it runs."""

    def start(self) -> None:
        self._thread.start()

    def export(self) -> None:
        """End the window and publish its items, by any thread."""
        with self.lock:
            now_ns = time.monotonic_ns()
            self.publish(self._probe.export())
        with self._ended:
            self._ended_ns = now_ns
            self._ended.notify_all()

    def wait_for(self, end_ns: int, timeout: float) -> bool:
        """Have the thread end a window at `end_ns` (CLOCK_MONOTONIC, in the past) or later, and
        wait until it is published. Returns False if that takes longer than `timeout` seconds.

        The caller may hold locks: it takes none of the probe's.
        """
        with self._ended:
            if not self._has_ended(end_ns) and not self._over:
                self._wanted_ns = end_ns
                os.eventfd_write(self._wake_fd, 1)
                self._ended.wait_for(lambda: self._over or self._has_ended(end_ns), timeout)
            return self._has_ended(end_ns)

    @property
    def _over(self) -> bool:
        return self._stopping or self.failure is not None

    def _has_ended(self, end_ns: int) -> bool:
        return self._ended_ns >= end_ns - _TOGETHER_NS

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
        with self._ended:
            self._stopping = True
            self._ended.notify_all()
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
        interval, first = self._interval, self._first
        due = self._due(first=True) if first is None else time.monotonic() + first
        with select.epoll() as epoll:
            epoll.register(self._wake_fd, select.EPOLLIN)
            if self._probe.alarm_fd >= 0:
                epoll.register(self._probe.alarm_fd, select.EPOLLIN)
            while True:
                woken = epoll.poll(max(0.0, min(due - time.monotonic(), _LONGEST_SLEEP_S)))
                # Before the reasons for it: a later one wakes the thread again.
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                last, changed = self._stopping, interval != self._interval
                over = time.monotonic() >= due
                alarm = any(fd != self._wake_fd for fd, _ in woken)
                ends = over or last or changed or not self._has_ended(self._wanted_ns)
                if ends or (alarm and not self._probe.relieve()):
                    self.export()
                if last:
                    return
                if over or changed:
                    # Late windows are skipped, not caught up.
                    interval, due = self._interval, self._due(first=changed)

    def _due(self, *, first: bool) -> float:
        """Return the next end of a window, in seconds of CLOCK_MONOTONIC."""
        interval = self._interval
        if not interval:
            return math.inf
        least = min(interval / 2, _SHORTEST_FIRST_S) if first else interval / 10
        return time.monotonic() + least + -(time.time() + least) % interval

    def _fail(self, error: ProbedeckError) -> None:
        with self._ended:
            self.failure = error
            self._ended.notify_all()
        self._publish(Event.now("error", self._probe.name, str(error)))
