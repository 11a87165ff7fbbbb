"""Waiting for a condition instead of a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds. Raises AssertionError after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)
