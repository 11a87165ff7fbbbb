"""Checks of edited sources on screen 5: one at a time, in a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.console.screens.programs.model import Verdict, examine
from app.console.tasks import Task
from bpf.errors import ProbedeckError

if TYPE_CHECKING:
    from app.console.screen import ConsoleScreen
    from probes.config.model import ProbeConfig


class Checks:
    """Compiles and verifies configurations while the user types, or on request."""

    def __init__(
        self,
        screen: ConsoleScreen,
        checked: Callable[[Verdict, bool, bool], None],
        failed: Callable[[ProbedeckError], None],
    ) -> None:
        """`checked` gets a verdict, whether the user requested it, and whether a swap follows.

        `failed` gets the error of a cancelled check.
        """
        self._screen, self._checked, self._failed = screen, checked, failed
        self._task = Task("")
        self.running: ProbeConfig | None = None
        """The configuration that is being checked."""
        self._requested: ProbeConfig | None = None
        """The configuration of the user's request."""
        self._swapped: ProbeConfig | None = None
        """The configuration that a swap waits for."""
        self.outdated = False
        """Whether the source changed during the check."""

    def begin(self, config: ProbeConfig, *, requested: bool, swap: bool) -> None:
        """Check a configuration, unless a check runs."""
        if swap:
            self._swapped = config
        if requested:
            self._requested = config
            self._task.asked = True
        self.outdated = self.running is not None
        if self.outdated:
            return
        self.running = config
        self._task = Task(f"checking {config.name}", asked=config == self._requested)
        ask = partial(examine, self._screen.console.plane, config)
        self._screen.run_in_worker(ask, self._done, self._cancelled, task=self._task)

    def _done(self, verdict: Verdict) -> None:
        self.running = None
        config = verdict.config
        requested, swap = config == self._requested, config == self._swapped
        self._requested = None if requested else self._requested
        self._swapped = None if swap else self._swapped
        self._checked(verdict, requested, swap)

    def _cancelled(self, error: ProbedeckError) -> None:
        self.running = self._requested = self._swapped = None
        self._failed(error)
