"""Errors that reach an operator: what happened, what to do, and an exit code for each kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProbedeckError(Exception):
    """Base of every error that is shown to a user as one line, never as a traceback."""

    exit_code = 1
    placed = False
    """Whether it begins with the file and the line that it is about."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        """What happened, and with which input."""
        self.hint = hint
        """What to do about it; empty where there is nothing."""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(ProbedeckError):
    """An option, a configuration or a source that is wrong."""

    exit_code = 2


class ReadOnlyError(UsageError):
    """A change, or code to be loaded, while the controller is read-only."""


class TextError(UsageError):
    """Something that was typed and is not understood, and where in it."""

    def __init__(self, problem: str, text: str, column: int, *, hint: str = "") -> None:
        """`column` of `text` counts from 1."""
        super().__init__(f"{problem} (column {column})", hint=hint)
        self.problem = problem
        """What is wrong, without where."""
        self.text = text
        self.column = column

    def of(self, where: str) -> TextError:
        """The same, saying where the text was given: `--filter`."""
        return TextError(f"{where}: {self.problem}", self.text, self.column, hint=self.hint)

    @property
    def marked(self) -> str:
        """Two lines: the text, and a caret below the place. What prints nothing is `?` there."""
        shown = "\t".join(map(printable, self.text.split("\t")))
        before = "".join(map(_blank, shown[: self.column - 1]))
        return f"{shown}\n{before}^"


class KernelError(ProbedeckError):
    """A privilege or a kernel feature that monitoring needs and does not have."""

    exit_code = 4


def _blank(character: str) -> str:
    """As wide on a terminal as a character."""
    import unicodedata  # which most runs do without

    if character == "\t":
        return character
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def printable(text: str) -> str:
    """With `?` for each character that prints nothing, or makes a terminal do something."""
    return "".join(c if c.isprintable() else "?" for c in text)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint: the nearest of `names`, whatever the case, or else what there is, in their order."""
    known = list(names)
    folded = {each.casefold(): each for each in reversed(known)}
    if near := difflib.get_close_matches(name.casefold(), folded, n=1):
        return f"did you mean {folded[near[0]]}?"
    return f"there are {', '.join(known)}" if known else ""
