"""The console's application: screens, commands, and the controller that runs beside them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial

from textual import work
from textual.app import App
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.message import Message
from textual.screen import Screen

from app.console.commands import REGISTRY, Command, bindings
from app.console.screens.base import DeckScreen
from app.console.screens.events import EventsScreen
from app.console.screens.flows import FlowsScreen
from app.console.screens.keys import KeysScreen
from app.console.screens.programs import ProgramInfoScreen
from app.console.state import State
from bpf import interface as interfaces
from bpf.attach import Hook
from bpf.errors import DeckError
from probes.controller import Controller
from probes.flow import FlowFilter, FlowProbe
from probes.snapshot import Event, History, Snapshot
from widgets.format import duration, percent
from widgets.screen import DiffScreen
from widgets.status import StatusItem
from widgets.tones import Tone

_STALE_AFTER = 2.5
"""Intervals without a window after which the data's age is shown."""


class Published(Message):
    """There is something new in the state."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Published)


class CommandProvider(Provider):
    """The registry, for the palette."""

    async def discover(self) -> Hits:
        for entry in self._usable():
            yield DiscoveryHit(entry.title, self._runner(entry.name), help=entry.name)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._usable():
            text = f"{entry.title} ({entry.name})"
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), self._runner(entry.name), help=entry.keys)

    def _usable(self) -> list[Command]:
        return [e for e in REGISTRY.values() if e.screen in ("", self.app.current_mode)]

    def _runner(self, name: str) -> Callable[[], Awaitable[None]]:
        return partial(self.app.run_action, f"command('{name}')")  # type: ignore[return-value]


class ConsoleApp(App[int]):
    """The console."""

    TITLE = "probedeck"
    MODES = {"flows": FlowsScreen, "events": EventsScreen}
    DEFAULT_MODE = "flows"
    BINDINGS = bindings()
    COMMANDS = {CommandProvider}
    ENABLE_COMMAND_PALETTE = False  # its key would be no command of the registry

    def __init__(
        self, controller: Controller, start: Callable[[], FlowProbe], interface: str,
        interval: float, capture: FlowFilter, duration_s: float | None = None,
    ) -> None:  # fmt: skip
        """`start` attaches the probe; it runs in a thread after the first paint."""
        super().__init__(ansi_color=False)
        self.state = State()
        self.capture = capture
        self.failure: DeckError | None = None
        """Why the console ended by itself."""
        self.paused = False
        self._controller = controller
        self._start = start
        self._interface = interface
        self._interval = interval
        self._duration = duration_s
        self._probe: FlowProbe | None = None
        self._notes: tuple[StatusItem, ...] = ()

    @property
    def history(self) -> History:
        return self._controller.history

    def get_default_screen(self) -> Screen[object]:
        return DiffScreen(id="_default")

    async def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit, 128 + number)
        self._controller.listen(self._published)
        self.set_interval(1.0, self._show_status)
        if self._duration is not None:
            self.set_timer(self._duration, self.exit)
        self._start_probe()

    @work(thread=True, exit_on_error=False)
    def _start_probe(self) -> None:
        try:
            self._probe = self._start()
        except DeckError as error:
            self.failure = error
            self.call_from_thread(self.exit, error.exit_code)

    def _published(self, item: Snapshot | Event) -> None:
        """Called by the probes' threads."""
        self.state.take(item)
        self.post_message(Published())

    def on_published(self) -> None:
        if not self.paused:
            self.refresh_view()

    def refresh_view(self) -> None:
        """Bring the screen in front up to date."""
        screen = self.screen
        if isinstance(screen, DeckScreen) and screen.is_mounted:
            screen.show()
            self._show_status()

    def show_notes(self, *notes: StatusItem) -> None:
        """Say something about what the screen shows, at the end of the status strip."""
        self._notes = notes

    def complain(self, error: DeckError) -> None:
        self.notify(str(error), severity="error", markup=False)

    def _show_status(self) -> None:
        screen = self.screen
        if isinstance(screen, DeckScreen) and screen.is_mounted:
            screen.show_status(self._status())

    def _status(self) -> list[StatusItem]:
        last = self.state.last
        failure = self._controller.failure()
        badge = StatusItem("LIVE", Tone.GOOD, badge=True)
        if failure is not None:
            badge = StatusItem("ENDED", Tone.BAD, badge=True)
        elif self.paused:
            badge = StatusItem("PAUSED", Tone.WARN, badge=True)
        elif last is None:
            badge = StatusItem("STARTING", Tone.MUTED, badge=True)
        elif (age := (time.monotonic_ns() - last.end_ns) / 1e9) > _STALE_AFTER * self._interval:
            badge = StatusItem(f"{duration(age)} OLD", Tone.WARN, badge=True)
        modes = " ".join(
            mode for hook, mode in self._controller.modes().items() if hook != Hook.TC_EGRESS.value
        )
        items = [badge, StatusItem(f"{self._interface} {modes}".rstrip(), priority=1)]
        if last is not None:
            poll = (last.swap_ns + last.drain_ns) / 1e9
            lost = self.state.lost
            full = Tone.WARN if last.occupancy > 0.5 else Tone.NORMAL
            items += [
                StatusItem(str(last.generation), label="gen", priority=5),
                StatusItem(f"{duration(poll)} / {last.seconds:.1f} s", label="poll", priority=6),
                StatusItem(percent(last.occupancy), full, label="map", priority=4),
                StatusItem(str(lost), Tone.BAD if lost else Tone.GOOD, label="lost", priority=2),
            ]
        if self.capture.text:
            items.append(StatusItem(self.capture.text, Tone.WARN, 3, label="only"))
        return [*items, *self._notes]

    async def action_command(self, name: str) -> None:
        """Run a command of the registry, by the screen in front or the app."""
        method = REGISTRY[name].method
        for owner in (self.screen, self):
            if (run := getattr(owner, method, None)) is not None:
                run()
                return

    def do_view_flows(self) -> None:
        self.switch_mode("flows")

    def do_view_events(self) -> None:
        self.switch_mode("events")

    def do_view_pause(self) -> None:
        self.paused = not self.paused
        if self.paused:
            self._show_status()
        else:
            self.refresh_view()

    def do_help_keys(self) -> None:
        self.push_screen(KeysScreen(self.current_mode))

    def do_probe_info(self) -> None:
        if self._probe is not None:
            self.push_screen(ProgramInfoScreen(self._controller.hooks(), self._probe.memory()))

    def do_app_palette(self) -> None:
        self.push_screen(CommandPalette())

    def do_app_redraw(self) -> None:
        if isinstance(self.screen, DeckScreen):
            self.screen.refresh_terminal()

    def do_app_theme(self) -> None:
        dark = self.current_theme.dark
        self.theme = "textual-light" if dark else "textual-dark"

    def do_app_quit(self) -> None:
        self.exit(0)

    @work(thread=True, exclusive=True, group="reconfigure", exit_on_error=False)
    def reconfigure(self, capture: FlowFilter) -> None:
        """Count only some flows from now on; compiles, so not in the event loop."""
        if self._probe is None:
            return
        try:
            seconds = self._probe.reconfigure(capture)
        except DeckError as error:
            self._published(Event.now("error", "flow", str(error)))
            self.call_from_thread(self.complain, error)
            return
        self.capture = capture
        what = f"counting {capture.text}" if capture.text else "counting every flow"
        text = f"{what}; swapped in after {duration(seconds)}, no packet lost"
        self._controller.publish(Event.now("info", "flow", text))


def run(
    interface: str, interval: float, ingress: Hook, capture: FlowFilter, duration_s: float | None
) -> int:
    """Open the console on an interface; returns the exit code. Raises DeckError subclasses."""
    interfaces.find(interface)
    capture.to_c()
    controller = Controller()

    def start() -> FlowProbe:
        return controller.watch_flows(
            interface, interval=interval, ingress=ingress, capture=capture
        )

    app = ConsoleApp(controller, start, interface, interval, capture, duration_s)
    try:
        code = app.run()
    finally:
        controller.close()
    if app.failure is not None:
        raise app.failure
    return code if code is not None else app.return_code or 0
