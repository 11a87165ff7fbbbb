"""Cancellation of work in another thread, at points where that is safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bpf.errors import ProbedeckError


class CancelError(ProbedeckError):
    """The work was cancelled; nothing is changed."""


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
