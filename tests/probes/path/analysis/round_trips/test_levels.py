"""S3.20: where one series of round-trip times changes to another level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.arrays import Array
from probes.path.analysis.round_trips.levels import (
    BLOCK,
    FLOOR_NS,
    LEVEL,
    MIN_ANSWERS,
    follow,
    new_shifts,
    settle,
    shifted,
    shifting,
    sinking,
)
from probes.path.analysis.statistics import Ordered
from tests.probes.path.analysis.simulated import (
    SECOND,
    Times,
    answering,
    idle,
    plus,
    sawtooth,
    wide_area,
)

NO = np.array([False])
YES = np.array([True])


def shifts_of(
    times: Times, seconds: float, rate: float = 100, seed: int = 1
) -> list[tuple[float, float]]:
    """When one series is found to have another level (s), and by how much (ms)."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    rtts = times(at, rng)
    levels: Array = np.zeros(1, LEVEL)
    found = []
    size = max(5, int(rate / 2))
    for start in range(0, len(at) - size + 1, size):
        values = rtts[start : start + size]
        values = values[~np.isnan(values)].astype("i8")
        if len(values) < MIN_ANSWERS:
            continue
        levels = follow(levels, block_of(values, at[start]), NO)
        if shifted(levels, NO)[0]:
            found.append((float(at[start]), float((levels["median"] - levels["level"])[0] / 1e6)))
            levels = settle(levels, YES)
        elif sinking(levels)[0] and not shifting(levels, NO)[0]:
            levels = settle(levels, YES)
    return found


def block_of(rtts: Array, second: float = 0.0) -> Array:
    ordered = Ordered.of(np.zeros(len(rtts), "i8"), rtts)
    block = np.zeros(1, BLOCK)
    for name, fraction in (("low", 0.1), ("first", 0.25), ("median", 0.5), ("third", 0.75)):
        block[name] = ordered.quantile(fraction)
    block["since_ns"] = int(second * SECOND)
    return block


@pytest.mark.parametrize(
    "times",
    [
        idle(outliers=0.05),
        plus(idle(), lambda s: np.where((s * 100).astype("i8") == 3000, 200e6, 0.0)),
        plus(idle(), lambda s: np.where((s > 30) & (s < 30.4), 50e6, 0.0)),
        wide_area(),
        answering(wide_area(), 0.3),
        plus(idle(), lambda s: sawtooth(s, -60)),
        plus(idle(), lambda s: sawtooth(s, 30)),
        plus(wide_area(), lambda s: sawtooth(s, 30)),
        plus(idle(), lambda s: sawtooth(s, 30, 70)),
        plus(idle(), lambda s: np.where((s > 20) & (s < 80), (s - 20) * 1e5, 0.0), 0.01),
    ],
    ids=[
        "outliers",
        "one spike",
        "a spike of 0.4 s",
        "drift and jitter",
        "few answers",
        "a queue all the time",
        "a queue begins",
        "a queue begins, far away",
        "a queue comes and goes",
        "a queue grows slowly and is gone",
    ],
)
@pytest.mark.parametrize("rate", [100, 10])
def test_what_is_no_step_is_none(times: Times, rate: float) -> None:
    assert shifts_of(times, 120, rate) == []


@settings(max_examples=40)
@given(
    level=st.floats(1e4, 3e8),
    spread=st.floats(0, 0.02),
    share=st.floats(0, 0.24),
    seed=st.integers(0, 2**32 - 1),
)
def test_whatever_a_quarter_of_the_times_are_the_level_stays(
    level: float, spread: float, share: float, seed: int
) -> None:
    """No outlier counts, whatever its size, while fewer than a quarter of a block are."""
    rng = np.random.default_rng(seed)
    levels: Array = np.zeros(1, LEVEL)
    for _ in range(20):
        rtts = level * (1 + spread * rng.standard_normal(50))
        rtts[: int(50 * share)] *= rng.uniform(1, 1000)
        levels = follow(levels, block_of(rtts.astype("i8")), NO)
        assert not levels["run"][0]
    assert abs(levels["level"][0] - level) <= level * 0.05 + FLOOR_NS


def settled(hops: int) -> Array:
    """One flow, all hops at 10 ms."""
    levels = np.zeros((1, hops), LEVEL)
    levels["level"] = levels["median"] = levels["base"] = 10e6
    levels["blocks"] = 10
    return levels


def test_hops_behind_a_shift_are_not_told() -> None:
    levels = settled(7)
    levels["median"][0, 3:] += 5e6  # hop 4 shifts, and all behind it
    levels["median"][0, 5:] += 7e6  # hop 6 by more
    levels["median"][0, 1] += 9e6  # hop 2 alone
    levels["blocks"][0, 4] = 0  # hop 5 does not answer
    sure = levels["median"] > levels["level"]
    told, amounts = new_shifts(levels, sure, sure)
    assert np.flatnonzero(told[0]).tolist() == [1, 3, 5]
    assert amounts[0, [1, 3, 5]].tolist() == [9e6, 5e6, 12e6]


def test_hops_that_are_not_sure_yet_go_with_one_that_is() -> None:
    levels = settled(4)
    levels["median"][0, 1:] += 5e6
    maybe = levels["median"] > levels["level"]
    sure = np.array([[False, False, True, True]])
    told, amounts = new_shifts(levels, sure, maybe)
    assert np.flatnonzero(told[0]).tolist() == [1]
    assert np.flatnonzero(amounts[0]).tolist() == [1, 2, 3]
    nothing = new_shifts(levels, sure & False, maybe)
    assert not nothing[0].any()
    assert not nothing[1].any()
