"""Rows of the panels of screen 5; they lead to lines of the source."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from app.console.screens.programs.columns import PANELS
from app.console.screens.programs.log import fold
from app.console.screens.programs.model import Place, Programs, Slot, header_line, place_of, side_of
from app.console.tables.columns import columns
from app.console.tables.metric_rows import metric_cells
from probes.reports import Compatibility, Fate
from probes.snapshot import Event, Snapshot
from widgets.table.columns import GAP, MARGIN
from widgets.table.rows import Row, Rows, Tones
from widgets.tones import Tone

_MOST = 400
"""Most lines of a path or a log."""
_DIFF_LINES = 3000
"""Most changed lines for a smallest difference."""
_CONTEXT = 3


class Panel(StrEnum):
    """The panels, by their titles."""

    PROBLEMS = "problems"
    LOG = "log"
    DIFF = "diff"
    REPORT = "report"
    METRICS = "metrics"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Spot:
    """Key of a row: its number, and the place that Enter leads to."""

    row: int
    place: Place | None


COLUMNS = {panel: columns(PANELS[panel]) for panel in Panel}
_KINDS = {"error": Tone.BAD, "warning": Tone.WARN, "note": Tone.MUTED, "info": Tone.NORMAL}
_FATES = {Fate.KEPT: Tone.GOOD, Fate.EMPTY: Tone.WARN, Fate.GONE: Tone.BAD}
_SIGNS = {"+": Tone.GOOD, "-": Tone.BAD, "@": Tone.ACCENT}
_Line = tuple[Place | None, tuple[str, ...], Tones]


def panel_rows(
    panel: Panel,
    programs: Programs,
    slot: Slot,
    events: Sequence[Event],
    metrics: Sequence[Snapshot],
    width: int,
    *,
    whole: bool,
) -> Rows:
    """Return the rows of a panel `width` cells wide; `whole` shows the log unfolded."""
    lines: Iterator[_Line] = iter(())
    if panel is Panel.PROBLEMS:
        lines = _problems(programs, slot, _left(panel, width))
    elif panel is Panel.LOG:
        lines = _log(programs, slot, _left(panel, width), whole=whole)
    elif panel is Panel.DIFF:
        lines = _diff(programs, slot)
    elif panel is Panel.REPORT:
        lines = _report(programs, slot, _left(panel, width))
    elif panel is Panel.METRICS:
        lines = _metrics(metrics, slot)
    else:
        lines = _events(events, slot, _left(panel, width))
    return Rows.of(
        Row(Spot(number, place), cells, tones) for number, (place, cells, tones) in enumerate(lines)
    )


def empty_text(panel: Panel, programs: Programs, slot: Slot | None) -> str:
    if slot is None:
        return ""
    checked = programs.verdict(slot.probe)
    report = checked is not None and checked.check is not None
    return {
        Panel.PROBLEMS: "no remarks" if checked else "not checked yet: f5 compiles and verifies",
        Panel.LOG: "the verifier refused nothing",
        Panel.DIFF: "this is what runs",
        Panel.REPORT: "all is kept" if report else "f5 tells what a swap would keep",
        Panel.METRICS: "no window has ended yet",
        Panel.EVENTS: "nothing has happened to this probe",
    }[panel]


def _left(panel: Panel, width: int) -> int:
    others = COLUMNS[panel][:-1]
    return max(20, width - 2 * MARGIN - 1 - sum(column.width + GAP for column in others))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ") or [""]


def _problems(programs: Programs, slot: Slot, width: int) -> Iterator[_Line]:
    verdict = programs.verdicts.get(slot.probe)
    for diagnostic in verdict.diagnostics if verdict else ():
        place = place_of(diagnostic, slot)
        where = f"{diagnostic.file}:{diagnostic.line}" if diagnostic.line else ""
        if place is not None:
            side = "" if place.side == slot.side else f"{place.side} "
            where = f"{side}line {place.line}" + (f":{place.column}" if place.column else "")
        kind = diagnostic.severity
        tones = (Tone.ACCENT if place else Tone.MUTED, _KINDS.get(kind, Tone.NORMAL), Tone.NORMAL)
        for number, text in enumerate(_wrapped(diagnostic.text, width)):
            yield place, ("", "", text) if number else (where, kind, text), tones


def _log(programs: Programs, slot: Slot, width: int, *, whole: bool) -> Iterator[_Line]:
    verdict = programs.verdicts.get(slot.probe)
    log = verdict.log if verdict else ""
    if not log:
        return
    if whole:
        rows = log.splitlines()
        if len(rows) > 50 * _MOST:
            yield None, ("", f"{len(rows) - 50 * _MOST} earlier lines are not shown"), Tone.MUTED
        for row in rows[-50 * _MOST :]:
            tone = Tone.ACCENT if row.startswith(";") else Tone.NORMAL
            yield None, ("", row.expandtabs(4)), tone
        return
    # As in a stack trace: the refusal first, then the path to it, backwards.
    refusal = fold(log)
    path = refusal.path[: -_MOST - 1 : -1]
    end = _source(programs, slot, *path[0])[0] if path else None
    for n, reason in enumerate(refusal.reason):
        for m, text in enumerate(_wrapped(reason, width)):
            yield end, ("" if n or m else "because", text), Tone.BAD
    yield end, ("refused", refusal.instruction), Tone.WARN
    for name, value in refusal.registers.items():
        for n, text in enumerate(_wrapped(value, width)):
            yield end, ("" if n else f"with {name}", text), Tone.WARN
    for number, (file, line) in enumerate(path):
        place, text = _source(programs, slot, file, line)
        where = f"{'after' if number else 'at'} line {line}" if place else f"{file}:{line}"
        tones = (Tone.ACCENT if place else Tone.MUTED, Tone.NORMAL if number else Tone.BAD)
        yield place, (where, text.expandtabs(4)), tones
    if len(path) < len(refusal.path):
        yield None, ("", f"{len(refusal.path) - len(path)} earlier lines"), Tone.MUTED
    lines = log.count("\n") + 1
    yield None, ("", f"l again shows the whole log, {lines} lines"), Tone.MUTED


def _source(programs: Programs, slot: Slot, file: str, line: int) -> tuple[Place | None, str]:
    verdict = programs.verdicts[slot.probe]
    sides = dict(verdict.config.directions())
    if file.endswith(".h"):
        own = {name: text for d in sides.values() for name, text in d.headers.items()}
        return None, header_line(file, line, own)
    side = side_of(file, slot.side)
    lines = sides[side].source.splitlines() if side in sides else []
    return Place(side, line, 0), lines[line - 1] if line <= len(lines) else ""


def _diff(programs: Programs, slot: Slot) -> Iterator[_Line]:
    draft = programs.drafts.get(slot)
    if draft is None or not draft.modified:
        return
    line = 0
    for row in unified(draft.loaded.splitlines(), draft.text.splitlines()):
        if row.startswith("@"):
            line = int(row.split("+")[1].split(",")[0].split(" ")[0]) - 1
            place = Place(slot.side, line + 1, 0)
        else:
            line += not row.startswith("-")
            place = Place(slot.side, max(1, line), 0)
        yield place, (row.expandtabs(4),), _SIGNS.get(row[0], Tone.NORMAL)


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """A unified difference without its two lines of names; each row has a sign first.

    Equal ends cost nothing. Beyond _DIFF_LINES every line counts as changed, so that a megabyte
    does not hold up the screen.
    """
    least = min(len(old), len(new))
    start = next((i for i in range(least) if old[i] != new[i]), least)
    same = next((i for i in range(least - start) if old[-1 - i] != new[-1 - i]), least - start)
    first, last = max(0, start - _CONTEXT), max(0, same - _CONTEXT)
    ours, theirs = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(ours), len(theirs)) > _DIFF_LINES:
        yield f"@@ -{first + 1},{len(ours)} +{first + 1},{len(theirs)} @@"
        yield from (f"-{row}" for row in ours[:_DIFF_LINES])
        yield from (f"+{row}" for row in theirs[:_DIFF_LINES])
        return
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
        yield f"@@ -{first + a1 + 1},{a2 - a1} +{first + b1 + 1},{b2 - b1} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {row}" for row in ours[i1:i2])
            else:
                yield from (f"-{row}" for row in ours[i1:i2])
                yield from (f"+{row}" for row in theirs[j1:j2])


def _report(programs: Programs, slot: Slot, width: int) -> Iterator[_Line]:
    verdict = programs.verdicts.get(slot.probe)
    report = verdict.check.compatibility if verdict and verdict.check else None
    if report is None:
        return
    # Losses come first.
    for cut in verdict.check.cuts if verdict and verdict.check else ():
        for number, text in enumerate(_wrapped(cut, width)):
            yield None, ("", "", "" if number else "warning", text), Tone.BAD
    yield from _warnings(report, width)
    for name in report.lost_metrics:
        yield None, ("", name, "metric vanishes", ""), Tone.BAD
    order = (Fate.GONE, Fate.EMPTY, Fate.WINDOW, Fate.KEPT, Fate.NEW, Fate.AS_IT_WAS)
    for fate in sorted(report.maps, key=lambda fate: order.index(fate.fate)):
        place = Place(fate.side, fate.line, 0) if fate.line else None
        tone = _FATES.get(fate.fate, Tone.NORMAL)
        for number, reason in enumerate(_wrapped(fate.reason, width)):
            head = ("", "", "") if number else (fate.side, fate.map, str(fate.fate))
            yield place, (*head, reason), (Tone.MUTED, Tone.NORMAL, tone, Tone.NORMAL)
    for name in report.new_metrics:
        yield None, ("", name, "new metric", ""), Tone.NORMAL


def _warnings(report: Compatibility, width: int) -> Iterator[_Line]:
    for warning in report.warnings:
        for number, text in enumerate(_wrapped(warning, width)):
            yield None, ("", "", "" if number else "warning", text), Tone.WARN


def _metrics(metrics: Sequence[Snapshot], slot: Slot) -> Iterator[_Line]:
    own = [table for table in metrics if (table.probe, table.side) == (slot.probe, slot.side)]
    for cells in metric_cells(own):
        yield None, cells, Tone.ACCENT if cells[0] else Tone.NORMAL


def _events(events: Sequence[Event], slot: Slot, width: int) -> Iterator[_Line]:
    for event in (event for event in events if event.source == slot.probe):
        time = datetime.fromtimestamp(event.utc_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
        for number, text in enumerate(_wrapped(event.text, width)):
            head = ("", "") if number else (time, event.severity)
            yield None, (*head, text), _KINDS.get(event.severity, Tone.NORMAL)
