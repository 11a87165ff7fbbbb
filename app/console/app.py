"""The console's application: Textual's events and actions, handed to the parts that do the work."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen
from textual.widgets import Static

from app.commands.export_target import Overwriting
from app.commands.line import Invocation
from app.config.keymap import Keymap
from app.config.model import Settings
from app.console.commands.console_commands import OwnCommands, PlaneCommands, SettingsCommands
from app.console.commands.dispatcher import Dispatcher, runners
from app.console.commands.keys import Counts, TypeAhead, bindings, weight
from app.console.commands.table_commands import TableCommands
from app.console.dialogs.help import DialogCommands
from app.console.host_names import Names
from app.console.layout import Layouts
from app.console.marks import EventMarks, Pins
from app.console.prompt.command_line import CommandLine
from app.console.screen import ConsoleScreen, screen_of
from app.console.screens import SCREENS
from app.console.status import status_items, title
from app.console.tapes.control import Tapes
from app.console.tasks import PRESSING, Tasks
from app.console.terminal.console_terminal import CSS, ConsoleTerminal
from app.console.time_travel import TimeTravel
from app.console.tour import Tour
from bpf.errors import CancelError, ProbedeckError, cancelled_by, printable
from bpf.quantities import REPLACED
from widgets.status import StatusItem, StatusStrip
from widgets.terminal.compositor import DiffApp, DiffScreen
from widgets.terminal.driver import GroundKnown
from widgets.terminal.keybar import KeyBar
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.live.recorded import Moments
    from app.console.live.state import ShownHosts
    from probes.control_plane import ControlPlane

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that end the console with code 0, as they do runs without one."""
_DEADLY = (*_ENDING, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end the console, after it has given the terminal back."""


class StartingScreen(DiffScreen[None]):
    """The frame of all screens, while the console imports the rest."""

    CSS = "StartingScreen > Static { height: 1fr; background: $surface; }"

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def compose(self) -> ComposeResult:
        starting = StatusItem("STARTING", Tone.MUTED, badge=True)
        yield StatusStrip([starting, StatusItem(self._where, priority=1)], id="status")
        yield Static()
        yield KeyBar(weight)


class ConsoleApp(DiffApp[int]):
    """The console. It owns its parts, and each part has one task."""

    TITLE = "probedeck"
    CSS = CSS
    MODES = cast("dict[str, Any]", SCREENS)
    ENABLE_COMMAND_PALETTE = False  # its key would be no command of the registry

    plane: ControlPlane
    """The control plane that runs the probes; its calls may take long and belong into threads."""
    hosts: ShownHosts
    commands: Dispatcher
    failure: ProbedeckError | None = None
    """The error that ended the console."""

    def __init__(
        self, plane: Callable[[], ControlPlane], start: Callable[[], object], where: str,
        duration_s: float | None = None, *, first: str = "overview",
        names: bool = True, settings: Settings | None = None, tour: bool = False,
        fleet: bool = False, recording: Callable[[], Moments] | None = None,
        replays: bool = False,
    ) -> None:  # fmt: skip
        """`plane` makes the control plane, and `start` starts its probes; both run in threads after
        the first paint.

        `where` is the interface or the host, `first` the screen to begin with. Without `names` the
        console looks up no host names until the user asks for them. `fleet`: there is a screen of
        hosts. `recording` and `replays` go to TimeTravel.
        """
        super().__init__(ansi_color=False)
        self.settings = settings or Settings()
        self.keymap = Keymap(self.settings)
        self.set_bindings(bindings(self.keymap))
        self.terminal = ConsoleTerminal(self, self.settings.ui, lambda: self.refresh_view())
        self.time = TimeTravel(lambda: self.refresh_view(), recording, replays=replays)
        self.tasks = Tasks(self, self.show_status)
        self.names = Names(self._named, enabled=names)
        self.command_line = CommandLine(
            self,
            lambda: self.settings,
            lambda: self.plane,
            lambda: self.time.frame,
            lambda: front.filtered() if (front := self._front()) is not None else (),
        )
        self.event_marks = EventMarks()
        self.pins = Pins()
        self.tapes = Tapes(self)
        self.layouts = Layouts(self, self.settings.ui.layout)
        self.has_fleet = fleet
        self.overwriting = Overwriting()
        self.counts = Counts(self.show_status)
        self.tour = Tour(self)
        if tour:
            self.tour.begin()
        self.type_ahead = TypeAhead(self)

        def offers(name: str) -> bool:
            return self.tour.offers(name) and self.commands.has_screen(name)

        parts = (
            self, self.time, self.tasks, self.tapes, self.layouts, self.terminal, self.tour,
            self.counts, TableCommands(self), PlaneCommands(self), SettingsCommands(self),
            DialogCommands(self, offers), OwnCommands(self),
        )  # fmt: skip
        turns = {f"do_view_{mode}": partial(self.switch_mode, mode) for mode in SCREENS}
        self.commands = Dispatcher(self, turns | PlaneCommands(self).runners() | runners(parts))
        self.key_of = self.commands.key_of
        self.unsaved: tuple[str, ...] = ()
        self._asked_about: tuple[str, ...] = ()
        """The value of `unsaved` when the user was last warned."""
        self._open, self._start, self._first = plane, start, first
        self._where, self._duration = where, duration_s
        self.ready = asyncio.Event()
        """Set as soon as commands can run."""

    # Start and end

    async def on_load(self) -> None:
        # Before Textual takes the terminal: from then on the console must give it back.
        loop = asyncio.get_running_loop()
        for number in _DEADLY:
            loop.add_signal_handler(number, self.exit, 0 if number in _ENDING else 128 + number)

    def get_default_screen(self) -> Screen[Any]:
        return StartingScreen(self._where)

    async def on_ready(self) -> None:
        """Load the rest after the first paint; keys wait until it is there."""
        try:
            await asyncio.to_thread(self._load)
        except ProbedeckError as error:
            # The output of the tables may be impossible.
            self.fail(error)
            return
        self.time.open(self.hosts)
        await self.switch_mode(self._first)
        if not gc.isenabled():
            # Imported modules stay.
            gc.freeze()
            gc.enable()
        self.hosts.listen(self.names, self.terminal.show_within)
        self.set_interval(1.0, self.show_status)
        self.set_interval(1.0, self.time.play)
        if self._duration is not None:
            self.set_timer(self._duration, self.exit)
        self.layouts.begin()
        for warning in self.settings.warnings:
            self.notify(printable(warning, REPLACED), severity="warning", markup=False)
        self.tapes.play_startup(self._start_probes())
        self.ready.set()

    def _load(self) -> None:
        for screen in SCREENS.values():
            if not screen.is_heavy:
                screen.load()  # in this thread, not in the event loop
        # numpy and the probes' tables: the first paint does without them.
        from app.console.live.state import ShownHosts

        self.plane = self._open()
        self.hosts = ShownHosts(self.plane)

    @work(thread=True, exit_on_error=False)
    def _start_probes(self) -> None:
        try:
            with cancelled_by(self.tasks.starting):
                self._start()
        except CancelError:
            return  # the console ends
        except Exception as error:
            if not isinstance(error, ProbedeckError):
                # Report a fault of the program, too, after the terminal is given back.
                error = ProbedeckError(f"the probes did not start: {type(error).__name__}: {error}")
            self.failure = error
            self.call_from_thread(self.exit, error.exit_code)

    def fail(self, error: ProbedeckError) -> None:
        self.failure = error
        self.exit(error.exit_code)

    def exit(self, *arguments: Any, **options: Any) -> None:
        """End the console, and all tasks that can be cancelled."""
        self.tasks.cancel_all()
        super().exit(*arguments, **options)

    def do_app_quit(self) -> None:
        if self.unsaved and self.unsaved != self._asked_about:
            self._asked_about = self.unsaved
            names = ", ".join(self.unsaved)
            key = self.key_of("app.quit")
            text = f"edited and not saved: {names}; {key} again quits and loses that"
            self.notify(printable(text, REPLACED), severity="warning", markup=False)
            return
        self.exit(0)

    # Events of Textual

    async def on_event(self, event: events.Event) -> None:
        # A tape itself waits until its keys are handled.
        now = event if self.tapes.playing else self.type_ahead.next(event)
        if now is None or not self.tapes.admits(now):
            return
        if not self.counts.takes(now):
            with self.tapes.handling(now):
                await super().on_event(now)
        self.type_ahead.handled(now)

    def on_ground_known(self, event: GroundKnown) -> None:
        self.terminal.follow_ground(dark=event.dark)

    @on(Notify)
    def _notified(self, event: Notify) -> None:
        self.tapes.message = event.notification.message
        self.drop_notifications(event.notification)

    def on_click(self, event: events.Click) -> None:
        self.tapes.clicked(event)

    def get_key_display(self, binding: Binding) -> str:
        """Return the sign of a key, or its name if the terminal cannot draw the sign."""
        sign = super().get_key_display(binding)
        return sign if self.look.glyphs != "ascii" or sign.isascii() else binding.key

    # Commands

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a command means anything on the screen in front."""
        if action != "command" or not parameters:
            return super().check_action(action, parameters)
        lines = str(parameters[0])
        return self.tour.offers(lines) and self.commands.is_offered(lines)

    def use_settings(self, settings: Settings, keymap: Keymap) -> None:
        self.settings, self.keymap = settings, keymap
        self.set_bindings(bindings(keymap))

    async def action_command(self, lines: str) -> None:
        try:
            lines = self.counts.applied(lines)
        except ProbedeckError as error:
            self.complain(error)
            return
        self.tapes.called(lines)
        await self.commands.run_lines(lines)

    def action_press(self, keys: str) -> None:
        """Press keys, separated by commas."""
        self.run_worker(self.type_ahead.press(keys), exclusive=True, group=PRESSING)

    async def run_command(self, asked: Invocation) -> None:
        with self.tapes.running(asked):
            await self.commands.run(asked)

    def complain(self, error: ProbedeckError) -> None:
        self.commands.hear(error)
        self.tapes.hear(error)
        if (front := self._front()) is not None and front.takes_blame(error):
            answer = front.prompt.input
            self.tapes.refused(answer.value, len(answer.value) - answer.cursor_position)
            return
        severity: SeverityLevel = "information" if isinstance(error, CancelError) else "error"
        self.notify(printable(str(error), REPLACED), severity=severity, markup=False)

    # The screen in front

    @property
    def writes_refused(self) -> str:
        return self.plane.read_only or self.tapes.writes_refused

    def _front(self) -> ConsoleScreen | None:
        """The screen in front, if it can show anything: the console neither starts nor ends."""
        screen = self.screen if self.is_running and not self.ending else None
        return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None

    async def turn_to(self, mode: str, key: Hashable | None) -> None:
        await self.switch_mode(mode)
        if key is not None and (screen := screen_of(self, mode)) is not None:
            screen.point_at(key)

    def screen_resumed(self, screen: Screen[Any]) -> None:
        self.layouts.restore(screen)
        self.refresh_view()

    async def choose_hosts(self) -> None:
        """Begin anew with the chosen hosts."""
        self.hosts.choose()
        shown = {mode: screen_of(self, mode) for mode in SCREENS if mode != self.current_mode}
        # The models of other screens are about the hosts before; filters and the like stay.
        self.layouts.keep({mode: screen.keep() for mode, screen in shown.items() if screen})
        for mode in shown:
            await self.remove_mode(mode)
            self.add_mode(mode, SCREENS[mode])
        self.time.open(self.hosts)
        self.refresh_view()

    def refresh_view(self) -> None:
        self.time.advance()
        if (front := self._front()) is not None:
            front.show()
            if self.tour.step is not None:
                self.tour.show()

    def show_status(self) -> None:
        if (front := self._front()) is not None:
            own = [*self.counts.status_items(), *self.tapes.status_items()]
            items = status_items(self, self._where, own)
            front.query_one("#status", StatusStrip).show([*items, *front.notes])
            self.show_title(printable(title(self, self._where), REPLACED))

    def _named(self) -> None:
        """Show a new host name; called by threads that outlive the console."""
        with suppress(RuntimeError):
            self.terminal.show_soon()
