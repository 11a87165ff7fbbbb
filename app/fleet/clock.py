"""The clock of another host against the clock here, by the times of requests."""

from __future__ import annotations

import math

_DRIFT = 30e-6
"""Seconds per second that two clocks drift apart at most: twice PHI of RFC 5905, section 7.1."""


class ClockOffset:
    """Bounds of the other host's clock minus the clock here.

    An answer that says the other clock's time was made after its request was sent, and before it
    was received here. So each answer bounds the offset, however long it took and whichever way
    took longer. The bounds of several answers are intersected, and widen by the clocks' drift.
    """

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf
        """Seconds, at the monotonic time `_at`."""
        self._at = 0.0

    def add(self, sent_ns: int, remote_ns: int, received_ns: int, now: float) -> None:
        """Add an answer: its request was sent at `sent_ns`, it came at `received_ns`, both by the
        clock here, and says `remote_ns`: nanoseconds since the epoch. `now`: monotonic seconds."""
        low, high = (remote_ns - received_ns) / 1e9, (remote_ns - sent_ns) / 1e9
        if low > high:
            return  # the clock here was set back meanwhile
        widened = _DRIFT * (now - self._at)
        before = self._low - widened, self._high + widened
        self._low, self._high, self._at = max(low, before[0]), min(high, before[1]), now
        if self._low > self._high:
            # One of the clocks was set: earlier answers are void.
            self._low, self._high = low, high

    def at(self, now: float) -> tuple[float, float]:
        """Return the offset and its largest error in seconds; NaN and infinity before an answer."""
        if math.isinf(self._low):
            return math.nan, math.inf
        error = (self._high - self._low) / 2 + _DRIFT * (now - self._at)
        return (self._low + self._high) / 2, error
