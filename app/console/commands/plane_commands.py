"""Commands of every screen that work on the control plane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.commands import REGISTRY
from app.commands.model import Command
from app.console.protocol import Console
from app.console.tasks import Task


class PlaneCommands:
    """Runs `output.add`, `output.list`, and the commands that have a `task`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def runners(self) -> dict[str, Callable[..., None]]:
        """Return what runs the commands with a `task`, by method."""
        return {each.method: partial(self._run, each) for each in REGISTRY.values() if each.task}

    def do_output_add(self, url: str) -> None:
        from probes.reports import OutputConfig

        self._work("a new output", partial(self._console.plane.outputs.add, OutputConfig(url)))

    def do_output_list(self) -> None:
        from app.console.dialogs.outputs import page
        from app.console.dialogs.polled_box import PolledBox

        status = self._console.plane.outputs.status
        self._console.app.push_screen(PolledBox("Outputs", lambda: page(status())))

    def _run(self, command: Command, value: str = "") -> None:
        assert command.remote
        self._work(command.task, partial(command.remote, self._console.plane, value))

    def _work(self, title: str, work: Callable[[], object]) -> None:
        console = self._console
        console.tasks.run(
            console.app, Task(title), work, lambda _: None, console.complain, of_command=True
        )
