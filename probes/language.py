"""Reading of a text from left to right: the base of filters, conditions and tapes."""

from __future__ import annotations

import re
from typing import NoReturn

from bpf.errors import TextError

MAX_DEPTH = 20
"""Nested parentheses, functions, negations and saved filters."""
_SPACE = re.compile(r"\s*")


class TextReader:
    """A text, and the place up to which it is read."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        """Start of the unread rest."""
        self.depth = depth

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read a match of `pattern`. Returns None, without reading, if the rest does not match."""
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return found

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read a match of `pattern`; empty if the rest does not match."""
        found = self.match(pattern)
        return found[0] if found else ""

    def skip(self, characters: int = 0) -> None:
        """Read some characters, and the space behind them."""
        self.at += characters
        self.match(_SPACE)

    def enter(self, at: int | None = None) -> None:
        """Begin a nested part. Raises TextError if there are too many."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} levels", at)

    def refuse(self, problem: str, at: int | None = None, *, hint: str = "") -> NoReturn:
        """Raise a TextError at an index; by default at the unread rest."""
        raise TextError(problem, self.text, (self.at if at is None else at) + 1, hint=hint)
