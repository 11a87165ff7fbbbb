"""Lines of screen 6, as a source of the table, and its ribbon of time."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

from app.console.event_marks import EventMarks
from app.console.screens.events.columns import EVENTS, EventLine
from app.console.tables.columns import tone
from app.events.folding import EventGroup
from app.events.ribbon import EventRibbon
from probes.snapshot import Event
from widgets.format import age, clock, counted, duration, zone
from widgets.sparkline import BARS, MARK
from widgets.table.rows import Pieces, Tones, Value, order
from widgets.tones import Tone

_HEIGHTS = ((0, 1, 2), (3, 4, 5), (6, 7, 7))
"""Heights by severity, for one event, some, and many: height tells the severity without colour."""
_TONES = Tone.ACCENT, Tone.WARN, Tone.BAD
_SOME, _MANY = 2, 6


class EventRows:
    """A ValueSource over groups, each followed by its events if it is opened."""

    def __init__(self, blocks: Sequence[Sequence[EventLine]]) -> None:
        """`blocks`: the line of each group, and the lines below it."""
        self._blocks = blocks
        self._lines = [line for block in blocks for line in block]

    @property
    def rows(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> EventLine:
        return self._lines[index]

    def key(self, index: int) -> Hashable:
        return _key(self._lines[index])

    def index(self, key: Hashable) -> int | None:
        return next((n for n, line in enumerate(self._lines) if _key(line) == key), None)

    def cells(self, index: int) -> Sequence[str]:
        return [column.cell(self._lines[index]) for column in EVENTS.columns]

    def tones(self, index: int) -> Tones:
        return [tone(column, self._lines[index]) for column in EVENTS.columns]

    def values(self, position: int) -> Sequence[Value]:
        column = EVENTS.columns[position]
        return list(map(column.value or column.cell, self._lines))

    def ordered(self, position: int, *, descending: bool) -> EventRows:
        column = EVENTS.columns[position]
        of = column.rank or column.value or column.cell
        heads = order([of(block[0]) for block in self._blocks], descending=descending)
        blocks = []
        for head, *rest in (self._blocks[at] for at in heads):
            places = order(list(map(of, rest)), descending=descending)
            blocks.append([head, *(rest[at] for at in places)])
        return EventRows(blocks)


def _key(line: EventLine) -> Hashable:
    return line.event if line.is_single else line.group.key


def event_rows(
    groups: Iterable[EventGroup], opened: Collection[Hashable], marks: EventMarks
) -> EventRows:
    """Return a line for each group, and one for each event of the groups with `opened` keys."""
    return EventRows([_block(group, group.key in opened, marks) for group in groups])


def _block(group: EventGroup, is_opened: bool, marks: EventMarks) -> list[EventLine]:
    is_opened = is_opened and len(group.events) > 1
    head = EventLine(
        group, group.newest, is_opened=is_opened,
        is_acknowledged=marks.is_acknowledged(group), is_muted=marks.is_muted(group),
    )  # fmt: skip
    rest = group.events if is_opened else ()
    return [head, *(EventLine(group, event, is_single=True) for event in rest)]


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
