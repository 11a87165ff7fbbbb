"""Round-trip times of a whole trace in a few kilobytes."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array

_SHIFT = 14
"""Bits that a float32 loses: nine of its mantissa stay, so a time is exact to 0.1 %."""


class TimeTally:
    """Count, extremes, jitter and a histogram of round-trip times."""

    def __init__(self) -> None:
        self.count = 0
        self.min_ns = self.max_ns = self.last_ns = -1
        self._last_sent_ns = 0
        self._differences = 0.0
        self._pairs = 0
        self._bins = np.empty(0, "u4")
        """Upper bits of the times as float32, ascending."""
        self._counts = np.empty(0, "i8")

    def add(self, rtts_ns: Array, sent_ns: Array, flows: Array) -> None:
        """Add times (n,), n > 0, of packets sent at `sent_ns` (n,) by `flows` (n,).

        They are ordered by flow, and by time of sending within each.
        """
        self.count += len(rtts_ns)
        least = int(rtts_ns.min())
        self.min_ns = least if self.min_ns < 0 else min(self.min_ns, least)
        self.max_ns = max(self.max_ns, int(rtts_ns.max()))
        newest = int(sent_ns.argmax())
        if sent_ns[newest] >= self._last_sent_ns:
            self._last_sent_ns, self.last_ns = int(sent_ns[newest]), int(rtts_ns[newest])
        together = flows[1:] == flows[:-1]
        self._differences += float(np.abs(np.diff(rtts_ns))[together].sum())
        self._pairs += int(together.sum())
        bins, at = np.unique(
            np.concatenate([self._bins, rtts_ns.astype("f4").view("u4") >> np.uint32(_SHIFT)]),
            return_inverse=True,
        )
        weights = np.concatenate([self._counts, np.ones(len(rtts_ns), "i8")])
        self._bins, self._counts = bins, np.zeros(len(bins), "i8")
        np.add.at(self._counts, at.ravel(), weights)

    @property
    def jitter_ns(self) -> int:
        """Mean difference of consecutive times of a flow; -1 without a pair."""
        return round(self._differences / self._pairs) if self._pairs else -1

    def quantile(self, fraction: float) -> int:
        """Return the quantile by nearest rank, exact to 0.1 %; -1 without a time."""
        if not self.count:
            return -1
        rank = max(1, int(np.ceil(self.count * fraction)))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle = (self._bins[place] << np.uint32(_SHIFT)) | np.uint32(1 << (_SHIFT - 1))
        value = round(float(np.array(middle, "u4").view("f4")))
        return min(max(value, self.min_ns), self.max_ns)
