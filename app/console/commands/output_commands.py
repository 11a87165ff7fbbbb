"""The commands about outputs of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.console.protocol import Console
from app.console.tasks import Task


class OutputCommands:
    """Runs `output.add`, `output.remove` and `output.list`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_output_add(self, url: str) -> None:
        from probes.output_control import OutputConfig

        self._work("a new output", partial(self._console.plane.outputs.add, OutputConfig(url)))

    def do_output_remove(self, name: str) -> None:
        self._work("the end of an output", partial(self._console.plane.outputs.remove, name))

    def do_output_list(self) -> None:
        from app.console.dialogs.outputs import OutputsScreen

        self._console.app.push_screen(OutputsScreen(self._console.plane.outputs.status))

    def _work(self, title: str, work: Callable[[], object]) -> None:
        console = self._console
        console.tasks.run(
            console.app, Task(title), work, lambda _: None, console.complain, of_command=True
        )
