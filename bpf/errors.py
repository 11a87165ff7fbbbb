"""Errors that users see, with hint and exit code; cancellation of work; closing of resources."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

MORE_FILES = "raise the limit of open files: ulimit -n 1024, or LimitNOFILE=1024 in a unit"
"""Remedy for EMFILE."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 15.0


def wait_after(failures: int) -> float:
    """Return the seconds until the next attempt, after so many failures in a row."""
    return min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 32), LONGEST_WAIT_S)


class ProbedeckError(Exception):
    """Base of every error that is shown to a user as one line, never as a traceback."""

    exit_code = 1
    placed = False
    """Whether the message begins with a file and a line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        """The event and the input that caused it."""
        self.hint = hint
        """The remedy; empty if there is none."""

    def __str__(self) -> str:
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        # Names of files may be another user's, and write to the terminal of this one.
        return "\n".join(map(printable, text.expandtabs(1).split("\n")))

    @property
    def mistakes(self) -> Sequence[ProbedeckError]:
        """The error itself, or the errors that it consists of."""
        return (self,)

    def of(self, where: str) -> UsageError:
        """Return the same error with the place of the input, such as `--filter`."""
        return UsageError(f"{where}: {self.message}", hint=self.hint)

    def within(self, text: str, begin: int = 0) -> TextError:
        """Return the error with its column in a text whose part from index `begin` is wrong."""
        return TextError(self.message, text, begin + 1, hint=self.hint)


class UsageError(ProbedeckError):
    """A mistake in an option, a configuration or a source."""

    exit_code = 2


class ReadOnlyError(UsageError):
    """A change, or code to be loaded, while the controller is read-only."""


class TextError(UsageError):
    """A syntax error in operator input, with its column."""

    def __init__(self, problem: str, text: str, column: int, *, hint: str = "") -> None:
        """`column` of `text` counts from 1."""
        super().__init__(f"{problem} (column {column})", hint=hint)
        self.problem = problem
        """The mistake, without its place."""
        self.text = text
        self.column = column

    def within(self, text: str, begin: int = 0) -> TextError:
        return TextError(self.problem, text, begin + self.column, hint=self.hint)

    def of(self, where: str) -> TextError:
        return TextError(f"{where}: {self.problem}", self.text, self.column, hint=self.hint)

    @property
    def marked(self) -> str:
        """Return two lines: the text, `?` for unprintable characters, and a caret.

        Empty for an empty text, such as the end of a file.
        """
        if not self.text.strip():
            return ""
        shown = "\t".join(map(printable, self.text.split("\t")))
        before = "".join(map(_blank, shown[: self.column - 1]))
        return f"{shown}\n{before}^"


@contextmanager
def placed(text: str, begin: int = 0) -> Iterator[None]:
    """Give errors of the block their place: they are about `text` from index `begin` on."""
    try:
        yield
    except UsageError as several:
        raise several.mistakes[0].within(text, begin) from None


class FileTextError(TextError):
    """A mistake in a file, with its line and column."""

    placed = True

    def __init__(self, path: str, problem: str, text: str, offset: int, *, hint: str = "") -> None:
        """`offset` of the whole `text` counts from 0."""
        begin = text.rfind("\n", 0, offset) + 1
        line = text[begin:].partition("\n")[0].rstrip("\r")
        super().__init__(problem, line, offset - begin + 1, hint=hint)
        number = text.count("\n", 0, offset) + 1
        self.place = number, self.column
        self.message = f"{path}:{number}:{self.column}: {problem}"
        self.args = (self.message,)


class MistakesError(UsageError):
    """Several mistakes of one input; its message is the first one."""

    def __init__(self, mistakes: Sequence[ProbedeckError]) -> None:
        first = mistakes[0]
        super().__init__(f"{first.message} (and {len(mistakes) - 1} more)", hint=first.hint)
        self.placed = first.placed
        self._mistakes = tuple(mistakes)

    @property
    def mistakes(self) -> Sequence[ProbedeckError]:
        return self._mistakes


def together(errors: Iterable[ProbedeckError]) -> ProbedeckError:
    """Return one error with all mistakes of `errors`; there is at least one."""
    mistakes = [mistake for error in errors for mistake in error.mistakes]
    return mistakes[0] if len(mistakes) == 1 else MistakesError(mistakes)


class KernelError(ProbedeckError):
    """A privilege or a kernel feature that monitoring needs and does not have."""

    exit_code = 4


def _blank(character: str) -> str:
    """Return a blank as wide on a terminal as a character."""
    import unicodedata  # few runs need it

    if character == "\t":
        return character
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def printable(text: str, replacement: str = "?") -> str:
    """Replace each control, bidirectional or other unprintable character.

    Names of processes, units, files and so on pass through it where they enter: their owners must
    not write to the terminal, or into the log, of the user who reads them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else replacement for c in text)


@functools.lru_cache(1 << 14)
def printable_bytes(name: bytes) -> bytes:
    """Return a name of the kernel as printable UTF-8, which is no longer than the name."""
    return printable(name.decode(errors="surrogateescape")).encode()


def did_you_mean(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return a hint: the nearest of `names`, ignoring case; else `otherwise`, or by default all
    names in their order."""
    import difflib  # takes 6 ms of each start

    known = list(names)
    folded = {each.casefold(): each for each in reversed(known)}
    if near := difflib.get_close_matches(name.casefold(), folded, n=1):
        return f"did you mean {folded[near[0]]}?"
    if otherwise is not None:
        return otherwise
    return f"there are {', '.join(known)}" if known else ""


class CancelError(ProbedeckError):
    """The work was cancelled and changed nothing."""


class Cancel:
    """The cancellation of one piece of work. Any thread may call `ask`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._ends: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """Whether the work should end."""
        return self._asked

    @property
    def cancellable(self) -> bool:
        """Whether the work can end at its present point."""
        return bool(self._ends)

    def ask(self) -> bool:
        """Cancel the work. Returns False if it ends later, at its next cancellable point."""
        with self._lock:
            self._asked = True
            for end in self._ends:
                end()
            return bool(self._ends)

    def check(self) -> None:
        """Raise CancelError if the work was cancelled."""
        if self._asked:
            raise CancelError("cancelled")

    @contextmanager
    def on_cancel(self, end: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Mark a part of the work as cancellable: it polls `asked`, or `end` makes it return.

        The cancelling thread calls `end`. If it cancelled before, `end` is called on entry.
        """
        with self._lock:
            self._ends.append(end)
            if self._asked:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


_NOBODY = Cancel()
_CURRENT: ContextVar[Cancel] = ContextVar("cancel", default=_NOBODY)


def current() -> Cancel:
    """Return the cancellation of this thread's work; nobody asks the default one."""
    return _CURRENT.get()


@contextmanager
def cancelled_by(cancel: Cancel) -> Iterator[None]:
    """Make `cancel` the cancellation of this thread's work, as a context manager."""
    token = _CURRENT.set(cancel)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Closing:
    """A resource that a `with` block closes at its end."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
