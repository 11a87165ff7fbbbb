"""Columns of screen 6: groups of events, and the events of opened groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.console.tables.spec import TableSpec
from bpf.quantities import clock, duration
from probes.snapshot import SEVERITIES, host_of
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from probes.snapshot import Event

_TONES = dict(zip(SEVERITIES, (Tone.NORMAL, Tone.WARN, Tone.BAD), strict=True))


def time_of(event: Event) -> str:
    """Return the time of day, with milliseconds."""
    return clock(event.utc_ns, milliseconds=True)


def _iso(line: Any) -> str:
    from app.outputs.view import iso

    return iso(line["event"].utc_ns)


def folds(line: Any) -> bool:
    """Whether a line stands for several events."""
    return not line["depth"] and len(line["group"].events) > 1


def _severity(line: Any) -> str:
    severity: str = line["event" if line["depth"] else "group"].severity
    return severity


def _times(line: Any) -> str:
    """Return `▸ 12`: how often, behind the sign of a closed or opened group."""
    return f"{'▾' if line['is_opened'] else '▸'} {line['group'].times}" if folds(line) else ""


def _text(line: Any) -> str:
    if line["depth"]:
        return f"  {line['event'].text}"
    muted, seen = "muted: " * bool(line["is_muted"]), "✓ " * bool(line["is_acknowledged"])
    group = line["group"]
    goes_on = group.is_open and line["event"].phase != "begin"
    since = f"since {clock(group.begun_ns)}: " if goes_on else ""
    return f"{muted}{seen}{since}{line['event'].text}"


def _lasted(line: Any) -> str:
    group = line["group"]
    if line["depth"]:
        return str(line["event"].phase)
    if group.is_open:
        return "goes on"
    return duration(group.longest_ns / 1e9) if group.longest_ns else ""


def _range(line: Any) -> str:
    event = line["event"]
    if not line["depth"]:
        return str(line["group"].range)
    return "" if event.value is None else f"{event.value:.4g} {event.unit}"


def _quiet(line: Any) -> Tone:
    is_muted = line["depth"] or line["is_acknowledged"] or line["is_muted"]
    return Tone.MUTED if is_muted else Tone.NORMAL


def _tone(line: Any) -> Tone:
    """Return the tone of the text: a warning that is over needs no colour."""
    severity, ended = _severity(line), line["event"].phase == "end"
    if _quiet(line) is Tone.MUTED:
        return Tone.MUTED
    calm = severity == "warning" and not line["group"].is_open
    return Tone.NORMAL if calm or ended else _TONES[severity]


EVENTS: TableSpec[Any] = TableSpec(
    "events",
    (
        Column("time", "Time (UTC)", 12, larger_first=True,
            help="Time of the event, or of the newest event of a group.",
            cells=lambda line: time_of(line["event"]), written=_iso, tone=_quiet,
            order=lambda line: line["event"].utc_ns),
        Column("severity", "Severity", 8, priority=3, larger_first=True,
            help="info, warning or error; of a group the worst.",
            cells=_severity,
            tone=lambda line: Tone.MUTED if _quiet(line) is Tone.MUTED else _TONES[_severity(line)],
            order=lambda line: SEVERITIES.index(_severity(line))),
        Column("node", "Node", 8, hidden=True,
            help="The host of the fleet whose event it is, where several hosts are chosen.",
            cells=lambda line: host_of(line["event"]), tone=_quiet),
        Column("source", "Source", 10, priority=2,
            help="The probe or part of probedeck that reports the event.",
            cells=lambda line: line["event"].source, tone=_quiet),
        Column("times", "Times", 6, "right", priority=1, larger_first=True,
            help="How often it began or happened. Enter opens ▸ and closes ▾.",
            cells=_times, tone=Tone.ACCENT,
            written=lambda line: None if line["depth"] else line["group"].times,
            order=lambda line: 0 if line["depth"] else line["group"].times),
        Column("text", "Event", 30, grows=True,
            help="Text of the event, or of the newest event of a group. ✓ is acknowledged.",
            cells=_text, tone=_tone,
            written=lambda line: line["event"].text),
        Column("lasted", "Lasted", 7, "right", priority=4, larger_first=True,
            help="Longest time from a begin to its end; goes on if the last begin has no end.",
            cells=_lasted,
            tone=lambda line: _tone(line) if line["group"].is_open else Tone.MUTED,
            written=lambda line: line["group"].longest_ns / 1e9,
            order=lambda line: float("inf") if line["group"].is_open else line["group"].longest_ns),
        Column("range", "Values", 18, priority=5,
            help="Smallest and largest measured value of the events, such as the sizes of queues.",
            cells=_range, tone=Tone.MUTED),
    ),
    sort="time",
)  # fmt: skip
