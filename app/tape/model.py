"""What a tape says: steps with their places, and what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.commands import Invocation
from app.tape.condition import StateCondition
from bpf.errors import ProbedeckError, UsageError

TIMEOUT = 15.0
"""Seconds that a `Wait` has where nothing is said; as with VHS."""
PATIENCE = 1.0
"""Seconds that an `Expect` has: what is shown may be a frame late."""


@dataclass(frozen=True, slots=True)
class TapePlace:
    """Where something is in a tape."""

    file: str
    line: int
    """From 1."""
    column: int = 1
    """From 1."""


@dataclass(frozen=True, slots=True)
class Action:
    """`Action flow.sort rate`, or the command by itself."""

    asked: Invocation


@dataclass(frozen=True, slots=True)
class Type:
    """`Type@50ms "text"`."""

    text: str
    pause: float | None = None
    """Seconds after each character; None: as `Set TypingSpeed` says."""


@dataclass(frozen=True, slots=True)
class Press:
    """`Enter 2`, `Ctrl+P`, `Key "f13"`."""

    key: str
    """As the console calls it: `ctrl+p`, `question_mark`."""
    count: int = 1
    pause: float | None = None
    """As of Type."""


@dataclass(frozen=True, slots=True)
class ScreenPattern:
    """Something to be on the screen."""

    pattern: re.Pattern[str]
    whole: bool
    """Whether all the screen is searched, or the line with the cursor only."""

    @property
    def shown(self) -> str:
        return f"/{self.pattern.pattern}/"


@dataclass(frozen=True, slots=True)
class Wait:
    """`Wait`, `Wait+Screen@5s /text/`, `Wait@5s program.state == "ready"`."""

    until: ScreenPattern | StateCondition | None = None
    """None: until nothing is going on that was asked for."""
    timeout: float | None = None
    """Seconds; None: as `Set WaitTimeout` says."""


@dataclass(frozen=True, slots=True)
class Expect:
    """`Expect program.state == "ready"`."""

    condition: StateCondition


@dataclass(frozen=True, slots=True)
class Sleep:
    """`Sleep 500ms`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Export:
    """`Export flows "flows.csv"`."""

    view: Invocation
    command: Invocation
    path: str


@dataclass(frozen=True, slots=True)
class Screenshot:
    """`Screenshot "x.svg"`."""

    path: str


TapeInstruction: TypeAlias = "Action | Type | Press | Wait | Expect | Sleep | Export | Screenshot"


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One thing to be done."""

    place: TapePlace
    text: str
    """The line, without its comment."""
    instruction: TapeInstruction
    patience: float = TIMEOUT
    """Seconds that what it begins may take, where it does not say that itself."""

    @property
    def writes(self) -> bool:
        """Whether it changes what runs. What keys do is known only when they are pressed."""
        return isinstance(self.instruction, Action) and self.instruction.asked.command.writes


@dataclass(frozen=True, slots=True)
class Requirement:
    """`Require probedeck >= 0.3`, `Require dig`."""

    place: TapePlace
    program: str
    operator: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Tape:
    """A tape that is understood, with those that it names by `Source` in their places."""

    name: str
    """Its file's without directory and suffix."""
    steps: tuple[TapeStep, ...]
    requirements: tuple[Requirement, ...] = ()
    width: int = 120
    """Columns of a screen that is not shown anywhere."""
    height: int = 40
    """Its lines."""
    title: str = ""
    """Its first line, where that is a comment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in a tape that is not understood, or cannot be."""

    place: TapePlace
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.place.file}:{self.place.line}:{self.place.column}"
        return f"{place}: {self.message}" + (f"; {self.hint}" if self.hint else "")


class TapeError(UsageError):
    """A tape that is wrong: every fault of it, one a line."""

    placed = True

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class StepError(ProbedeckError):
    """A step that came to something else than the tape expects."""

    exit_code = 3
    placed = True

    def __init__(self, place: TapePlace, reason: str) -> None:
        super().__init__(f"{place.file}:{place.line}: {reason}")
        self.place = place
