"""Commands that begin, end and change the tracing of paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.commands.remote import set_path_options
from app.console.screen import ConsoleScreen
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.hosts import PathHosts
from app.console.tasks import Task
from app.resolve import address, addresses
from bpf.errors import UsageError


class TracingCommands:
    """Commands of screen 2 for the control plane."""

    def __init__(
        self, screen: ConsoleScreen, hosts: PathHosts,
        choice: Callable[[], PathKey | None], poll: Callable[[], None],
    ) -> None:  # fmt: skip
        """`choice` returns the chosen path, `poll` asks what is traced."""
        self._screen, self._hosts, self._choice, self._poll = screen, hosts, choice, poll
        self._asked = ""
        """The host that the prompt asks an option of."""

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
        prompt, choice = self._screen.prompt, self._choice()
        # The cursor may move while the prompt is open.
        if not (prompt.is_open and prompt.command == "path.set"):
            self._asked = choice.host if choice is not None else ""
        host = self._asked
        on = f" on {host}" if host else ""
        if not text:
            prompt.ask("path.set", f"Set{on}", "guarded=all rate=50", "")
            return

        def told(_: None) -> None:
            said = f"paths are traced with {text}{on}"
            self._screen.notify(said, timeout=2.0, markup=False)
            self._poll()

        change = partial(set_path_options, self._screen.console.hosts.plane(host), text)
        task = Task(f"starting path tracing again{on}")
        self._screen.run_in_worker(change, told, self._screen.console.complain, task=task)

    def do_path_untrace(self, destination: str = "") -> None:
        """End the tracing of the chosen path on its host, or of a destination on every host."""
        choice = PathKey(address(destination)) if destination else self._choice()
        models = self._hosts.models.items()
        running = {
            host: found
            for host, model in models
            if choice is not None and (destination or host == choice.host)
            and (found := model.running(choice.destination)) is not None
        }  # fmt: skip
        if choice is None or not running:
            self._screen.console.complain(UsageError("there is no tracing to stop here"))
            return
        one = running.get(choice.host)
        flow = choice.flow if one and choice.flow in one.flows and not choice.is_way else None
        what = choice.destination + (f" on {', '.join(running)}" if any(running) else "")

        def ask() -> None:
            for host in running:
                self._screen.console.hosts.plane(host).untrace(choice.destination, flow)

        def untraced(_: None) -> None:
            self._screen.notify(f"tracing of {what} has ended", timeout=2.0, markup=False)
            self._poll()

        task = Task(f"ending the tracing of {what}")
        self._screen.run_in_worker(ask, untraced, self._screen.console.complain, task=task)
