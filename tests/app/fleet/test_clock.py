"""Bounds of another host's clock: right however slow, and whichever way is slower."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fleet.tally import ClockOffset

S = 10**9


def test_before_an_answer_nothing_is_known() -> None:
    offset, error = ClockOffset().at(100.0)
    assert math.isnan(offset)
    assert math.isinf(error)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.integers(0, S), st.integers(0, S)), min_size=1, max_size=9),
)
def test_the_true_offset_is_always_within_the_error(
    offset: float, ways: list[tuple[int, int]]
) -> None:
    clock, now_ns = ClockOffset(), 10**18
    for out, back in ways:
        clock.add(now_ns, now_ns + out + round(offset * S), now_ns + out + back, now_ns / S)
        now_ns += out + back
        found, error = clock.at(now_ns / S)
        assert abs(found - offset) <= error + 1e-3
    # The best answers of each way count.
    assert error <= (min(out for out, _ in ways) + min(back for _, back in ways)) / 2 / S + 1e-3


def test_an_error_grows_with_the_time_since_the_answer() -> None:
    clock = ClockOffset()
    clock.add(0, 5 * S + S // 1000, 2 * S // 1000, 10.0)
    assert clock.at(10.0) == pytest.approx((5.0, 0.001))
    assert clock.at(110.0) == pytest.approx((5.0, 0.001 + 100 * 30e-6))


def test_a_clock_that_is_set_is_measured_anew() -> None:
    clock = ClockOffset()
    clock.add(0, 5 * S, 1000, 10.0)
    clock.add(0, -3 * S, 1000, 11.0)
    assert clock.at(11.0) == pytest.approx((-3.0, 0.0), abs=1e-5)
    # The clock here was set back between request and answer: it says nothing.
    clock.add(9 * S, 0, 1000, 11.0)
    assert clock.at(11.0) == pytest.approx((-3.0, 0.0), abs=1e-5)
