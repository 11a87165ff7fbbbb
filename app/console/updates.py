"""When the screen is brought up to date."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from textual.message import Message

from app.console.terminal_app import TerminalApp

SHORTEST_INTERVAL = 0.24
"""Seconds between two updates of the screen, however short windows are: those of a quarter of one
need not wait."""
_BUSY = 0.05
"""Seconds after which it is looked whether the terminal has drawn the last one."""


class Published(Message):
    """There is something new in the state."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Published)


class UpdateDue(Message):
    """The screen may be brought up to date again."""


class UpdateApp(TerminalApp):
    """An app that shows what is new soon, but not too often."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._fresh = self._resting = False
        self._began = 0.0
        """When the last update began, `time.monotonic()`."""

    def refresh_view(self) -> None:
        """Bring the screen up to date now."""
        raise NotImplementedError

    def show_soon(self) -> None:
        """Bring it up to date, together with what else comes within a moment; from any thread."""
        self.post_message(Published())

    def on_published(self) -> None:
        self._fresh = True
        self._catch_up()

    def on_update_due(self) -> None:
        self._resting = False
        self._catch_up()

    def _catch_up(self) -> None:
        if not self._fresh or self._resting:
            return
        now = time.monotonic()
        # While the last update is still on its way there is no other.
        due = self._began + self.update_interval(SHORTEST_INTERVAL)
        rest = _BUSY if self.behind else due - now
        if rest > 0:
            self._resting = True
            # A message is much cheaper than one of Textual's timers.
            asyncio.get_running_loop().call_later(rest, self.post_message, UpdateDue())
            return
        self._fresh, self._began = False, now
        self.begin_update()
        self.refresh_view()
