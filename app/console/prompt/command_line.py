"""Completion and history of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from textual.app import App

from app.commands.complete import Completer, Completion, PromptHistory
from app.commands.model import ParameterKind
from app.config import layouts, theme_colors
from app.config.model import Settings
from app.config.paths import state_dir
from app.console.tasks import run_aside
from bpf.errors import ProbedeckError, UsageError
from probes.config.options import changes
from probes.path.options import PathOptions

if TYPE_CHECKING:
    from app.console.live.frames import Frame
    from probes.control_plane import ControlPlane
    from probes.filter import Domain, RowTable

Filtered = Sequence[tuple["Domain", "RowTable | None"]]
"""Domains of filters, and tables whose values complete a term; None: only the fields."""
_MOST = 50
"""Flows whose destinations are offered."""


class CommandLine:
    """Completes what is typed, by names that exist now, and remembers lines."""

    def __init__(
        self, app: App[Any], settings: Callable[[], Settings], plane: Callable[[], ControlPlane],
        frame: Callable[[], Frame], filtered: Callable[[], Filtered],
    ) -> None:  # fmt: skip
        """`filtered` returns the domains of the filters of the screen in front."""
        self._app, self._settings = app, settings
        self._plane, self._frame, self._filtered = plane, frame, filtered
        self.history = PromptHistory(state_dir() / "history")
        self._names: Mapping[ParameterKind, tuple[str, ...]] = {}
        self._runs: tuple[str, ...] = ()
        """Applications and profiles that policies can run."""
        self._loaded = False
        self._completer = Completer(
            {
                ParameterKind.PROBE: lambda: self._names.get(ParameterKind.PROBE, ()),
                ParameterKind.POLICY: lambda: self._names.get(ParameterKind.POLICY, ()),
                ParameterKind.DESTINATION: self._destinations,
                ParameterKind.TAPE: self._tapes,
                ParameterKind.LAYOUT: layouts.names,
                ParameterKind.THEME: theme_colors.names,
                ParameterKind.TRACING: lambda: changes(PathOptions),
            },
            self._filter,
            self._policy,
        )

    def open(self) -> None:
        """Fetch the names of probes, policies and destinations, as a prompt opens."""
        self._app.run_worker(run_aside(self._fetch), exit_on_error=False, group="names")

    def complete(self, command: str, text: str, position: int) -> Completion:
        """Return what may follow a text; see Completer."""
        return self._completer.complete(command, text, position, self._app.current_mode)

    def remember(self, line: str) -> None:
        """Add a line that was typed and run to the history."""
        self.history.remember(line)
        save = self.history.save
        self._app.run_worker(lambda: save(line), thread=True, exit_on_error=False, group="history")

    def _fetch(self) -> None:
        if not self._loaded:
            self._loaded = True
            self.history.load()
        plane = self._plane()
        # If the plane does not answer, the names of the last time are offered.
        with suppress(ProbedeckError):
            monitor = plane.monitor()
            policies = monitor.policies if monitor else ()
            names = (one.name for one in monitor.applications) if monitor else ()
            self._runs = (*names, *(monitor.profiles if monitor else ()))
            self._names = {
                ParameterKind.PROBE: tuple(info.name for info in plane.probes()),
                ParameterKind.POLICY: tuple(one.policy.name for one in policies),
                ParameterKind.DESTINATION: tuple(traced.destination for traced in plane.traced()),
            }

    def _tapes(self) -> Iterable[str]:
        from app.tape.store import TapeStore  # which the first paint does without

        return TapeStore(self._settings().macros).names()

    def _destinations(self) -> Iterable[str]:
        """Traced destinations, and destinations of the largest flows."""
        # It imports numpy; the first paint does without.
        from app.console.screens.flows.paths import path_of

        found = dict.fromkeys(self._names.get(ParameterKind.DESTINATION, ()))
        for row in self._frame().flows.rows[:_MOST]:
            with suppress(UsageError):
                found[path_of(row).destination] = None
        return found

    def _policy(self, text: str, position: int) -> Completion:
        from app.console.prompt.policy_completion import complete
        from probes.filter import RowTable
        from probes.monitor.policy.ready import menu

        flows = RowTable(self._frame().flows.rows)
        return complete(text, position, menu(), self._runs, flows, self._settings().filters)

    def _filter(self, text: str, position: int) -> Completion:
        from app.console.prompt.filter_completion import complete

        saved = self._settings().filters
        all_of = (complete(text, position, *each, saved) for each in self._filtered())
        found = [each for each in all_of if each.candidates]
        begin = found[0].begin if found else position
        words = chain.from_iterable(each.candidates for each in found)
        return Completion(begin, tuple(dict.fromkeys(words)))
