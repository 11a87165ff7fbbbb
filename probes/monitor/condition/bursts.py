"""Recurring bursts, such as the rounds of an SNMP poller: baselines learn them (S2.23).

A burst is a row of windows in which a policy's condition holds by its quiet windows; a gap of fewer
than three windows is part of it. If three short bursts came, each soon after the one before, their
size is usual from then on. A burst is learnt after its end: a lasting attack stays unusual.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.monitor.condition.series import WindowSeries
from probes.monitor.records import Array
from probes.monitor.selected import Estimate, SelectedMetric

Window = tuple[Array, int, float, Mapping[SelectedMetric, Estimate]]
"""Arguments of `WindowSeries.append`."""
USUAL = 3
"""Bursts that make a usual one, and windows without a burst that end one."""
FORGOTTEN, SHORT = 6, 0.1
"""A pause that forgets all bursts, and the length of the longest one that is learnt: shares of the
longest time of the conditions."""
_KEPT = 8
"""First windows of a burst that are kept."""


class Bursts:
    """The bursts of one policy."""

    def __init__(self, span: float) -> None:
        """`span` is the longest time of the policy's conditions, in seconds."""
        self._span = span
        self._learnt = WindowSeries(span)
        self._number = 0
        """Bursts that were learnt."""
        self._burst: list[Window] = []
        self._last_ns = self._gap = 0
        """The last window of a burst, and windows since then."""

    def append(self, window: Window) -> None:
        """Add a window to the burst that goes on, or begin one."""
        if window[1] - self._last_ns > FORGOTTEN * self._span * 1e9:
            self._learnt, self._number = WindowSeries(self._span), 0
        self._last_ns, self._gap = window[1], 0
        if len(self._burst) < _KEPT:
            self._burst.append(window)

    def pause(self, windows: int) -> None:
        """Note windows without a burst. Learn the burst before, if they end it."""
        self._gap += windows
        if not self._burst or self._gap < USUAL:
            return
        if self._last_ns - self._burst[0][1] <= SHORT * self._span * 1e9:
            self._number += 1
            for window in self._burst:
                self._learnt.append(*window)
        self._burst = []

    def usual(self) -> WindowSeries | None:
        """Return the windows of bursts, if there were enough."""
        return self._learnt if self._number >= USUAL else None
