"""Commands that open the prompt or a dialog: keys, help, the palette, the loaded programs."""

from __future__ import annotations

from collections.abc import Callable

from app.commands import REGISTRY
from app.console.dialogs.keys import KeysScreen
from app.console.protocol import Console
from app.console.screen import front_screen
from app.console.tasks import Task
from bpf.errors import UsageError


class DialogCommands:
    """Runs the commands that open the prompt or a dialog, and imports rare dialogs."""

    def __init__(self, console: Console, offers: Callable[[str], bool]) -> None:
        """`offers` says whether a command means anything now."""
        self._console, self._offers = console, offers

    def do_app_prompt(self, text: str = "") -> None:
        if text in REGISTRY and REGISTRY[text].parameters:
            text += " "
        prompt = front_screen(self._console.app).prompt
        prompt.ask("", ":", "a command; tab completes it", text)

    def do_time_ask(self) -> None:
        self.do_app_prompt("time.go")

    def do_help_keys(self) -> None:
        app, keymap = self._console.app, self._console.keymap
        app.push_screen(KeysScreen(app.current_mode, keymap, self._offers))

    def do_help_focus(self) -> None:
        # It imports an editor's parser.
        from app.console.dialogs.focus_help import FocusHelp

        app, owners = self._console.app, self._console.frame.owners
        more = [owners.help()] if owners and app.current_mode in ("overview", "flows") else ()
        focused, mode = app.screen.focused, app.current_mode
        app.push_screen(FocusHelp(focused, mode, self._console.key_of, more))

    def do_probe_info(self) -> None:
        from app.console.dialogs.program_info import LocalHooks, ProgramInfoScreen

        plane = self._console.plane
        if not isinstance(plane, LocalHooks):
            raise UsageError("the hooks' run time is known on their own host only")
        info = ProgramInfoScreen(
            plane.hooks(),
            plane.memory(),
            lambda: self._console.frame.pulses,
            plane.budget,
            plane.cost,
        )
        self._console.app.push_screen(info)

    def do_dns_show(self) -> None:
        """Start the probe unless it runs, and show what it counts."""
        from app.commands.remote import add_ready_probe
        from app.console.dialogs.dns import PROBE, DnsScreen

        console = self._console

        def ask() -> None:
            if PROBE not in {each.name for each in console.plane.probes()}:
                add_ready_probe(console.plane, PROBE)

        def show(_: None) -> None:
            console.app.push_screen(DnsScreen(lambda: console.frame))

        task = Task("the count of DNS")
        console.tasks.run(console.app, task, ask, show, console.complain, of_command=True)

    def do_app_palette(self) -> None:
        from app.console.dialogs.palette import Palette

        self._console.app.push_screen(Palette())
