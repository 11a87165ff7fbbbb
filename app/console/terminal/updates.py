"""When the screen is brought up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.console.terminal.console_terminal import ConsoleTerminal
from widgets.terminal.compositor import DiffApp

SHORTEST_INTERVAL = 0.24
"""Least seconds between two updates of the screen: less than the shortest window, a quarter."""
_BUSY = 0.05
"""Seconds until the terminal is asked again whether it has drawn the last update."""


class Updates:
    """Refreshes the screen soon after each change, but not too often."""

    def __init__(
        self, app: DiffApp[int], terminal: ConsoleTerminal, refresh: Callable[[], None]
    ) -> None:
        self._app, self._terminal, self._refresh = app, terminal, refresh
        self._wanted = self._resting = False
        self._began = 0.0
        """When the last update began, `time.monotonic()`."""

    def soon(self) -> None:
        """Update the screen together with other changes of the same moment; from any thread."""
        if not self._wanted:
            self._wanted = True
            self._app.call_later(self._catch_up)

    def _rested(self) -> None:
        self._resting = False
        self._catch_up()

    def _catch_up(self) -> None:
        if not self._wanted or self._resting:
            return
        now = time.monotonic()
        # An update must not begin while the last one is on its way.
        due = self._began + self._terminal.update_interval(SHORTEST_INTERVAL)
        rest = _BUSY if self._app.behind else due - now
        if rest > 0:
            self._resting = True
            # A callback is much cheaper than one of Textual's timers.
            asyncio.get_running_loop().call_later(rest, self._app.call_later, self._rested)
            return
        self._wanted, self._began = False, now
        self._app.begin_update()
        self._terminal.note_slowness()
        self._refresh()
