"""The model of screen 5: running probes, their edited sources, checks and costs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.tape.named_state import StateValues
from bpf.compiler import CompileError, Diagnostic
from bpf.compiler.source import INCLUDES
from bpf.errors import CancelError, ProbedeckError, UsageError, did_you_mean
from probes.config.model import SIDES, DirectionConfig, ProbeConfig, Side
from probes.control_plane import ControlPlane
from probes.reports import Check, Cost, Fate, ProbeInfo, ProgramInfo

_COMMENT = re.compile(r"/\*(.*?)\*/|//([^\n]*)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.:;])\s")
_REFERENCE = re.compile(r" \(S\d[^)]*\)")
_LOST = frozenset({Fate.EMPTY, Fate.GONE})


class Slot(NamedTuple):
    """One direction of a probe: a row of the list, and an editor."""

    probe: str
    side: Side

    @property
    def file(self) -> str:
        """Name of the source in diagnostics, and its default file name."""
        return f"{self.probe}.{self.side}.c"


class Place(NamedTuple):
    """A line of a source."""

    side: Side
    line: int
    """From 1."""
    column: int
    """From 1; 0 if unknown."""


@dataclass(slots=True)
class Draft:
    """The source of a direction in the editor."""

    running: str
    """The running source."""
    loaded: str
    """The running source with the editor's line ends."""
    text: str
    saved: str | None = None
    """Text of the last save."""

    @property
    def modified(self) -> bool:
        """Whether it differs from the running source."""
        return self.text != self.loaded

    @property
    def unsaved(self) -> bool:
        """Whether no file and no program has the text."""
        return self.modified and self.text != self.saved


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check."""

    config: ProbeConfig
    """The checked configuration."""
    check: Check | None
    """None for a refused source."""
    diagnostics: tuple[Diagnostic, ...]
    log: str = ""
    """Log of the verifier, if the verifier refused."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Last measured cost of a program."""

    ns: float
    generation: int
    utc_ns: int


def examine(plane: ControlPlane, config: ProbeConfig) -> Verdict:
    """Compile and verify in this thread. Raises only CancelError."""
    try:
        check = plane.check(config)
    except CompileError as error:
        return Verdict(config, None, error.diagnostics, error.verifier_log)
    except CancelError:
        raise
    except ProbedeckError as error:
        return Verdict(config, None, (Diagnostic("", 0, 0, "error", str(error)),))
    return Verdict(config, check, check.diagnostics)


def purpose_of(source: str) -> str:
    """Return the first sentence of the first comment of a source; empty without a comment."""
    for found in _COMMENT.finditer(source):
        words = " ".join(
            line.strip(" *\t") for line in (found[1] or found[2] or "").splitlines()
        ).strip()
        if words and not words.startswith("SPDX-"):
            first = _SENTENCE_END.split(words)[0]
            return _REFERENCE.sub("", first).rstrip(".:")
    return ""


def loses(check: Check) -> bool:
    """Return whether the user should know the report before the swap."""
    report = check.compatibility
    if report is None:
        return bool(check.cuts)
    lost = any(fate.fate in _LOST for fate in report.maps)
    return bool(check.cuts or report.lost_metrics or report.warnings or lost)


def place_of(diagnostic: Diagnostic, shown: Slot) -> Place | None:
    """Return the place of a problem; None in a header or without a line."""
    if not diagnostic.line or not diagnostic.file or diagnostic.file.endswith(".h"):
        return None
    return Place(side_of(diagnostic.file, shown.side), diagnostic.line, diagnostic.column)


def side_of(file: str, shown: Side) -> Side:
    """Return the direction of a source file; `shown` if the name has none."""
    return next((side for side in SIDES if file.endswith(f".{side}.c")), shown)


def header_line(file: str, line: int, own: Mapping[str, str]) -> str:
    """Return a line of one of the probe's `own` headers, or of bpf/include; empty if unknown."""
    path = INCLUDES / file
    if file not in own and (path.parent != INCLUDES or not path.is_file()):
        return ""
    text = own[file] if file in own else path.read_text(encoding="utf-8")
    lines = text.splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""


@dataclass(slots=True)
class Programs:
    """Only the event loop reads and changes it."""

    infos: dict[str, ProbeInfo] = field(default_factory=dict)
    """By name; with removed probes that have edits."""
    removed: set[str] = field(default_factory=set)
    """Names of removed probes with edits."""
    drafts: dict[Slot, Draft] = field(default_factory=dict)
    """Drafts of opened sources."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Last check of each probe; the source may have changed since."""
    costs: dict[Slot, Measured] = field(default_factory=dict)

    def take(self, infos: Iterable[ProbeInfo]) -> None:
        """Take the running probes; edited sources stay."""
        current = {info.name: info for info in infos}
        edited = {slot.probe for slot, draft in self.drafts.items() if draft.modified}
        self.removed = (self.infos.keys() - current.keys()) & edited
        self.infos = {**current, **{name: self.infos[name] for name in sorted(self.removed)}}
        for slot in [slot for slot in self.drafts if self.direction(slot) is None]:
            del self.drafts[slot]
        for name in self.verdicts.keys() - self.infos.keys():
            del self.verdicts[name]

    def direction(self, slot: Slot) -> DirectionConfig | None:
        info = self.infos.get(slot.probe)
        return dict(info.config.directions()).get(slot.side) if info else None

    def target(self, name: str, shown: Slot | None) -> str:
        """Return `name`, or the probe of the visible source without one. Raises UsageError."""
        if name in self.infos:
            return name
        if name:
            raise UsageError(f"there is no probe {name!r}", hint=did_you_mean(name, self.infos))
        if shown is None:
            raise UsageError("there is no probe here")
        return shown.probe

    def slots(self) -> list[Slot]:
        """Return every direction of every probe, in the order of the list."""
        return [
            Slot(info.name, side) for info in self.infos.values() for side, _ in
            info.config.directions()
        ]  # fmt: skip

    def program(self, slot: Slot) -> ProgramInfo | None:
        """Return the program in the kernel, or None."""
        programs = self.infos[slot.probe].programs
        return next((program for program in programs if program.side == slot.side), None)

    def modified(self, name: str) -> list[Slot]:
        """Return a probe's directions with edits."""
        return [
            slot for slot, draft in self.drafts.items() if slot.probe == name and draft.modified
        ]

    def edited(self, name: str) -> ProbeConfig:
        """Return a probe's configuration with the edited sources."""
        config = self.infos[name].config
        for slot in self.modified(name):
            config = config.with_source(slot.side, self.drafts[slot].text)
        return config

    def verdict(self, name: str) -> Verdict | None:
        """Return the last check if the source is unchanged since."""
        last = self.verdicts.get(name)
        return last if last is not None and last.config == self.edited(name) else None

    def next_problem(self, shown: Slot, here: Place) -> Place | None:
        """Return the place of the next error after `here`, or of the next warning without errors.

        `shown` is the visible source; its problems come first. None without a place.
        """
        verdict = self.verdicts.get(shown.probe)
        diagnostics = verdict.diagnostics if verdict else ()
        errors = [d for d in diagnostics if d.severity == "error"]
        chosen = errors or [d for d in diagnostics if d.severity == "warning"]
        places = {place for d in chosen if (place := place_of(d, shown))}
        order = sorted(places, key=lambda place: (place.side != here.side, place))
        after = (p for p in order if p.side != here.side or p[1:] > here[1:])
        return next(after, order[0] if order else None)

    def measured(self, name: str, costs: Iterable[Cost]) -> None:
        """Take the measured costs of a probe's programs."""
        generation = self.infos[name].generation
        for cost in costs:
            self.costs[Slot(name, cost.side)] = Measured(cost.ns, generation, time.time_ns())

    def unsaved(self) -> tuple[str, ...]:
        """Return default file names of sources with unsaved edits."""
        return tuple(slot.file for slot, draft in self.drafts.items() if draft.unsaved)

    def states(self, slot: Slot | None, doing: str) -> StateValues:
        """Return named states about the chosen source; `doing` names a change or a check."""
        values: StateValues = {"program.count": len(self.infos), "program.state": "none"}
        if slot is None or slot.probe not in self.infos:
            return values
        info, verdict = self.infos[slot.probe], self.verdict(slot.probe)
        state = "ended" if info.failure else "running"
        if self.modified(slot.probe):
            state = "edited"
            if verdict is not None:
                state = "ready" if verdict.check is not None else "failed"
        return values | {
            "program.probe": slot.probe,
            "program.state": doing or state,
            "program.generation": info.generation,
            "program.problems": len(verdict.diagnostics) if verdict is not None else None,
        }

    def forget(self, name: str) -> None:
        """Forget a probe and its edits."""
        self.infos.pop(name, None)
        self.removed.discard(name)
        self.verdicts.pop(name, None)
        for slot in [slot for slot in self.drafts if slot.probe == name]:
            del self.drafts[slot]


def first_states(console: object) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    return Programs().states(None, "")
