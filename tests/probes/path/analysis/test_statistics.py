"""S3.20: loss with its limits, quantiles, jitter."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.arrays import Array
from probes.path.analysis.statistics import (
    MAX_RTT_NS,
    Ordered,
    cleared,
    jitter,
    loss_interval,
)

TIMES = st.lists(st.integers(0, 10**10), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("lost", "ended", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I: Wilson's method without correction.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_limits_of_loss_are_those_of_the_literature(
    lost: int, ended: int, low: float, high: float
) -> None:
    found = loss_interval(np.array([lost]), np.array([ended]))
    assert [round(float(each[0]), 4) for each in found] == [low, high]


@given(ended=st.integers(0, 10**6), data=st.data())
def test_limits_of_loss_enclose_it(ended: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, ended))
    low, high = loss_interval(np.array([lost]), np.array([ended]))
    assert 0 <= low[0] <= high[0] <= 1
    if ended:
        assert low[0] <= lost / ended <= high[0]
        wider = loss_interval(np.array([lost * 10]), np.array([ended * 10]))
        assert wider[1][0] - wider[0][0] < high[0] - low[0]
    else:
        assert (low[0], high[0]) == (0, 1)


def test_limits_of_loss_hold_what_they_promise() -> None:
    rng = np.random.default_rng(1)
    for share in (0.01, 0.1, 0.5, 0.9):
        low, high = loss_interval(rng.binomial(100, share, 20_000), np.full(20_000, 100))
        assert 0.91 <= ((low <= share) & (share <= high)).mean() <= 0.985


@given(series=st.lists(TIMES, min_size=1, max_size=5), fraction=st.floats(0, 1))
def test_a_quantile_is_by_nearest_rank(series: list[list[int]], fraction: float) -> None:
    numbers = np.concatenate([np.full(len(times), 7 * at) for at, times in enumerate(series)])
    order = np.random.default_rng(1).permutation(len(numbers))
    ordered = Ordered.of(numbers[order], np.concatenate(series)[order])
    assert ordered.series.tolist() == [7 * at for at in range(len(series))]
    assert ordered.counts.tolist() == list(map(len, series))
    for times, quantile in zip(series, ordered.quantile(fraction).tolist(), strict=True):
        assert quantile in times
        # At least that share is not above, and it is the least such.
        assert sum(one <= quantile for one in times) >= fraction * len(times)
        assert sum(one < quantile for one in times) < max(fraction * len(times), 1)


def test_quantiles_of_known_times() -> None:
    ordered = Ordered.of(np.zeros(4, "i8"), np.array([40, 10, 30, 20]))
    assert [int(ordered.quantile(f)[0]) for f in (0, 0.5, 0.75, 0.95, 1)] == [10, 20, 30, 40, 40]


def test_a_time_beyond_all_reason_stays_with_its_series() -> None:
    ordered = Ordered.of(np.array([1, 2]), np.array([2**62, 5]))
    assert ordered.series.tolist() == [1, 2]
    assert ordered.quantile(1).tolist() == [MAX_RTT_NS, 5]


@given(times=TIMES, before=st.integers(-1, 10**10))
def test_jitter_is_the_mean_difference_of_consecutive_times(times: list[int], before: int) -> None:
    found = jitter(np.array(times), np.array([0]), np.array([before]))
    chain = [before, *times] if before >= 0 else times
    steps = [abs(b - a) for a, b in pairwise(chain)]
    assert found.tolist() == [sum(steps) // len(steps) if steps else -1]


@given(times=TIMES)
def test_jitter_of_several_series_is_that_of_each(times: list[int]) -> None:
    other = times[::-1]
    none = np.array([-1])
    alone = [int(jitter(np.array(one), np.array([0]), none)[0]) for one in (times, other)]
    starts = np.array([0, len(times)])
    both = jitter(np.array(times + other), starts, np.array([-1, -1]))
    assert both.tolist() == alone
    assert both[0] == both[1]  # backwards it is the same


def test_jitter_of_nothing() -> None:
    none: Array = np.empty(0, "i8")
    assert len(jitter(none, none, none)) == 0


def test_a_hop_that_answers_seldom_is_cleared_by_a_later_one() -> None:
    lost = np.array([[0, 90, 0, 0], [0, 30, 28, 33], [0, 1, 0, 0], [0, 0, 0, 100]])
    found = cleared(lost, np.full(lost.shape, 100))
    assert found.tolist() == [
        [False, True, False, False],  # S3.20: its answers are limited, nothing is lost
        [False, False, False, False],  # from there on all lose: that is the network
        [False, False, False, False],  # one of a hundred may be chance
        [False, False, False, False],  # none behind it could clear the last one
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_no_hop_without_loss_needs_clearing(hops: list[tuple[int, int]]) -> None:
    lost = np.array([[lost for lost, _ in hops]])
    ended = lost + np.array([[answered for _, answered in hops]])
    found = cleared(lost, ended)[0]
    assert not found[lost[0] == 0].any()
    assert not found[-1]
