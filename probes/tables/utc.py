"""Times as text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SECOND = 1_000_000_000


def iso_all(utc_ns: NDArray[Any]) -> list[str]:
    """Return UTC nanoseconds (n,) i8 as ISO 8601, `2026-01-31T12:00:00.123456789Z`."""
    # Times repeat, as their clock has few steps: format each time once, and each second once.
    moments, at = np.unique(utc_ns, return_inverse=True)
    seconds, second_at = np.unique(moments // _SECOND, return_inverse=True)
    heads = np.datetime_as_string(seconds.astype("M8[s]")).tolist()
    texts = [
        f"{heads[head]}.{fraction:09}Z"
        for head, fraction in zip(second_at.tolist(), (moments % _SECOND).tolist(), strict=True)
    ]
    return [texts[number] for number in at.tolist()]
