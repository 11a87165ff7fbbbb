"""Ending work that another thread does, where that can be done safely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bpf.errors import ProbedeckError


class CancelError(ProbedeckError):
    """It was ended because somebody asked for that; nothing is changed."""


class Cancel:
    """What a piece of work is told to end by. `ask` may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._ends: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """Whether the work is to end."""
        return self._asked

    @property
    def cancellable(self) -> bool:
        """Whether the work can be ended where it is now."""
        return bool(self._ends)

    def ask(self) -> bool:
        """Have the work end, now or as soon as that can be done; whether it ends now."""
        with self._lock:
            self._asked = True
            for end in self._ends:
                end()
            return bool(self._ends)

    def check(self) -> None:
        """Raise CancelError where the work is to end."""
        if self._asked:
            raise CancelError("cancelled")

    @contextmanager
    def on_cancel(self, end: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Within, the work can be ended: it looks at `asked` often, or `end` makes it return.

        `end` is called by the thread that asks, at once where it has asked before, and not after
        this was left.
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
    """What this thread's work is told to end by; where nobody can, one that is never asked."""
    return _CURRENT.get()


@contextmanager
def cancelled_by(cancel: Cancel) -> Iterator[None]:
    """Within, in this thread, work is told to end by `cancel`."""
    token = _CURRENT.set(cancel)
    try:
        yield
    finally:
        _CURRENT.reset(token)
