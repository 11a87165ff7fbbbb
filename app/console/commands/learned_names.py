"""Names that packets told: the command that begins to learn them, and their way to the screens."""

from __future__ import annotations

from functools import partial

from app.commands.remote import learn_names
from app.console.host_names import NameSource
from app.console.protocol import Console
from app.console.tasks import Task
from probes.snapshot import Snapshot


class LearnedNames:
    """Runs `names.learn`, and gives the names of a probe's tables to the console's names."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_names_learn(self, choice: str = "") -> None:
        console = self._console
        console.tasks.run(
            console.app, Task("names from packets"), partial(learn_names, console.plane, choice),
            lambda _: None, console.complain, of_command=True,
        )  # fmt: skip

    def take(self, item: Snapshot) -> None:
        """Learn the names of a window; the probes' threads call it."""
        if item.probe != "names":
            return
        # Imported here: the first paint needs no tables of names.
        from probes.names.learned import learned

        for address, name, source, ttl in learned(item):
            self._console.names.learn(address, name, NameSource(source), ttl)
