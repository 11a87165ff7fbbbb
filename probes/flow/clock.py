"""The clock of flow records: jiffies, turned into time."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from bpf.abi import ProgType
from bpf.syscall import prog_load, prog_test_run

Array = np.ndarray[Any, np.dtype[Any]]

_READ_JIFFIES = bytes.fromhex("8500000076000000 9500000000000000")
"""call bpf_jiffies64; exit."""
_CLOCK_MONOTONIC_COARSE = 6  # not in Python's time module


class TickClock:
    """Turns the lower half of jiffies into CLOCK_MONOTONIC nanoseconds."""

    def __init__(self) -> None:
        self._fd = prog_load(_READ_JIFFIES, ProgType.XDP, "jiffies")
        # The coarse clock advances by one tick at a time: its resolution is a tick's length.
        self.tick_ns = round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)
        self.update()

    def close(self) -> None:
        os.close(self._fd)

    def update(self) -> None:
        """Take a new reference; once a window is enough."""
        coarse = time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
        while True:
            self._jiffies = prog_test_run(self._fd, bytes(64)).verdict
            again = time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
            if again == coarse:
                self._monotonic_ns = coarse
                return
            coarse = again

    def monotonic_ns(self, jiffies: Array) -> Array:
        """Nanoseconds (n,) i8 of ticks (n,) u4, all of the past."""
        ago = (np.uint32(self._jiffies) - jiffies).astype("i8")
        result: Array = self._monotonic_ns - ago * self.tick_ns
        return result
