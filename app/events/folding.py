"""Events of one cause as one group, and events on a line of time: cells of equal length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from probes.snapshot import SEVERITIES, Event, host_of

_NUMBER = re.compile(r"(?<![\w.:/-])\d[\d,]*(?:\.\d+)?(?![\w]*[.:/-]?\d)(?!\w)")
"""A number that stands alone: no part of an address, of a name, of a time or of a range."""
_KEPT = 4
"""Folded tuples that are kept: of the present and of moments of the past."""
_cache: dict[int, tuple[tuple[Event, ...], tuple[EventGroup, ...]]] = {}
"""By identity: frames share the tuple, and a hash of 2,000 events takes as long as the folding."""


@dataclass(frozen=True, slots=True, eq=False)
class EventGroup:
    """Events of one source and cause."""

    key: tuple[str, str]
    """Source, and subject or text without its numbers, and of several hosts the host: the same in
    every folding."""
    events: tuple[Event, ...]
    """Newest first."""
    times: int
    """How often it began, or happened if it does not last."""
    is_open: bool
    """Whether it goes on: the last begin has no end."""
    begun_ns: int
    """UTC nanoseconds of the last begin; of the newest event if it does not last."""
    longest_ns: int
    """Longest time from a begin to its end; 0 if none has ended."""
    severity: str
    """The worst of its events."""
    low: float | None
    """Smallest value; None without values."""
    high: float | None
    unit: str
    """Unit of `low` and `high`."""

    @property
    def newest(self) -> Event:
        return self.events[0]

    @property
    def source(self) -> str:
        return self.key[0]

    @property
    def first_ns(self) -> int:
        return self.events[-1].utc_ns

    @property
    def last_ns(self) -> int:
        return self.events[0].utc_ns

    @property
    def worst_ns(self) -> int:
        """Time of the newest of its worst events."""
        return next(e.utc_ns for e in self.events if e.severity == self.severity)

    @property
    def range(self) -> str:
        """`38..200 ms`; empty without values."""
        if self.low is None or self.high is None:
            return ""
        ends = dict.fromkeys(
            f"{end:.0f}" if abs(end) >= 100 else f"{end:.3g}" for end in (self.low, self.high)
        )
        return f"{'..'.join(ends)} {self.unit}"


def fold(events: tuple[Event, ...]) -> tuple[EventGroup, ...]:
    """Return the groups of `events` (newest first), the one with the newest event first.

    Events with a subject form a group for each source and subject. Others do if their texts differ
    only in numbers. Every event is in one group.
    """
    known = _cache.get(id(events))
    if known is not None and known[0] is events:
        return known[1]
    stories: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        cause = event.subject or cause_of(event.text)
        key = event.source, f"{cause} on {host}" if (host := host_of(event)) else cause
        story = stories.get(key)
        if story is None:
            stories[key] = [event]
        else:
            story.append(event)
    groups = tuple(_group(key, story) for key, story in stories.items())
    while len(_cache) >= _KEPT:
        # Another thread may have taken it.
        _cache.pop(next(iter(_cache)), None)
    _cache[id(events)] = events, groups
    return groups


@lru_cache(8192)
def cause_of(text: str) -> str:
    """Return the text with a `#` for each number."""
    return _NUMBER.sub("#", text)


def _group(key: tuple[str, str], story: Sequence[Event]) -> EventGroup:
    times = longest_ns = begun_ns = 0
    is_open = lasts = False
    severities = set()
    values: list[float] = []
    unit = ""
    for event in reversed(story):
        severities.add(event.severity)
        if event.value is not None:
            if event.unit != unit:
                # A policy's threshold has another unit from here on.
                values, unit = [], event.unit
            values.append(event.value)
        if event.phase == "begin":
            lasts = True
            if not is_open:
                is_open, begun_ns = True, event.utc_ns
                times += 1
        elif event.phase == "end":
            if is_open:
                longest_ns = max(longest_ns, event.utc_ns - begun_ns)
            # The begin of an end may be forgotten.
            times += not lasts
            is_open, lasts = False, True
    return EventGroup(
        key,
        tuple(story),
        times if lasts else len(story),
        is_open,
        begun_ns or story[0].utc_ns,
        longest_ns,
        max(severities, key=SEVERITIES.index),
        min(values, default=None),
        max(values, default=None),
        unit,
    )


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
