"""What screen 5 works on: the probes that run, their sources as edited, what is known of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bpf.cancel import CancelError
from bpf.compiler import CompileError, Diagnostic
from bpf.compiler.source import INCLUDES
from bpf.errors import ProbedeckError
from probes.config.model import SIDES, DirectionConfig, ProbeConfig, Side
from probes.control_plane import Check, ControlPlane, Cost, ProbeInfo
from probes.reports import Fate, ProgramInfo

_LOST = frozenset({Fate.EMPTY, Fate.GONE})


class Slot(NamedTuple):
    """One direction of a probe: a row of the list, and an editor."""

    probe: str
    side: Side

    @property
    def file(self) -> str:
        """The source's name, in diagnostics and when it is saved."""
        return f"{self.probe}.{self.side}.c"


class Place(NamedTuple):
    """A place in a source that can be gone to."""

    side: Side
    line: int
    """From 1."""
    column: int
    """From 1; 0 where unknown."""


@dataclass(slots=True)
class Draft:
    """A direction's source as it stands in the editor."""

    running: str
    """What runs."""
    loaded: str
    """What runs as the editor gives it back: with its own ends of lines."""
    text: str
    saved: str | None = None
    """What was last written to a file."""

    @property
    def modified(self) -> bool:
        """Whether it is not what runs."""
        return self.text != self.loaded

    @property
    def unsaved(self) -> bool:
        """Whether it exists nowhere else."""
        return self.modified and self.text != self.saved


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to."""

    config: ProbeConfig
    """What was checked."""
    check: Check | None
    """None where it was refused."""
    diagnostics: tuple[Diagnostic, ...]
    log: str = ""
    """The verifier's, where it was the verifier that refused."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program took, when it was last measured."""

    ns: float
    generation: int
    time: float
    """`time.time()`."""


def examine(plane: ControlPlane, config: ProbeConfig) -> Verdict:
    """Compile and verify; takes as long as that does, and raises only CancelError."""
    try:
        check = plane.check(config)
    except CompileError as error:
        return Verdict(config, None, error.diagnostics, error.verifier_log)
    except CancelError:
        raise
    except ProbedeckError as error:
        return Verdict(config, None, (Diagnostic("", 0, 0, "error", str(error)),))
    return Verdict(config, check, check.diagnostics)


def loses(check: Check) -> bool:
    """Return whether an operator should know the report before the replacement is made."""
    report = check.compatibility
    if report is None:
        return bool(check.cuts)
    lost = any(fate.fate in _LOST for fate in report.maps)
    return bool(check.cuts or report.lost_metrics or report.warnings or lost)


def place_of(diagnostic: Diagnostic, shown: Slot) -> Place | None:
    """Where an operator can go for it; None in a header, and where no place is known."""
    if not diagnostic.line or not diagnostic.file or diagnostic.file.endswith(".h"):
        return None
    return Place(side_of(diagnostic.file, shown.side), diagnostic.line, diagnostic.column)


def side_of(file: str, shown: Side) -> Side:
    """The direction whose source this is; `shown` where it is not named after one."""
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
    """Read and changed in the event loop only."""

    infos: dict[str, ProbeInfo] = field(default_factory=dict)
    """By name; also those that were removed while they had edits."""
    removed: set[str] = field(default_factory=set)
    """Names of those."""
    drafts: dict[Slot, Draft] = field(default_factory=dict)
    """Of the sources that were looked at."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The last of each probe, which may be of a source that was edited since."""
    costs: dict[Slot, Measured] = field(default_factory=dict)

    def take(self, infos: Iterable[ProbeInfo]) -> None:
        """Know what runs now. Unedited sources follow it, edited ones are kept."""
        current = {info.name: info for info in infos}
        edited = {slot.probe for slot, draft in self.drafts.items() if draft.modified}
        self.removed = (self.infos.keys() - current.keys()) & edited
        self.infos = {**current, **{name: self.infos[name] for name in sorted(self.removed)}}
        for slot in [slot for slot in self.drafts if self.direction(slot) is None]:
            del self.drafts[slot]
        for name in self.verdicts.keys() - self.infos.keys():
            del self.verdicts[name]

    def direction(self, slot: Slot) -> DirectionConfig | None:
        """What runs there, or would."""
        info = self.infos.get(slot.probe)
        return dict(info.config.directions()).get(slot.side) if info else None

    def slots(self) -> list[Slot]:
        """Every direction of every probe, in the order of the list."""
        return [
            Slot(info.name, side) for info in self.infos.values() for side, _ in
            info.config.directions()
        ]  # fmt: skip

    def program(self, slot: Slot) -> ProgramInfo | None:
        """The program in the kernel."""
        programs = self.infos[slot.probe].programs
        return next((program for program in programs if program.side == slot.side), None)

    def modified(self, name: str) -> list[Slot]:
        """A probe's directions that are not what runs."""
        return [
            slot for slot, draft in self.drafts.items() if slot.probe == name and draft.modified
        ]

    def edited(self, name: str) -> ProbeConfig:
        """A probe's configuration with the sources as they are edited."""
        config = self.infos[name].config
        for slot in self.modified(name):
            config = config.with_source(slot.side, self.drafts[slot].text)
        return config

    def verdict(self, name: str) -> Verdict | None:
        """The last check, if it was of the source as it is now."""
        last = self.verdicts.get(name)
        return last if last is not None and last.config == self.edited(name) else None

    def measured(self, name: str, costs: Iterable[Cost]) -> None:
        """Know what a probe's programs take now."""
        generation = self.infos[name].generation
        for cost in costs:
            self.costs[Slot(name, cost.side)] = Measured(cost.ns, generation, time.time())

    def unsaved(self) -> tuple[str, ...]:
        """Files that there would be, had somebody saved them."""
        return tuple(slot.file for slot, draft in self.drafts.items() if draft.unsaved)

    def forget(self, name: str) -> None:
        """Let go of a probe, and of what was edited of it."""
        self.infos.pop(name, None)
        self.removed.discard(name)
        self.verdicts.pop(name, None)
        for slot in [slot for slot in self.drafts if slot.probe == name]:
            del self.drafts[slot]
