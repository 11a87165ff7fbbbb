"""Medians with intervals, and exponents of growth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

_BEYOND = 0.05
"""Chance that the median lies outside of its interval."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by order statistics.

    Fewer than six values have no such interval: then it is the range of the values.
    """
    ranked, count = sorted(values), len(values)
    outside, left_out = 0.0, 0
    while left_out < count // 2:
        outside += 2 * math.comb(count, left_out) / 2**count
        if outside > _BEYOND:
            break
        left_out += 1
    at = max(left_out - 1, 0)
    return ranked[at], ranked[-1 - at]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return k of values ~ size ** k by least squares of logarithms; None of fewer than 2 sizes.

    Values that are not above zero are left out.
    """
    points = [(x, y) for x, y in zip(sizes, values, strict=True) if x > 0 and y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Return the ratio of each round; rounds whose peer is not above zero have none."""
    return [a / b for a, b in zip(ours, peers, strict=True) if b > 0]


def middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None
