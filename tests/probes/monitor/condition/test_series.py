"""Series find the windows within a time, and keep no older ones."""

from __future__ import annotations

import numpy as np
import pytest

from probes.monitor.condition.series import METRIC_NAMES, MIN_WINDOWS, WindowSeries
from tests.probes.monitor.windows import row, series_of


def test_metrics_of_a_window() -> None:
    series = WindowSeries()
    series.append(
        row(
            packets=100, bytes=9000, tcp_packets=50, tcp_bytes=5000, udp_packets=30,
            udp_bytes=3000, icmp_packets=5, icmp_bytes=400, flows=12.5, flows_low=12, flows_high=13,
        ),
        5_000_000_000,
        0.5,
    )  # fmt: skip
    said = {
        name: float(series.column(name)[-1]) for name in (*METRIC_NAMES, "seconds", "flows_high")
    }
    assert said["other_packets"] == 15
    assert said["other_bytes"] == 600
    assert (said["packets"], said["icmp_bytes"], said["flows"]) == (100, 400, 12.5)
    assert (said["seconds"], said["flows_high"]) == (0.5, 13)


@pytest.mark.parametrize(
    ("interval", "seconds", "windows"),
    [
        (1.0, 60, 60),
        (0.1, 60, 600),
        (0.1, 0.5, 5),
        (1.0, 0.2, 1),
        (10.0, 60, 6),
        (0.3, 1, 3),
        (1.0, 1.5, 1),
    ],
)
def test_windows_of_a_time(interval: float, seconds: float, windows: int) -> None:
    series = series_of([{"packets": n} for n in range(700)], interval)
    key, whole = series.recent(seconds)
    assert whole
    assert series.column("packets")[key].tolist() == list(range(700 - windows, 700))


def test_a_jittery_clock_does_not_change_how_many() -> None:
    series, end = WindowSeries(60), 0.0
    for late in np.random.default_rng(1).uniform(-0.2, 0.2, 200):
        seconds = 1 + late
        end += seconds
        series.append(row(packets=1), round(end * 1e9), seconds)
        if len(series) > 61:
            key, whole = series.recent(60)
            assert whole
            assert abs(series.column("seconds")[key].sum() - 60) < 0.7


def test_a_time_is_whole_once_it_has_passed() -> None:
    series = WindowSeries(10)
    assert series.recent(10) == (slice(0), False)
    for number in range(1, 12):
        series.append(row(), number * 1_000_000_000, 1)
        assert series.recent(10)[1] == (number >= 10)


def test_a_gap_is_time_too_but_not_for_what_is_usual() -> None:
    series = WindowSeries(10)
    for end in (1, 2, 3, 4, 100, 101):
        series.append(row(packets=end), end * 1_000_000_000, 1)
    packets = series.column("packets")
    assert packets[series.recent(10)[0]].tolist() == [100, 101]
    assert packets[series.usual(4, 6, 3)].tolist() == [3, 4, 100, 101]
    assert packets[series.usual(1, 5, 3)].tolist() == [3, 4, 100]
    assert packets[series.usual(1, 0, 3)].tolist() == []


def test_no_more_is_kept_than_that_takes() -> None:
    series = WindowSeries(60)
    for number in range(1, 5000):
        series.append(row(packets=number), number * 1_000_000_000, 1)
        packets = series.column("packets")
        assert len(packets) <= 62
        assert packets[series.recent(60)[0]].sum() == sum(range(max(1, number - 59), number + 1))
    series.keep(100)
    series.keep(1)
    for number in range(5000, 5200):
        series.append(row(packets=number), number * 1_000_000_000, 1)
    assert 100 < len(series) <= 102


def test_a_few_are_kept_however_long_they_are() -> None:
    series = WindowSeries()
    for number in range(1, 100):
        series.append(row(), number * 300_000_000_000, 300)
    assert len(series) == MIN_WINDOWS
