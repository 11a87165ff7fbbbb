"""Lines of screen 6, as a source of the table, and its ribbon of time."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

import numpy as np

from app.console.marks import EventMarks
from app.console.screens.events.columns import EVENTS
from app.console.tables.sorted_table import EachRow
from app.events.folding import EventGroup, EventRibbon
from bpf.quantities import age, clock, counted, duration, zone
from probes.snapshot import Event
from widgets.sparkline import BARS, MARK
from widgets.table.rows import Pieces
from widgets.tones import Tone

EVENT_LINE = np.dtype(
    [
        ("id", "O"),
        ("depth", "i8"),
        *((name, "O") for name in ("group", "event")),
        *((name, "?") for name in ("is_opened", "is_acknowledged", "is_muted")),
    ]
)
"""A group with its newest event; or below it one event of an opened group."""
_HEIGHTS = ((0, 1, 2), (3, 4, 5), (6, 7, 7))
"""Heights by severity, for one event, some, and many: height tells the severity without colour."""
_TONES = Tone.ACCENT, Tone.WARN, Tone.BAD
_SOME, _MANY = 2, 6


def event_rows(
    groups: Iterable[EventGroup], opened: Collection[Hashable], marks: EventMarks
) -> EachRow:
    """Return a line for each group, and one for each event of the groups with `opened` keys."""
    found: list[tuple[object, ...]] = []
    for group in groups:
        is_opened = group.key in opened and len(group.events) > 1
        is_marked = marks.is_acknowledged(group), marks.is_muted(group)
        found.append((group.key, 0, group, group.newest, is_opened, *is_marked))
        below = group.events if is_opened else ()
        found += [(event, 1, group, event, False, False, False) for event in below]
    return EachRow(EVENTS, np.array(found, EVENT_LINE))


def story_text(group: EventGroup) -> str:
    """Return a sentence about a group: how often, since when, how long, how much."""
    told = [f"{counted(group.times, 'time')} since {clock(group.first_ns)} {zone()}"]
    if group.is_open:
        told.append(f"goes on since {clock(group.begun_ns)}")
    if group.longest_ns:
        told.append(f"longest {duration(group.longest_ns / 1e9)}")
    if group.range:
        told.append(f"values {group.range}")
    return ", ".join(told)


def ribbon_pieces(drawn: EventRibbon, marked: Iterable[Event]) -> Pieces:
    """Return the ribbon with its times at both ends, and a sign at the times of `marked`."""
    chosen = drawn.cells(event.utc_ns for event in marked)
    end_ns = drawn.begin_ns + len(drawn.counts) * drawn.seconds * 10**9
    pieces = [(f" {clock(drawn.begin_ns)} ", Tone.MUTED)]
    for place, (count, severity) in enumerate(zip(drawn.counts, drawn.severities, strict=True)):
        if severity < 0:
            piece = "·", Tone.MUTED
        elif place in chosen:
            piece = MARK, _TONES[severity]
        else:
            step = (count >= _SOME) + (count >= _MANY)
            piece = BARS[_HEIGHTS[severity][step]], _TONES[severity]
        if pieces[-1][1] is piece[1] and place:
            piece = pieces.pop()[0] + piece[0], piece[1]
        pieces.append(piece)
    pieces.append((f" {clock(end_ns)}  {age(drawn.seconds)} a cell", Tone.MUTED))
    return tuple(pieces)


RIBBON_MARGIN = 34
"""Cells of the ribbon's line beside the ribbon: both times, and the length of a cell."""
