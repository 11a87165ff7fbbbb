"""Whether two paths are equally fast: the two-sample Kolmogorov-Smirnov test (S3.20)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from probes.path.records import Array

_TERMS = np.arange(1, 101)
_MIN_ARGUMENT = 0.2
"""Below this the distribution function is 0 to the last digit, and its series does not converge."""


class DistributionTest(NamedTuple):
    """Result of comparing two samples."""

    statistic: float
    """The largest distance of the two empirical distribution functions, 0 to 1."""
    p_value: float
    """Probability of this distance or a larger one if both samples have one distribution.
    Asymptotic: good from some 20 values each. It is too low for consecutive times in a queue, which
    depend on each other: compare times of a minute, not of a second."""


def kolmogorov_smirnov(first: Array, second: Array) -> DistributionTest:
    """Compare two samples (n,), (m,) in any order. Raises ValueError if one is empty."""
    if not len(first) or not len(second):
        raise ValueError("a sample without a value has no distribution")
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate((first, second))
    below_first = np.searchsorted(first, values, "right") / len(first)
    below_second = np.searchsorted(second, values, "right") / len(second)
    statistic = float(np.abs(below_first - below_second).max())
    size = len(first) * len(second) / (len(first) + len(second))
    argument = np.sqrt(size) * statistic
    if argument < _MIN_ARGUMENT:
        return DistributionTest(statistic, 1.0)
    # Kolmogorov's distribution: Q(x) = 2 sum (-1)^(k-1) exp(-2 k^2 x^2).
    signs = np.where(_TERMS % 2, 2.0, -2.0)
    p_value = float((signs * np.exp(-2.0 * (_TERMS * argument) ** 2)).sum())
    return DistributionTest(statistic, min(max(p_value, 0.0), 1.0))
