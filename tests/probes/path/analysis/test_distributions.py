"""S3.20: the Kolmogorov-Smirnov test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.arrays import Array
from probes.path.analysis.branches import kolmogorov_smirnov

SAMPLES = st.lists(st.integers(0, 1000), min_size=1, max_size=50)


@given(first=SAMPLES, second=SAMPLES)
def test_the_statistic_is_the_largest_distance(first: list[int], second: list[int]) -> None:
    found = kolmogorov_smirnov(np.array(first), np.array(second))
    distance = max(
        abs(
            sum(one <= value for one in first) / len(first)
            - sum(one <= value for one in second) / len(second)
        )
        for value in first + second
    )
    assert found.statistic == pytest.approx(distance)
    assert 0 <= found.p_value <= 1
    assert kolmogorov_smirnov(np.array(second), np.array(first)) == pytest.approx(found)


@pytest.mark.parametrize(
    ("shift", "p_value"),
    # With 200 values each the argument of Kolmogorov's function is shift / 20. The values are those
    # in the documentation of scipy.special.kolmogorov (1.3 and later).
    [(0, 1.0), (10, 0.96394524), (20, 0.26999967)],
)
def test_the_p_value_is_scipys(shift: int, p_value: float) -> None:
    found = kolmogorov_smirnov(np.arange(200), np.arange(200) + shift)
    assert found.statistic == pytest.approx(shift / 200)
    assert found.p_value == pytest.approx(p_value, abs=5e-9)


@pytest.mark.parametrize(
    ("first", "second", "statistic", "p_value", "tolerance"),
    # Statistics and p-values that scipy's own tests of ks_2samp expect (test_stats.py), the latter
    # by the exact distribution but for the last one: so far off is the asymptotic one.
    [
        (np.linspace(1, 100, 100), np.linspace(1, 100, 110) + 20.1, 232 / 1100, 0.015739, 0.004),
        (np.linspace(1, 100, 100), np.linspace(1, 100, 110) + 19.9, 229 / 1100, 0.017804, 0.004),
        (np.linspace(1, 100, 100), np.linspace(1, 100, 100) + 2.1, 3 / 100, 1.0, 1e-9),
        (
            np.repeat([2, 3, 5, 6], [3, 4, 10, 4]),
            np.repeat([3, 4, 6, 7], [10, 2, 10, 4]),
            190 / 21 / 26,
            0.091925,
            0.03,  # few values, and many of them equal
        ),
        (
            np.linspace(1, 200, 10_000) - 1 / 10_000 / 11_000 / 4,
            np.linspace(2, 200, 11_000),
            563 / 110_000,
            0.9990660,
            1e-4,
        ),
    ],
)
def test_statistics_are_scipys(
    first: Array, second: Array, statistic: float, p_value: float, tolerance: float
) -> None:
    found = kolmogorov_smirnov(first, second)
    assert found.statistic == pytest.approx(statistic, abs=1e-9)
    assert found.p_value == pytest.approx(p_value, abs=tolerance)


def test_of_one_distribution_one_test_in_twenty_rejects() -> None:
    rng = np.random.default_rng(5)
    p = [kolmogorov_smirnov(rng.gamma(2, 1, 150), rng.gamma(2, 1, 120)).p_value for _ in range(800)]
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.07


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no distribution"):
        kolmogorov_smirnov(np.empty(0), np.ones(3))
