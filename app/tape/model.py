"""Tapes, their steps with places, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, Self

from app.commands.line import Invocation
from app.commands.model import Saved
from app.tape.condition import EventPattern
from app.tape.line import TapeLine
from app.tape.named_state import StateValue
from bpf.errors import ProbedeckError, UsageError

TIMEOUT = 15.0
"""Seconds of a `Wait` without a time, like VHS."""


@dataclass(frozen=True, slots=True)
class TapePlace:
    """A place in a tape; lines and columns count from 1."""

    file: str
    line: int
    column: int = 1


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One step and its place."""

    place: TapePlace
    text: str
    """The line, without its comment."""
    instruction: TapeInstruction
    patience: float = TIMEOUT
    """Seconds for the work that the step starts, unless it states a time."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """`Require probedeck >= 0.3`, `Require dig`."""

    place: TapePlace
    program: str
    operator: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Tape:
    """A tape, with the steps of its sources in their places."""

    name: str
    """Name of the file, without directory and suffix."""
    steps: tuple[TapeStep, ...]
    requirements: tuple[Requirement, ...] = ()
    width: int = 120
    """Columns of a screen that is not shown."""
    height: int = 40
    title: str = ""
    """The first line, if it is a comment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake in a tape."""

    place: TapePlace
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.place.file}:{self.place.line}:{self.place.column}"
        return f"{place}: {self.message}" + (f"; {self.hint}" if self.hint else "")


class TapeError(UsageError):
    """A tape with mistakes, one a line."""

    placed = True

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class StepError(ProbedeckError):
    """A step that failed."""

    exit_code = 3
    placed = True

    def __init__(self, place: TapePlace, reason: str) -> None:
        super().__init__(f"{place.file}:{place.line}: {reason}")


Forms = tuple[tuple[str, str], ...]


class TapeStage(Protocol):
    """The console as steps see it. Its methods raise StepError if the step fails."""

    @property
    def patience(self) -> float:
        """Seconds for a step that states no time."""

    async def run_command(self, asked: Invocation) -> None: ...
    async def press(self, key: str, character: str | None, pause: float) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    async def idle(self, seconds: float) -> None:
        """Wait until all requested work is done and drawn."""

    async def until(self, seconds: float, holds: Callable[[], bool]) -> bool: ...
    def state(self, name: str) -> StateValue: ...
    def sees(self, pattern: re.Pattern[str], *, whole: bool) -> bool: ...
    def picture(self, path: Path) -> None: ...
    @property
    def text(self) -> str:
        """The lines of the screen."""

    @property
    def updates_golden(self) -> bool:
        """Whether `Compare` writes its file."""

    def skip(self, steps: int) -> None:
        """Leave out the next steps."""

    def react(self, pattern: EventPattern, steps: Sequence[Any]) -> None:
        """Play TapeSteps, between others, after each event that matches."""

    def fail(self, reason: str) -> NoReturn: ...


@dataclass(frozen=True, slots=True)
class LineHead:
    """The start of a line, such as `Wait+Screen@5s`."""

    joined: str
    """Text from the first plus sign on."""
    seconds: float | None
    joined_at: int
    saved: Saved


class TapeInstruction:
    """One kind of step. Its `read` reads the values after the verb, or raises TextError."""

    forms: ClassVar[Forms]
    timed: ClassVar[bool] = False
    """The verb may have a time."""
    joins: ClassVar[bool] = False
    """The verb may be joined to others with a plus sign."""
    settles: ClassVar[bool] = True
    """The next step waits until the console is idle."""

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        raise NotImplementedError

    async def play(self, stage: TapeStage) -> None:
        raise NotImplementedError

    @property
    def writes(self) -> bool:
        """The step changes what runs. The effect of a key is known only when it is pressed."""
        return False
