"""The lower half of screen 5: tables about a source, whose rows lead to its lines."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from textual.app import ComposeResult
from textual.containers import Vertical

from app.console.live.maps import is_value, key_and_value
from app.console.screens.events.columns import time_of
from app.console.screens.programs.columns import MAPS, PANELS
from app.console.screens.programs.model import Place, Programs, Slot, header_line, place_of, side_of
from app.console.tables.sorted_table import SortedTable
from app.console.tables.spec import columns
from bpf.quantities import counted, duration
from probes.reports import Fate
from probes.snapshot import Event, Snapshot
from probes.tables.conversion import columns as names_of
from probes.tables.conversion import flat_rows
from widgets.status import StatusItem, StatusStrip
from widgets.table.columns import GAP, MARGIN
from widgets.table.rows import Row, Rows, Tones
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_PLACE = re.compile(r"^; .*@ (?P<file>[^\s:]+):(?P<line>\d+)$")
_INSTRUCTION = re.compile(r"^\d+: \((?P<code>[0-9a-f]{2})\) (?P<text>[^;]*)")
_STATE = re.compile(r"^(\d+: R\d|from \d+ to )")
_START = "0: R1=ctx"
_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_REGISTER = re.compile(rf"\b(R\d+)(?:_\w+)?=((?:[^\s(]|{_NESTED})+)")
_OPERAND = re.compile(r"\b[rw](\d+)\b")
_RESULT = re.compile(r"^[rw]\d+ = ")
_CALL = "85"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: its reason, and the path to it."""

    path: tuple[tuple[str, int], ...]
    """File and line of each source line on the path, the refused one last."""
    instruction: str
    """The refused instruction; empty if the log names none."""
    registers: Mapping[str, str]
    """State of the registers that it uses."""
    reason: tuple[str, ...]
    """The verifier's words."""


def fold(log: str) -> Refusal:
    """Return the refusal of a log; of several programs' logs, the last one's.

    At log level 1 the kernel drops verified branches: the log is the path to the refused
    instruction.
    """
    path: list[tuple[str, int]] = []
    known: dict[str, str] = {}
    place: tuple[str, int] | None = None
    instruction = code = ""
    reason: list[str] = []
    for row in log.splitlines():
        if row.startswith(_START):
            path.clear()
            known.clear()
        if found := _PLACE.match(row):
            # Line 0 is an instruction of the compiler's own.
            place = (found["file"], int(found["line"])) if found["line"] != "0" else place
        elif found := _INSTRUCTION.match(row):
            instruction, code = found["text"].strip(), found["code"]
            if place is not None and path[-1:] != [place]:
                path.append(place)
            known.update(_REGISTER.findall(row))
            reason.clear()
        elif _STATE.match(row):
            known.update(_REGISTER.findall(row))
        elif row.strip() and not row.startswith(("processed ", ";")):
            reason.append(row.strip())
    numbers = {int(number) for number in _OPERAND.findall(_RESULT.sub("", instruction))}
    if code == _CALL:
        numbers = {1, 2, 3, 4, 5}
    used = {name: known[name] for n in sorted(numbers) if (name := f"R{n}") in known}
    return Refusal(tuple(path), instruction, used, tuple(reason))


_MOST = 400
"""Most lines of a path or a log."""
_DIFF_LINES = 3000
"""Most changed lines for a smallest difference."""
_CONTEXT = 3
MOST_ENTRIES = 200
"""Entries of a metric that are shown; files and the API have all."""


class Panel(StrEnum):
    """The panels, by their titles."""

    PROBLEMS = "problems"
    LOG = "log"
    DIFF = "diff"
    REPORT = "report"
    MAPS = "maps"
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
    # Cells of the last column.
    others = sum(column.width + GAP for column in COLUMNS[panel][:-1])
    left = max(20, width - 2 * MARGIN - 1 - others)
    lines: Iterable[_Line]
    if panel is Panel.PROBLEMS:
        lines = _problems(programs, slot, left)
    elif panel is Panel.LOG:
        lines = _log(programs, slot, left, whole=whole)
    elif panel is Panel.DIFF:
        lines = _diff(programs, slot)
    elif panel is Panel.REPORT:
        lines = _report(programs, slot, left)
    elif panel is Panel.METRICS:
        lines = _metrics(metrics, slot)
    elif panel is Panel.EVENTS:
        lines = _events(events, slot, left)
    else:
        lines = ()  # maps have a table of their own
    return Rows.of(
        Row(Spot(number, place), cells, tones) for number, (place, cells, tones) in enumerate(lines)
    )


def empty_text(panel: Panel, programs: Programs, slot: Slot | None) -> str:
    if slot is None:
        return ""
    direction = programs.direction(slot)
    exported = direction is not None and any(metric.export for metric in direction.metrics)
    checked = programs.verdict(slot.probe)
    report = checked is not None and checked.check is not None
    return {
        Panel.PROBLEMS: "No problems." if checked else "Not checked yet: f5 compiles and verifies.",
        Panel.LOG: "Verifier accepted it."
        if report
        else "Not verified: see its problems."
        if checked
        else "Not verified yet: f5 does it.",
        Panel.DIFF: "No edits: this source runs.",
        Panel.REPORT: "A swap keeps everything." if report else "f5 tells what a swap would keep.",
        Panel.MAPS: "The maps are at the right.",
        Panel.METRICS: _no_metrics(
            slot, built_in=programs.infos[slot.probe].builtin, exported=exported
        ),
        Panel.EVENTS: "No events of this probe yet.",
    }[panel]


def _no_metrics(slot: Slot, *, built_in: bool, exported: bool) -> str:
    """Return why no table of a metric is there, and the way to one."""
    if built_in:
        return "Rows of built-in probes are on their own screens. Its maps: press o."
    if exported:
        return "No window has ended yet."
    return (
        "The probe has no metric, so files get no table. Its maps are there all the same: press o."
        f'\nAdd to the probe\'s file:  [[{slot.side}.metrics]]  name = "NAME"  map = "MAP"'
    )


def _wrapped(
    place: Place | None, head: tuple[str, ...], text: str, width: int, tones: Tones
) -> Iterator[_Line]:
    """Yield the lines of a text; `head` has the cells before the first one."""
    for part in textwrap.wrap(text, width, subsequent_indent="  ") or [""]:
        yield place, (*head, part), tones
        head = ("",) * len(head)


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
        yield from _wrapped(place, (where, kind), diagnostic.text, width, tones)


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
        yield from _wrapped(end, ("" if n else "because",), reason, width, Tone.BAD)
    yield end, ("refused", refusal.instruction), Tone.WARN
    for name, value in refusal.registers.items():
        yield from _wrapped(end, (f"with {name}",), value, width, Tone.WARN)
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
    check = verdict.check if verdict else None
    if check is None or (report := check.compatibility) is None:
        return
    # Losses come first.
    for texts, tone in ((check.cuts, Tone.BAD), (report.warnings, Tone.WARN)):
        for text in texts:
            yield from _wrapped(None, ("", "", "warning"), text, width, tone)
    for name in report.lost_metrics:
        yield None, ("", name, "metric vanishes", ""), Tone.BAD
    order = (Fate.GONE, Fate.EMPTY, Fate.WINDOW, Fate.KEPT, Fate.NEW, Fate.AS_IT_WAS)
    for fate in sorted(report.maps, key=lambda fate: order.index(fate.fate)):
        place = Place(fate.side, fate.line, 0) if fate.line else None
        tones = (Tone.MUTED, Tone.NORMAL, _FATES.get(fate.fate, Tone.NORMAL), Tone.NORMAL)
        head = (fate.side, fate.map, str(fate.fate))
        yield from _wrapped(place, head, fate.reason, width, tones)
    for name in report.new_metrics:
        yield None, ("", name, "new metric", ""), Tone.NORMAL


def _metrics(metrics: Sequence[Snapshot], slot: Slot) -> Iterator[_Line]:
    own = [table for table in metrics if (table.probe, table.side) == (slot.probe, slot.side)]
    for table in own:
        assert table.schema is not None
        names = names_of(table.schema, table.rows.dtype)
        heading = (name.removeprefix("key.") for name in names if not is_value(name))
        yield None, (table.metric, " ".join(heading), _about(table)), Tone.ACCENT
        for row in flat_rows(table.schema, table.rows[:MOST_ENTRIES], table.utc_ns(0)):
            yield None, ("", *key_and_value(names, row)), Tone.NORMAL
        if len(table.rows) > MOST_ENTRIES:
            more = f"{len(table.rows) - MOST_ENTRIES} more entries"
            yield None, ("", "", more), Tone.NORMAL


def _about(table: Snapshot) -> str:
    entries = len(table.rows)
    count = "1 entry" if entries == 1 else f"{entries} entries"
    full = ", and its map is full" if table.occupancy >= 1 else ""
    help_text = f": {table.schema.help}" if table.schema and table.schema.help else ""
    return f"window {table.window}, {duration(table.seconds)}, {count}{full}{help_text}"


def _events(events: Sequence[Event], slot: Slot, width: int) -> Iterator[_Line]:
    for event in (event for event in events if event.source == slot.probe):
        tone = _KINDS.get(event.severity, Tone.NORMAL)
        yield from _wrapped(None, (time_of(event), event.severity), event.text, width, tone)


class SourcePanel(Vertical):
    """Tables about a source, one at a time."""

    DEFAULT_CSS = """
    SourcePanel { height: auto; }
    SourcePanel #maps-panel { display: none; }
    SourcePanel.-maps #maps-panel { display: block; }
    SourcePanel.-maps #panel { display: none; }
    """

    def __init__(self, model: Programs) -> None:
        super().__init__()
        self._model = model
        self._whole_log = False
        self.chosen = Panel.PROBLEMS

    def compose(self) -> ComposeResult:
        yield StatusStrip(id="panels")
        yield VirtualTable(COLUMNS[self.chosen], id="panel")
        yield SortedTable(MAPS, id="maps-panel")

    @property
    def table(self) -> VirtualTable:
        return self.query_one("#panel", VirtualTable)

    @property
    def is_live(self) -> bool:
        """Whether each window or event may change the panel."""
        return self.chosen in (Panel.METRICS, Panel.EVENTS)

    def choose(self, panel: Panel) -> None:
        if panel is not self.chosen:
            self.chosen = panel
            self.table.columns = COLUMNS[panel]
            self.table.action_top()
            self.set_class(panel is Panel.MAPS, "-maps")

    def unfold_log(self) -> None:
        """Show the visible log whole, or folded again; another panel's next log is folded."""
        self._whole_log = self.chosen is Panel.LOG and not self._whole_log

    def show(self, slot: Slot | None, events: Sequence[Event], metrics: Sequence[Snapshot]) -> None:
        verdict = self._model.verdict(slot.probe) if slot else None
        titles = []
        for panel in Panel:
            text, tone = str(panel), Tone.MUTED
            if panel is Panel.PROBLEMS and verdict and verdict.diagnostics:
                text, tone = counted(len(verdict.diagnostics), "problem"), Tone.WARN
            chosen = panel is self.chosen
            titles.append(StatusItem(text, Tone.ACCENT if chosen else tone, badge=chosen))
        titles.append(StatusItem("f3 next panel", Tone.MUTED, priority=8))
        if verdict and verdict.diagnostics:
            titles.append(StatusItem("f4 next problem", Tone.MUTED, priority=9))
        self.query_one(StatusStrip).show(titles)
        table = self.table
        table.empty = empty_text(self.chosen, self._model, slot)
        if slot is not None and slot in self._model.drafts:
            table.show(
                panel_rows(
                    self.chosen, self._model, slot, events, metrics, table.size.width,
                    whole=self._whole_log,
                )
            )  # fmt: skip
