"""Commands that begin, end and change the tracing of paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.commands.remote import set_path_options
from app.console.screen import ConsoleScreen
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.tasks import Task
from app.resolve import address, addresses
from bpf.errors import UsageError


class TracingCommands:
    """Commands of screen 2 for the control plane."""

    def __init__(
        self, screen: ConsoleScreen, paths: Callable[[], Paths],
        choice: Callable[[], PathKey | None], poll: Callable[[], None],
    ) -> None:  # fmt: skip
        """`choice` returns the chosen path, `poll` asks what is traced."""
        self._screen, self._paths, self._choice, self._poll = screen, paths, choice, poll

    def do_path_trace(self, destination: str = "") -> None:
        if not destination:
            self._screen.prompt.ask("path.trace", "Trace", "an address or a name", "")
            return
        # Not as part of the prompt's answer: the prompt closes before the name server answers.
        self._screen.console.tasks.run(
            self._screen, Task("", asked=False), partial(addresses, destination),
            lambda found: self._screen.trace(*map(PathKey, found)),
            self._screen.console.complain, of_command=True,
        )  # fmt: skip

    def do_path_set(self, text: str = "") -> None:
        if not text:
            self._screen.prompt.ask("path.set", "Set", "guarded=all rate=50", "")
            return

        def told(_: None) -> None:
            self._screen.notify(f"paths are traced with {text}", timeout=2.0, markup=False)
            self._poll()

        change = partial(set_path_options, self._screen.console.plane, text)
        task = Task("starting path tracing again")
        self._screen.run_in_worker(change, told, self._screen.console.complain, task=task)

    def do_path_untrace(self, destination: str = "") -> None:
        choice = PathKey(address(destination)) if destination else self._choice()
        if choice is None or (running := self._paths().running(choice.destination)) is None:
            self._screen.console.complain(UsageError("there is no tracing to stop here"))
            return
        flow = choice.flow if choice.flow in running.flows and not choice.is_way else None
        ask = partial(self._screen.console.plane.untrace, choice.destination, flow)

        def untraced(_: None) -> None:
            text = f"tracing of {choice.destination} has ended"
            self._screen.notify(text, timeout=2.0, markup=False)
            self._poll()

        task = Task(f"ending the tracing of {choice.destination}")
        self._screen.run_in_worker(ask, untraced, self._screen.console.complain, task=task)
