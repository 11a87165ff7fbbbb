"""A mistake in a part of a filter, before its whole text is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bpf.errors import TextError


class TermError(Exception):
    """A mistake at a column of the text, from 1."""

    def __init__(self, problem: str, column: int, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.column = column
        self.hint = hint


@contextmanager
def placed(text: str) -> Iterator[None]:
    try:
        yield
    except TermError as error:
        raise TextError(error.problem, text, error.column, hint=error.hint) from None
