"""Screens that show what only the control plane can tell: it is asked again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from app.commands import Invocation
from app.console.screen import DeckScreen
from bpf.errors import ProbedeckError

_T = TypeVar("_T")
_LOOK = 1.0
"""Seconds between two questions."""


class LookingScreen(DeckScreen, Generic[_T]):
    """Asks while it is in front, one question at a time; a paused screen stays as it is, once it
    has an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._looking = self._answered = False
        self._answer: _T | None = None
        self._trouble = ""
        """Why the last question had no answer; empty where it had one."""

    def question(self) -> Callable[[], _T]:
        """What to ask now, in a thread."""
        raise NotImplementedError

    def take(self, answer: _T) -> None:
        """Keep an answer; `show` is called afterwards, if it is another one."""
        raise NotImplementedError

    def carry_out(self, asked: Invocation) -> None:
        if self._answered:
            super().carry_out(asked)
        else:
            self.carry_out_knowing(self.question(), self._looked, asked)

    def on_mount(self) -> None:
        self.set_interval(_LOOK, self._look)

    def on_screen_resume(self) -> None:
        self._look()

    @property
    def _stays(self) -> bool:
        return self.deck.paused and self._answered

    def _look(self) -> None:
        if self.is_current and not self._looking and not self._stays:
            self._looking = True
            # A tape that turns here is about what the first answer tells.
            first = not self._answered
            self.in_thread(self.question(), self._looked, self._not_known, asked=first)

    def _looked(self, answer: _T) -> None:
        before, first = (self._answer, self._trouble), not self._answered
        self._looking, self._trouble = False, ""
        if self._stays:
            return
        self._answer, self._answered = answer, True
        self.take(answer)
        if first:
            self.show()
        elif before != (answer, "") or self.deck.since_window > _LOOK:
            self.deck.show_soon()

    def _not_known(self, error: ProbedeckError) -> None:
        self._looking, self._trouble = False, str(error)
        self.show()
