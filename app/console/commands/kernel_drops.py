"""The command that begins to count the packets which the kernel drops."""

from __future__ import annotations

from functools import partial

from app.commands.remote import count_drops
from app.console.protocol import Console
from app.console.tasks import Task


class KernelDrops:
    """Runs `drops.count`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_drops_count(self, choice: str = "") -> None:
        console = self._console
        console.tasks.run(
            console.app, Task("drops of the kernel"), partial(count_drops, console.plane, choice),
            lambda _: None, console.complain, of_command=True,
        )  # fmt: skip
