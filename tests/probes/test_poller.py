"""The poller: when it polls, and how it ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bpf.errors import ProbedeckError
from probes.poller import Poller
from probes.snapshot import Event, Snapshot


class FakeProbe:
    """Windows without a kernel; `during` runs inside each poll."""

    name = "fake"

    def __init__(self) -> None:
        self.alarm_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.polls = 0
        self.during: Callable[[], None] = lambda: None

    def relieve(self) -> bool:
        return False

    def export(self) -> tuple[Snapshot]:
        self.polls += 1
        self.during()
        now = time.monotonic_ns()
        rows = np.zeros(0, "u8")
        return (Snapshot("fake", "lo", self.polls, 1, now, now, now, rows, {}, 0.0, 0, 0),)

    def close(self) -> None:
        os.close(self.alarm_fd)


@pytest.fixture
def probe() -> Iterator[FakeProbe]:
    fake = FakeProbe()
    yield fake
    fake.close()


def started(
    probe: FakeProbe, interval: float, first: float | None = None
) -> tuple[Poller, list[Snapshot | Event]]:
    published: list[Snapshot | Event] = []
    poller = Poller(probe, interval, published.append, first=first)
    poller.start()
    return poller, published


def test_what_is_stopped_at_once_has_polled_once(probe: FakeProbe) -> None:
    poller, published = started(probe, 60)
    poller.stop()
    assert [item.window for item in published if isinstance(item, Snapshot)] == [1]


def test_a_stop_during_a_poll_is_followed_by_another(probe: FakeProbe) -> None:
    """Packets that came after the first poll's swap are in the second poll's window."""
    polling, stopping = threading.Event(), threading.Event()

    def wait_in_the_first() -> None:
        if probe.polls == 1:
            polling.set()
            stopping.wait(5)

    probe.during = wait_in_the_first
    poller, published = started(probe, 60, first=0)
    assert polling.wait(5)
    stop = threading.Thread(target=poller.stop)
    stop.start()
    time.sleep(0.1)
    stopping.set()
    stop.join()
    assert len(published) == 2


def test_windows_last_as_long_as_they_should(probe: FakeProbe) -> None:
    poller, published = started(probe, 0.2, first=0.05)
    time.sleep(0.6)
    poller.stop()
    assert len(published) in (4, 5)


def test_windows_of_two_pollers_end_together_also_after_an_early_one(probe: FakeProbe) -> None:
    """At whole multiples of the interval in UTC."""
    ends: dict[str, list[float]] = {}
    probe.during = lambda: ends.setdefault(threading.current_thread().name, []).append(time.time())
    pollers = [started(probe, 0.2)[0], started(probe, 0.2, first=0.03)[0]]
    for number, poller in enumerate(pollers):
        poller._thread.name = str(number)
    time.sleep(0.45)
    assert pollers[0].wait_for(time.monotonic_ns(), 5)
    time.sleep(0.4)
    for poller in pollers:
        poller.stop()
    late = {name: [end % 0.2 for end in each] for name, each in ends.items()}
    on_grid = {
        name: [end // 0.2 for end in each if end % 0.2 < 0.05] for name, each in ends.items()
    }
    assert set(on_grid["0"][1:-1]) <= set(on_grid["1"]), late
    assert len(set(on_grid["1"])) >= 4, late
    assert len(ends["0"]) >= 5, late


def test_a_window_is_ended_for_whoever_waits_for_it(probe: FakeProbe) -> None:
    poller, published = started(probe, 60, first=0)
    assert poller.wait_for(time.monotonic_ns(), 5)
    windows = len(published)
    assert poller.wait_for(time.monotonic_ns() - 10**9, 5)
    assert len(published) == windows
    time.sleep(0.02)
    asked = time.monotonic_ns()
    assert poller.wait_for(asked, 5)
    assert len(published) == windows + 1
    probe.during = lambda: time.sleep(0.2)
    time.sleep(0.02)
    assert not poller.wait_for(time.monotonic_ns(), 0.05)
    poller.stop()
    assert not poller.wait_for(time.monotonic_ns() + 10**9, 5)


def test_an_alarm_ends_a_window_early(probe: FakeProbe) -> None:
    def take_alarm() -> None:
        if probe.polls == 1:
            os.eventfd_read(probe.alarm_fd)

    probe.during = take_alarm
    poller, published = started(probe, 60)
    os.eventfd_write(probe.alarm_fd, 1)
    time.sleep(0.2)
    assert len(published) == 1
    poller.stop()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ProbedeckError("the disk is full"), "the disk is full"),
        (ZeroDivisionError("oh"), "fake ended: ZeroDivisionError: oh"),
    ],
)
def test_what_goes_wrong_is_published_and_ends_it(
    probe: FakeProbe, raised: Exception, said: str
) -> None:
    def fail() -> None:
        raise raised

    probe.during = fail
    poller, published = started(probe, 0.01)
    time.sleep(0.2)
    assert not poller._thread.is_alive()
    assert str(poller.failure) == said
    assert [item.text for item in published if isinstance(item, Event)] == [said]
    poller.stop()


def test_without_an_interval_only_the_last_window_is_polled(probe: FakeProbe) -> None:
    """S1.22: and the requested ones."""
    poller, published = started(probe, 0)
    time.sleep(0.3)
    assert not published
    poller.stop()
    assert len(published) == 1


def test_another_interval_ends_the_window_and_holds_from_then_on(probe: FakeProbe) -> None:
    poller, published = started(probe, 60)
    time.sleep(0.1)
    poller.interval = 60
    time.sleep(0.1)
    assert not published, "it is the same"
    poller.interval = 0.1
    time.sleep(0.35)
    assert len(published) in (3, 4)
    poller.interval = 0
    time.sleep(0.05)
    windows = len(published)
    time.sleep(0.3)
    assert len(published) == windows
    poller.interval = 0.1
    time.sleep(0.35)
    assert len(published) >= windows + 3
    poller.stop()
