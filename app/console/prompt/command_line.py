"""What the console knows of what is typed: how it may go on, and what was typed before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from app.commands.complete import Completer, Completion
from app.commands.history import PromptHistory
from app.commands.model import ParameterKind
from app.config import layouts
from app.config.paths import state_dir
from app.console.screen import ConsoleScreen
from app.console.tasks import run_aside
from bpf.errors import ProbedeckError, UsageError

if TYPE_CHECKING:
    from app.console.app import ConsoleApp

_MOST = 50
"""Flows whose destinations are offered."""


class CommandLine:
    """Names that there are, asked for when a prompt opens, and the history."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.history = PromptHistory(state_dir() / "history")
        self._names: Mapping[ParameterKind, tuple[str, ...]] = {}
        self._loaded = False
        self._completer = Completer(
            {
                ParameterKind.PROBE: lambda: self._names.get(ParameterKind.PROBE, ()),
                ParameterKind.POLICY: lambda: self._names.get(ParameterKind.POLICY, ()),
                ParameterKind.DESTINATION: self._destinations,
                ParameterKind.TAPE: self._tapes,
                ParameterKind.LAYOUT: layouts.names,
            },
            self._filter,
        )

    def open(self) -> None:
        """A prompt opens: learn what there is, beside everything else."""
        self._app.run_worker(run_aside(self._learn), exit_on_error=False, group="names")

    def complete(self, command: str, text: str, position: int) -> Completion:
        """What may follow; see Completer."""
        return self._completer.complete(command, text, position, self._app.current_mode)

    def remember(self, line: str) -> None:
        """Keep a line that was typed, and done."""
        self.history.remember(line)
        save = self.history.save
        self._app.run_worker(lambda: save(line), thread=True, exit_on_error=False, group="history")

    def _learn(self) -> None:
        if not self._loaded:
            self._loaded = True
            self.history.load()
        plane = self._app.plane
        # Where it does not answer, what was known is offered.
        with suppress(ProbedeckError):
            monitor = plane.monitor()
            self._names = {
                ParameterKind.PROBE: tuple(info.name for info in plane.probes()),
                ParameterKind.POLICY: tuple(one.policy.name for one in monitor.policies)
                if monitor
                else (),
                ParameterKind.DESTINATION: tuple(traced.destination for traced in plane.traced()),
            }

    def _tapes(self) -> Iterable[str]:
        from app.tape.store import TapeStore  # which the first paint does without

        return TapeStore(self._app.settings.macros).names()

    def _destinations(self) -> Iterable[str]:
        """What is traced, and where the largest flows go."""
        from app.console.screens.flows.rows import (
            path_of,  # numpy, which the first paint does without
        )

        found = dict.fromkeys(self._names.get(ParameterKind.DESTINATION, ()))
        for row in self._app.frame.flows.rows[:_MOST]:
            with suppress(UsageError):
                found[path_of(row).destination] = None
        return found

    def _filter(self, text: str, position: int) -> Completion:
        from app.console.prompt.filter_completion import complete

        screen, saved = self._app.screen, self._app.settings.filters
        of = screen.filtered() if isinstance(screen, ConsoleScreen) else ()
        found = [
            candidate
            for domain, table in of
            for candidate in complete(text, position, domain, table, saved)
        ]
        begin = found[0].start if found else position
        return Completion(begin, tuple(dict.fromkeys(candidate.text for candidate in found)))
