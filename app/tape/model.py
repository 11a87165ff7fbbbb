"""Tapes, their steps with places, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.tape.instruction import TapeInstruction
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
