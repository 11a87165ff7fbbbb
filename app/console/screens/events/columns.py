"""Columns of screen 6: groups of events, and the events of opened groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.console.tables.spec import TableSpec
from bpf.quantities import clock, duration
from probes.snapshot import SEVERITIES, host_of
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.events.folding import EventGroup
    from probes.snapshot import Event

_TONES = dict(zip(SEVERITIES, (Tone.NORMAL, Tone.WARN, Tone.BAD), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class EventLine:
    """A line of the table: a group, or one event of an opened group."""

    group: EventGroup
    event: Event
    """The newest event of a group."""
    is_single: bool = False
    """Whether the line is one event below its group."""
    is_opened: bool = False
    is_acknowledged: bool = False
    is_muted: bool = False

    @property
    def folds(self) -> bool:
        """Whether the line stands for several events."""
        return not self.is_single and len(self.group.events) > 1

    @property
    def severity(self) -> str:
        return self.event.severity if self.is_single else self.group.severity

    @property
    def times(self) -> str:
        """`▸ 12`: how often, behind the sign of a closed or opened group."""
        return f"{'▾' if self.is_opened else '▸'} {self.group.times}" if self.folds else ""

    @property
    def text(self) -> str:
        if self.is_single:
            return f"  {self.event.text}"
        marks = ((self.is_muted, "muted: "), (self.is_acknowledged, "✓ "))
        return "".join(text for is_set, text in marks if is_set) + self.event.text

    @property
    def lasted(self) -> str:
        if self.is_single:
            return self.event.phase
        if self.group.is_open:
            return "goes on"
        return duration(self.group.longest_ns / 1e9) if self.group.longest_ns else ""

    @property
    def range(self) -> str:
        if not self.is_single:
            return self.group.range
        return "" if self.event.value is None else f"{self.event.value:.4g} {self.event.unit}"

    @property
    def tone(self) -> Tone:
        """Tone of the text: a warning that is over needs no colour."""
        if self.is_acknowledged or self.is_muted:
            return Tone.MUTED
        if self.is_single:
            return Tone.MUTED
        calm = self.severity == "warning" and not self.group.is_open
        return Tone.NORMAL if calm or self.event.phase == "end" else _TONES[self.severity]


def time_of(event: Event) -> str:
    """Return the time of day, with milliseconds."""
    return clock(event.utc_ns, milliseconds=True)


def _iso(line: EventLine) -> str:
    from app.outputs.view import iso

    return iso(line.event.utc_ns)


def _quiet(line: EventLine) -> Tone:
    return Tone.MUTED if line.is_single or line.is_acknowledged or line.is_muted else Tone.NORMAL


EVENTS: TableSpec[EventLine] = TableSpec(
    "events",
    (
        Column("time", "Time (UTC)", 12, larger_first=True,
            help="Time of the event, or of the newest event of a group.",
            cells=lambda line: time_of(line.event), written=_iso, tone=_quiet,
            order=lambda line: line.event.utc_ns),
        Column("severity", "Severity", 8, priority=3, larger_first=True,
            help="info, warning or error; of a group the worst.",
            cells=lambda line: line.severity,
            tone=lambda line: _quiet(line) if line.tone is Tone.MUTED else _TONES[line.severity],
            order=lambda line: SEVERITIES.index(line.severity)),
        Column("node", "Node", 8, hidden=True,
            help="The host of the fleet whose event it is, where several hosts are chosen.",
            cells=lambda line: host_of(line.event), tone=_quiet),
        Column("source", "Source", 10, priority=2,
            help="The probe or part of probedeck that reports the event.",
            cells=lambda line: line.event.source, tone=_quiet),
        Column("times", "Times", 6, "right", priority=1, larger_first=True,
            help="How often it began or happened. Enter opens ▸ and closes ▾.",
            cells=lambda line: line.times, tone=Tone.ACCENT,
            written=lambda line: None if line.is_single else line.group.times,
            order=lambda line: 0 if line.is_single else line.group.times),
        Column("text", "Event", 30, grows=True,
            help="Text of the event, or of the newest event of a group. ✓ is acknowledged.",
            cells=lambda line: line.text, tone=lambda line: line.tone,
            written=lambda line: line.event.text),
        Column("lasted", "Lasted", 7, "right", priority=4, larger_first=True,
            help="Longest time from a begin to its end; goes on if the last begin has no end.",
            cells=lambda line: line.lasted,
            tone=lambda line: line.tone if line.group.is_open else Tone.MUTED,
            written=lambda line: line.group.longest_ns / 1e9,
            order=lambda line: float("inf") if line.group.is_open else line.group.longest_ns),
        Column("range", "Values", 18, priority=5,
            help="Smallest and largest measured value of the events, such as the sizes of queues.",
            cells=lambda line: line.range, tone=Tone.MUTED),
    ),
    sort="time",
)  # fmt: skip
