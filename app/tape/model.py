"""What a tape says: steps with their places, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.tape.steps import TapeInstruction
from bpf.errors import ProbedeckError, UsageError

TIMEOUT = 15.0
"""Seconds that a `Wait` has where nothing is said; as with VHS."""


@dataclass(frozen=True, slots=True)
class TapePlace:
    """Where something is in a tape."""

    file: str
    line: int
    """From 1."""
    column: int = 1
    """From 1."""


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One thing to be done."""

    place: TapePlace
    text: str
    """The line, without its comment."""
    instruction: TapeInstruction
    patience: float = TIMEOUT
    """Seconds that what it begins may take, where it does not say that itself."""


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
