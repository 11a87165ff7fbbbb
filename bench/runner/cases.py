"""Cases: the comparisons of a bench, as data for the runner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from bpf.compiler import Compiler
from bpf.errors import ProbedeckError

T = TypeVar("T")
Measure = Callable[[], float]
"""One measurement, in the unit of its case."""


class MissingError(ProbedeckError):
    """The further cases of a group need something that this machine does not have."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Bounds of a number, both included."""

    most: float = math.inf
    least: float = -math.inf

    def met(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.most:g}"
        return f"at most {self.most:g}" if self.most < math.inf else f"at least {self.least:g}"


def at_most(number: float) -> Goal:
    return Goal(most=number)


def at_least(number: float) -> Goal:
    return Goal(least=number)


def exactly(number: float) -> Goal:
    return Goal(number, number)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: cases of several sizes. The exponent of its growth is a result."""

    chart: str
    name: str
    x: str
    """The unit of the sizes, such as `flows`."""
    goal: Goal | None = None
    """Of the exponent."""
    fit: bool = True
    """Whether it has an exponent."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement of ours, and of its peer in the same round."""

    name: str
    """With the size."""
    unit: str
    ours: Measure
    peer: Measure | None = None
    against: str = ""
    """The peer's name."""
    floor: Measure | None = None
    """Is subtracted from both."""
    goal: Goal | None = None
    """Of the ratio of ours to the peer; without a peer, of ours."""
    figure: str = ""
    """The paper's figure that this repeats, such as `S1 4a`."""
    paper: str = ""
    """The paper's result."""
    line: Line | None = None
    size: float = 0
    """On the line."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run of benches may take."""

    quick: bool
    compiler: Compiler
    """Which all groups share."""

    def of(self, full: T, quick: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a set-up, and are measured by turns.

    A measurement that several cases have in common is made once in each round.
    """

    name: str
    make: Callable[[ExitStack, Effort], Iterable[Case]]
    """Makes the cases; the stack closes what they need. Raises MissingError after the last one."""
    rounds: int = 9
    warm: bool = True
    """Whether a first round does not count."""
