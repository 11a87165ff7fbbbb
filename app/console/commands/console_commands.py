"""Commands of every screen: on the control plane, programs of the user's, and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.commands.keys import key_name
from app.commands.line import parse
from app.commands.model import Command
from app.commands.own import filled, words_of
from app.commands.registry import REGISTRY
from app.config.keymap import Keymap
from app.config.model import Settings, Ui
from app.console.commands.keys import bindings
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, front_screen, screen_of
from app.console.screens import SCREENS
from app.console.tasks import Task
from bpf.errors import UsageError, did_you_mean
from bpf.quantities import show_local_time
from probes.config.options import settings_of


class PlaneCommands:
    """Runs `output.list`, and the commands that have a `task`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def runners(self) -> dict[str, Callable[..., None]]:
        """Return what runs the commands with a `task`, by method."""
        return {each.method: partial(self._run, each) for each in REGISTRY.values() if each.task}

    def do_output_list(self) -> None:
        from app.console.dialogs.boxes import PolledBox, page

        status = self._console.plane.outputs.status
        self._console.app.push_screen(PolledBox("Outputs", lambda: page(status())))

    def _run(self, command: Command, *values: str) -> None:
        assert command.remote
        console = self._console
        if not values and command.screen:
            values = (front_screen(console.app).name_under_cursor(),)
        console.tasks.run(
            console.app, Task(command.task), partial(command.remote, console.plane, *values),
            lambda _: None, console.complain, of_command=True,
        )  # fmt: skip


class OwnCommands:
    """Runs the command `app.run`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def do_app_run(self, program: str) -> None:
        # The dialog imports a widget that nothing else needs.
        from app.console.commands.own_program import fields_of, run
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


LIVE = ("theme", "glyphs", "time", "low_bandwidth")
"""Options of `[ui]` that the console changes while it runs; it reads the others at its start."""


class SettingsCommands:
    """Runs the commands `app.set`, `app.bind` and `app.reload`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        show_local_time(console.settings.ui.time == "local")

    def do_app_set(self, option: str = "", value: str = "") -> None:
        ui = self._console.settings.ui
        if not option:
            from app.console.dialogs.boxes import SettingsBox

            self._console.app.push_screen(SettingsBox(ui))
            return
        known = settings_of(Ui)
        if option not in known:
            raise UsageError(f"there is no option {option!r}", hint=did_you_mean(option, known))
        if not value:
            self._tell(f"{option} is {getattr(ui, option)}")
            return
        if option not in LIVE:
            hint = f"write it into [ui] of {self._console.settings.origin or 'config.toml'}"
            raise UsageError(f"{option} is read at the start", hint=hint)
        try:
            wanted: Any = known[option].of_text(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
        changes: dict[str, Any] = {option: wanted}
        self._show(replace(ui, **changes))

    def do_app_bind(self, key: str, command: str = "") -> None:
        """Bind a key on the command's screen, or everywhere; without a command turn it off."""
        name = key_name(key)
        settings = self._console.settings
        only = parse(command).command.screen if command else ""
        before = settings.keys.get(only, {})
        kept = {written: what for written, what in before.items() if key_name(written) != name}
        keys = {**settings.keys, only: {**kept, key: command}}
        self._use(replace(settings, keys=keys))
        where = f" on {SCREENS[only].title}" if only else ""
        self._tell(f"{key}: {command or 'nothing'}{where}")

    def do_app_reload(self) -> None:
        settings = self._console.settings
        if settings.again is None:
            raise UsageError("this console has no configuration file")
        screen = front_screen(self._console.app)
        task = Task("reading the configuration")
        screen.run_in_worker(settings.again, self._reloaded, self._console.complain, task=task)

    def _reloaded(self, read: tuple[Settings, Mapping[str, Any]]) -> None:
        """Use the file: keys, filters, tapes, columns, and the options that can change."""
        settings, values = read
        before = self._console.settings
        self._use(replace(settings, ui=before.ui, again=before.again))
        if settings.columns != before.columns:
            for table in (table for screen in self._screens() for table in screen.tables):
                table.chosen = settings.columns.get(table.spec.name, ())
        self._show(replace(before.ui, **{name: values[name] for name in LIVE if name in values}))
        self._tell(f"{settings.origin or 'settings'} is read again")

    def _screens(self) -> list[ConsoleScreen]:
        found = (screen_of(self._console.app, mode) for mode in SCREENS)
        return [screen for screen in found if screen is not None]

    def _use(self, settings: Settings) -> None:
        """Use settings, once their keys are right. Raises UsageError and changes nothing."""
        keymap = Keymap(settings)
        self._console.use_settings(settings, keymap)
        for screen in self._screens():
            screen.set_bindings(bindings(keymap, screen.MODE))
        self._console.app.refresh_bindings()

    def _show(self, ui: Ui) -> None:
        console, before = self._console, self._console.settings.ui
        changed = [name for name in LIVE if getattr(before, name) != getattr(ui, name)]
        # A theme may not exist: it comes first.
        if "theme" in changed and ui.theme != "auto":
            console.terminal.do_app_theme(ui.theme)
        console.terminal.change(ui)
        console.use_settings(replace(console.settings, ui=ui), console.keymap)
        if "time" in changed:
            show_local_time(ui.time == "local")
        for screen in self._screens():
            for table in screen.tables:
                table.refresh()
        console.refresh_view()
        console.show_status()

    def _tell(self, text: str) -> None:
        self._console.app.notify(text, timeout=3.0, markup=False)
