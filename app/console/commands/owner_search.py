"""The command that begins and ends the search for owners of flows."""

from __future__ import annotations

from functools import partial

from app.commands.remote import look_for_owners
from app.console.protocol import Console
from app.console.tasks import Task


class OwnerSearch:
    """Runs `owners.look`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_owners_look(self, choice: str = "") -> None:
        console = self._console
        console.tasks.run(
            console.app, Task("owners of flows"), partial(look_for_owners, console.plane, choice),
            lambda _: None, console.complain, of_command=True,
        )  # fmt: skip
