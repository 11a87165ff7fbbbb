"""What is wrong with a condition, and where."""

from __future__ import annotations

from collections.abc import Iterable

from bpf.errors import UsageError, did_you_mean


class ConditionError(UsageError):
    """A condition that is none."""

    def __init__(
        self, problem: str, *, column: int, hint: str = "", where: str = "condition"
    ) -> None:
        super().__init__(f"{where}, column {column}: {problem}", hint=hint)
        self.problem = problem
        """The message without the place."""
        self.column = column
        """Of the first character in question, from 1; behind the last one where something is
        missing there."""


def shown(what: object) -> str:
    """A part of a condition in a message, quoted, and not all of it where it is long."""
    text = str(what)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def nearest(name: str, names: Iterable[str]) -> str:
    """`did_you_mean`, whatever the case."""
    known = list(names)
    alike = (other for other in known if other.lower() == name.lower())
    return did_you_mean(next(alike, name.lower()), known)
