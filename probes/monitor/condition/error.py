"""Mistakes in a condition, with their column."""

from __future__ import annotations

from collections.abc import Iterable

from bpf.errors import UsageError, did_you_mean


class ConditionError(UsageError):
    def __init__(
        self, problem: str, *, column: int, hint: str = "", where: str = "condition"
    ) -> None:
        super().__init__(f"{where}, column {column}: {problem}", hint=hint)
        self.problem = problem
        """The message without its place."""
        self.column = column
        """Column of the mistake's first character, from 1; behind the last one if something is
        missing there."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`did_you_mean`, ignoring case."""
    known = list(names)
    alike = (other for other in known if other.lower() == name.lower())
    return did_you_mean(next(alike, name.lower()), known)
