"""A jump of the wall clock is an event; a clock that is slewed, or a host that slept, is none."""

from __future__ import annotations

import pytest

from probes.control import probe_runner
from probes.control.probe_runner import WallClock
from probes.snapshot import Event

SECOND = 10**9
HOUR = 3600 * SECOND


def told(monkeypatch: pytest.MonkeyPatch, *clocks: tuple[int, int]) -> list[Event]:
    """Return the events of CLOCK_BOOTTIME and wall clock at each window, the start first."""
    read = iter(clocks)
    monkeypatch.setattr(probe_runner, "_clocks", lambda: next(read))
    clock = WallClock()
    return [event for _ in clocks[1:] for event in clock.take()]


def test_a_jump_is_one_event_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [(n * SECOND, n * SECOND) for n in range(4)]
    ahead = [(n * SECOND, n * SECOND + HOUR) for n in range(4, 7)]
    back = [(n * SECOND, n * SECOND - HOUR) for n in range(7, 9)]
    events = told(monkeypatch, *at, *ahead, *back)
    assert [(each.severity, each.subject, each.value) for each in events] == [
        ("warning", "wall clock", 3600.0), ("warning", "wall clock", -7200.0),
    ]  # fmt: skip
    assert events[0].text == "the wall clock jumped by +1h00m: times of rows jump, too"


@pytest.mark.parametrize(
    "clocks",
    [
        [(n * SECOND, round(n * SECOND * 1.09)) for n in range(60)],  # chrony's fastest slew
        [(0, 0), (8 * HOUR, 8 * HOUR + 2 * SECOND)],  # suspended: CLOCK_BOOTTIME goes on
        [(0, 0), (SECOND, SECOND + SECOND // 5), (2 * SECOND, 2 * SECOND)],  # a busy machine
    ],
)
def test_small_differences_are_none(
    clocks: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, *clocks) == []
