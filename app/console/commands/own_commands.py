"""`!PROGRAM`: programs of the user's with fields of the row under the cursor."""

from __future__ import annotations

from functools import partial

from app.commands.own import filled, words_of
from app.console.protocol import Console
from app.console.screen import front_screen
from app.console.tasks import Task


class OwnCommands:
    """Runs the command `app.run`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_app_run(self, program: str) -> None:
        # The dialog imports a widget that nothing else needs.
        from app.console.commands.own_fields import fields_of
        from app.console.commands.own_process import run
        from app.console.dialogs.output_box import OutputBox

        console = self._console
        screen = front_screen(console.app)
        words = filled(words_of(program), fields_of(screen))
        task = Task(f"running {words[0]}")
        box = OutputBox(words, task)
        console.app.push_screen(box)
        ask = partial(run, words, box.hear)
        # Of the screen, not of the box: tapes wait for the end, also if the box is closed.
        console.tasks.run(screen, task, ask, box.end, box.fail, of_command=True)
