"""Screens that show what only the control plane can tell: it is asked again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from app.commands import Invocation
from app.console.screen import ConsoleScreen
from bpf.errors import ProbedeckError

_T = TypeVar("_T")
_PERIOD = 1.0
"""Seconds between two questions."""


class PollingScreen(ConsoleScreen, Generic[_T]):
    """Asks while it is in front, one fetch at a time; a paused screen stays as it is, once it
    has an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._fetching = self._answered = False
        self._answer: _T | None = None
        self._trouble = ""
        """Why the last fetch had no answer; empty where it had one."""

    def fetch(self) -> Callable[[], _T]:
        """What to ask now, in a thread."""
        raise NotImplementedError

    def apply(self, answer: _T) -> None:
        """Keep an answer; `show` is called afterwards, if it is another one."""
        raise NotImplementedError

    def execute(self, asked: Invocation) -> None:
        if self._answered:
            super().execute(asked)
        else:
            self.execute_after(self.fetch(), self._fetched, asked)

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._poll)

    def on_screen_resume(self) -> None:
        self._poll()

    @property
    def _stays(self) -> bool:
        return self.console.paused and self._answered

    def _poll(self) -> None:
        if self.is_current and not self._fetching and not self._stays:
            self._fetching = True
            # A tape that turns here is about what the first answer tells.
            first = not self._answered
            self.run_in_worker(self.fetch(), self._fetched, self._not_known, asked=first)

    def _fetched(self, answer: _T) -> None:
        before, first = (self._answer, self._trouble), not self._answered
        self._fetching, self._trouble = False, ""
        if self._stays:
            return
        self._answer, self._answered = answer, True
        self.apply(answer)
        if first:
            self.show()
        elif before != (answer, "") or self.console.since_window > _PERIOD:
            self.console.show_soon()

    def _not_known(self, error: ProbedeckError) -> None:
        self._fetching, self._trouble = False, str(error)
        self.show()
