"""Events on a line of time: cells of equal length, each with its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probes.snapshot import SEVERITIES, Event

_LENGTHS = (
    *(1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30),
    *(minutes * 60 for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30)),
    *(hours * 3600 for hours in (1, 2, 3, 4, 6, 8, 12, 24)),
)
"""Seconds of a cell: round, so that cells begin at round times and seldom move."""


@dataclass(frozen=True, slots=True)
class EventRibbon:
    """The last events on a line of time."""

    begin_ns: int
    """UTC nanoseconds of the first cell's begin."""
    seconds: int
    """Length of a cell."""
    counts: Sequence[int]
    """Events of each cell."""
    severities: Sequence[int]
    """The worst severity of each cell, an index of SEVERITIES; -1 without events."""

    def cells(self, times_ns: Iterable[int]) -> set[int]:
        """Return the cells of some times; times before the first cell have none."""
        length = self.seconds * 10**9
        return {(at - self.begin_ns) // length for at in times_ns if at >= self.begin_ns}


def ribbon(events: Sequence[Event], end_ns: int, cells: int) -> EventRibbon:
    """Return the line of `events` (newest first) up to `end_ns` in so many cells."""
    end_ns = max(end_ns, events[0].utc_ns if events else 0)
    span = end_ns - events[-1].utc_ns if events else 0
    fitting = (s for s in _LENGTHS if span <= (cells - 1) * s * 10**9)
    seconds = next(fitting, _LENGTHS[-1])
    length = seconds * 10**9
    first = end_ns // length - cells + 1
    counts, severities = [0] * cells, [-1] * cells
    for event in events:
        place = event.utc_ns // length - first
        if 0 <= place < cells:
            counts[place] += 1
            severities[place] = max(severities[place], SEVERITIES.index(event.severity))
    return EventRibbon(first * length, seconds, counts, severities)
