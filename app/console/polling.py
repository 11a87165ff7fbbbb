"""Screens whose content comes from the control plane, which they poll."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Generic, TypeVar

from app.commands import Invocation
from app.console.screen import ConsoleScreen
from app.console.tasks import Task
from bpf.errors import ProbedeckError

_Answer = TypeVar("_Answer")
_T = TypeVar("_T")
_PERIOD = 1.0
"""Seconds between two polls."""


class PollingScreen(ConsoleScreen, Generic[_Answer]):
    """Polls while it is in front, one call at a time."""

    PAUSES: ClassVar = True
    """Whether it keeps its last answer while the console is paused."""

    def __init__(self) -> None:
        super().__init__()
        self._fetching = self._answered = False
        self._answer: _Answer | None = None
        self._trouble = ""
        """Why the last poll failed; empty if it succeeded."""
        self._busy = ""
        """The change that is being made."""

    def fetch(self) -> Callable[[], _Answer]:
        """Return the call of the next poll; it runs in a thread."""
        raise NotImplementedError

    def apply(self, answer: _Answer) -> None:
        """Keep an answer; `show` follows if it differs from the last one."""
        raise NotImplementedError

    def execute(self, asked: Invocation) -> None:
        if self._answered:
            super().execute(asked)
            return

        # A command may be about something that only the first poll finds.
        def fetched(answer: _Answer) -> None:
            self._fetched(answer)
            try:
                ConsoleScreen.execute(self, asked)
            except ProbedeckError as error:
                self.console.complain(error)

        self.run_in_worker(self.fetch(), fetched, self.console.complain)

    def change(self, what: str, ask: Callable[[], _T], done: Callable[[_T], None]) -> None:
        """Make a change in a thread, one at a time; then poll. `what` is its title."""
        if self._busy:
            self.console.complain(ProbedeckError(f"{self._busy} is not done yet"))
            return

        def ended(follow: Callable[[], None]) -> None:
            self._busy = ""
            follow()
            self.show_change()
            self._poll()

        self._busy = what
        self.show_change()
        self.run_in_worker(
            ask,
            lambda answer: ended(partial(done, answer)),
            lambda error: ended(partial(self.console.complain, error)),
            task=Task(what),
        )

    def show_change(self) -> None:
        """Show that a change begins or has ended."""

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._poll)

    def on_screen_resume(self) -> None:
        self._poll()

    @property
    def _stays(self) -> bool:
        return self.PAUSES and self.console.time.paused and self._answered

    def _poll(self) -> None:
        if self.is_current and not self._fetching and not self._stays:
            self._fetching = True
            # A tape that turns here waits for the first answer.
            first = not self._answered

            def failed(error: ProbedeckError) -> None:
                self._fetching, self._trouble = False, str(error)
                self.show()

            self.run_in_worker(self.fetch(), self._fetched, failed, asked=first)

    def _fetched(self, answer: _Answer) -> None:
        before, first = (self._answer, self._trouble), not self._answered
        self._fetching, self._trouble = False, ""
        if self._stays:
            return
        self._answer, self._answered = answer, True
        self.apply(answer)
        if first:
            self.show()
        elif before != (answer, "") or self.console.time.since_window > _PERIOD:
            self.console.terminal.show_soon()
