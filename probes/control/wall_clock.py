"""Events about jumps of the wall clock: rows before and after have times of different clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bpf.quantities import duration, signed
from probes.snapshot import Event

_LEAST_NS = 250_000_000
_SLEW = 0.1
"""Share of the passed time by which a clock may be slewed; chrony's most is 0.083."""


class WallClock:
    """Compares the wall clock with CLOCK_BOOTTIME, which goes on while the host sleeps."""

    def __init__(self) -> None:
        self._before = _clocks()

    def take(self) -> Iterator[Event]:
        """Yield an event if the wall clock has jumped since the last call. From any thread."""
        (boot_ns, wall_ns), self._before = self._before, _clocks()
        passed_ns = self._before[0] - boot_ns
        jump_ns = self._before[1] - wall_ns - passed_ns
        if abs(jump_ns) > _LEAST_NS + passed_ns * _SLEW:
            by = signed(jump_ns / 1e9, duration)
            text = f"the wall clock jumped by {by}: times of rows jump, too"
            yield Event.now("warning", "clock", text, "wall clock", value=jump_ns / 1e9, unit="s")


def _clocks() -> tuple[int, int]:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns()
