"""Values with limits, and their arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Samples: TypeAlias = Any
"""np.float64, or an array of it (n,) for several windows."""
NAN, INFINITE = np.float64(np.nan), np.float64(np.inf)


class Band(NamedTuple):
    """A value and its limits."""

    value: Samples
    low: Samples
    """NaN, like `high`, if it may be 0 / 0."""
    high: Samples
    exact: bool = False
    """Whether both limits equal the value."""
    seen: bool = True
    """False: some windows are missing; use `low` and `high` only."""


def _product(a: Band, low: Samples, high: Samples) -> tuple[Samples, Samples]:
    """Limits of `a` times a value between `low` and `high`."""
    corners = np.array([a.low * low, a.low * high, a.high * low, a.high * high])
    return corners.min(axis=0), corners.max(axis=0)


def _quotient(a: Band, b: Band) -> tuple[Samples, Samples]:
    around_zero = (b.low < 0) & (b.high >= 0)
    low = np.where(around_zero, -INFINITE, 1 / (b.high + 0.0))
    return _product(a, low, np.where(around_zero, INFINITE, 1 / (b.low + 0.0)))


OPERATIONS: dict[str, Callable[[Samples, Samples], Samples]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / (b + 0.0),  # 0 has no sign here.
}
LIMITS: dict[str, Callable[[Band, Band], tuple[Samples, Samples]]] = {
    "+": lambda a, b: (a.low + b.low, a.high + b.high),
    "-": lambda a, b: (a.low - b.high, a.high - b.low),
    "*": lambda a, b: _product(a, b.low, b.high),
    "/": _quotient,
}
