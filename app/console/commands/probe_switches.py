"""The commands that start and stop the probes beside the flow probe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.commands.remote import count_drops, learn_names, look_for_owners
from app.console.protocol import Console
from app.console.tasks import Task

if TYPE_CHECKING:
    from probes.control_plane import ControlPlane


class ProbeSwitches:
    """Runs `names.learn`, `owners.look` and `drops.count`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_names_learn(self, choice: str = "") -> None:
        self._switch("names from packets", learn_names, choice)

    def do_owners_look(self, choice: str = "") -> None:
        self._switch("owners of flows", look_for_owners, choice)

    def do_drops_count(self, choice: str = "") -> None:
        self._switch("drops of the kernel", count_drops, choice)

    def _switch(self, title: str, switch: Callable[[ControlPlane, str], None], choice: str) -> None:
        console = self._console
        console.tasks.run(
            console.app, Task(title), partial(switch, console.plane, choice), lambda _: None,
            console.complain, of_command=True,
        )  # fmt: skip
