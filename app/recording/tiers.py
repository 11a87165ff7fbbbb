"""Sums of many windows of flows, for fast looks at hours and days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from app.api.server.windows import TopFlows
from probes.flow.records import FLOW, once, words_of
from probes.snapshot import Loss, LossReason, Snapshot, add_losses

MINUTES = "1m"
"""The stream of the sums of minutes."""
_LARGEST = 256
"""Flows of a sum that stay; the others are exact totals (`Snapshot.rest`)."""


class Tier:
    """Adds up the windows of each period of UTC. The flows of a sum are exact."""

    def __init__(self, seconds: int) -> None:
        self._period_ns = seconds * 10**9
        self._windows: list[Snapshot] = []
        self._number = 0

    def add(self, window: Snapshot) -> Iterator[Snapshot]:
        """Add a window of flows; yield the sum of the period before, if `window` begins one."""
        if self._windows and self._period(self._windows[-1]) != self._period(window):
            yield from self.rest()
        self._windows.append(window)

    def rest(self) -> Iterator[Snapshot]:
        """Yield the sum of the windows since the last one, with every flow."""
        if not self._windows:
            return
        windows, self._windows = self._windows, []
        self._number += 1
        losses: dict[LossReason, Loss] = {}
        for window in windows:
            add_losses(losses, window.losses)
        yield replace(
            windows[-1],
            window=self._number,
            start_ns=windows[0].start_ns,
            rows=once(
                np.concatenate([words_of(window.rows) for window in windows]).view(FLOW).ravel()
            ),
            losses=losses,
            cut=any(window.cut for window in windows),
            occupancy=max(window.occupancy for window in windows),
            swap_ns=sum(window.swap_ns for window in windows),
            drain_ns=sum(window.drain_ns for window in windows),
        )

    def _period(self, window: Snapshot) -> int:
        # A window at the end of a period belongs to it.
        return (window.end_utc_ns - 1) // self._period_ns


def largest(sums: Snapshot) -> Snapshot:
    """Return the sum with its largest flows, and exact totals of the others."""
    cut = TopFlows(_LARGEST).of(sums)
    assert isinstance(cut, Snapshot)
    return cut
