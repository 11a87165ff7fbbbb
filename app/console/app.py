"""The console's application: screens, commands, and the controller that runs beside them."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual import work
from textual.notifications import SeverityLevel
from textual.screen import Screen

from app.config.keymap import Keymap
from app.config.model import Settings
from app.console.dialogs.keys import KeysScreen
from app.console.host_names import Names
from app.console.layout import LayoutApp
from app.console.overwriting import Overwriting
from app.console.prompt.command_line import CommandLine
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS
from app.console.starting import StartingScreen
from app.console.table_actions import TableApp
from app.console.tasks import Task, TasksApp
from app.console.time_travel import MomentApp
from app.console.tour import Tour
from app.console.type_ahead import TypeAheadApp
from app.console.updates import SHORTEST_INTERVAL, UpdateApp
from bpf.attach.attachment import Hook
from bpf.cancel import CancelError, cancelled_by
from bpf.errors import ProbedeckError, UsageError
from probes.snapshot import Event, History, Snapshot
from widgets.format import REPLACED, age, duration, percent, poll_time, safe
from widgets.status import StatusItem
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.paths.model import PathKey
    from probes.control_plane import ControlPlane, Replacement
    from probes.flow.filter import FlowFilter

_STALE_AFTER = 2.5
"""Intervals without a window after which the data's age is shown."""
_DEADLY = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM,
)  # fmt: skip
"""Signals that end it; the terminal is given back."""


class ConsoleApp(TypeAheadApp, LayoutApp, TableApp, TasksApp, MomentApp, UpdateApp):
    """The console."""

    TITLE = "probedeck"
    plane: ControlPlane
    """What runs the probes; to be asked in threads, as it may take its time."""
    MODES = cast("dict[str, Any]", SCREENS)
    ENABLE_COMMAND_PALETTE = False  # its key would be no command of the registry

    def __init__(
        self, plane: Callable[[], ControlPlane], start: Callable[[], object], where: str,
        duration_s: float | None = None, *, first: str = "overview",
        names: bool = True, settings: Settings | None = None, tour: bool = False,
    ) -> None:  # fmt: skip
        """`plane` makes what runs the probes, and `start` starts them, in threads: both after the
        first paint.

        `where` is what is watched, as an operator calls it; `first` is the screen to begin with;
        without `names` no address is looked up until the operator asks for it.
        """
        super().__init__()
        self.settings = settings or Settings()
        self.take_terminal(self.settings.ui)
        self.take_keys(Keymap(self.settings))
        self.command_line = CommandLine(self)
        self.take_layout(self.settings.ui.layout)
        self.names = Names(self._named, enabled=names)
        """Of addresses, by the host's resolver."""
        self.wanted_path: PathKey | None = None
        """What screen 2 turns to as soon as there is something of it."""
        self.tour = Tour()
        if tour:
            self.tour.begin()
        self.overwriting = Overwriting()
        self.unsaved: tuple[str, ...] = ()
        """Files that edited sources would be in, had they been saved."""
        self._asked_about: tuple[str, ...] = ()
        """What was unsaved when the operator was asked whether to quit."""
        for mode in SCREENS:
            setattr(self, f"do_view_{mode}", partial(self.switch_mode, mode))
        self._open = plane
        self._first = first
        self._start = start
        self._where = where
        self._duration = duration_s
        self._notes: tuple[StatusItem, ...] = ()
        self.ready = asyncio.Event()
        """Set as soon as commands can be done."""

    @property
    def read_only(self) -> str:
        """Why nothing may be changed; empty where it may."""
        return self.plane.read_only

    @property
    def interval(self) -> float:
        """Seconds of a window of the flow probe, wherever it runs."""
        return self.plane.interval

    @property
    def capture(self) -> str:
        """The filter of the flows that are counted; empty if every flow is."""
        return self.plane.capture

    @property
    def history(self) -> History:
        """Windows until now, also those after a paused frame."""
        return self.plane.history

    async def on_load(self) -> None:
        # Before the terminal is taken: from then on it must be given back.
        loop = asyncio.get_running_loop()
        for number in _DEADLY:
            loop.add_signal_handler(number, self.exit, 128 + number)

    def get_default_screen(self) -> Screen[Any]:
        return StartingScreen(self._where)

    async def on_ready(self) -> None:
        """Load the rest, now that there is something to be seen; keys wait until it is there."""
        try:
            self.plane = await asyncio.to_thread(self._load)
        except ProbedeckError as error:
            # Tables that are written beside it may have no place.
            self.failure = error
            self.exit(error.exit_code)
            return
        self.open_moments()
        await self.switch_mode(self._first)
        if not gc.isenabled():
            # What has been imported stays.
            gc.freeze()
            gc.enable()
        self.plane.listen(self._published)
        self.set_interval(1.0, self._show_status)
        if self._duration is not None:
            self.set_timer(self._duration, self.exit)
        self.begin_layout()
        for warning in self.settings.warnings:
            self.notify(safe(warning, REPLACED), severity="warning", markup=False)
        self.begin_script(self._start_probes())
        self.ready.set()

    def _load(self) -> ControlPlane:
        for screen in SCREENS.values():
            if not screen.is_heavy:
                screen.load()  # in this thread, not in the event loop
        return self._open()

    @work(thread=True, exit_on_error=False)
    def _start_probes(self) -> None:
        try:
            with cancelled_by(self.starting):
                self._start()
        except CancelError:
            return  # the console ends
        except Exception as error:
            if not isinstance(error, ProbedeckError):
                # A fault of ours: it must be seen, and the terminal given back in good order.
                error = ProbedeckError(f"the probes did not start: {type(error).__name__}: {error}")
            self.failure = error
            self.call_from_thread(self.exit, error.exit_code)

    def _published(self, item: Snapshot | Event) -> None:
        """Called by the probes' threads."""
        self.state.take(item)
        self.show_soon()

    def _named(self) -> None:
        """Called by the threads that look names up, which outlive the console."""
        with suppress(RuntimeError):
            self.show_soon()

    @property
    def since_window(self) -> float:
        """Seconds since the last window."""
        return time.monotonic() - self.state.last_at

    def refresh_view(self) -> None:
        """Bring the frame up to date, and what the screen in front shows."""
        super().refresh_view()
        if (front := self._front()) is not None:
            front.show()
        if self.tour.step is not None:
            self._show_tour()

    def _front(self) -> ConsoleScreen | None:
        """The screen in front, where it has something to show that on: not while it is closed."""
        screen = self.screen if self.is_running and not self.ending else None
        return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None

    def show_notes(self, *notes: StatusItem) -> None:
        """Say something about what the screen shows, at the end of the status strip."""
        self._notes = notes
        self._show_status()

    def complain(self, error: ProbedeckError) -> None:
        super().complain(error)
        if (front := self._front()) is not None and front.takes_blame(error):
            answer = front.prompt.input
            self.show_refusal(answer.value, len(answer.value) - answer.cursor_position)
            return
        severity: SeverityLevel = "information" if isinstance(error, CancelError) else "error"
        self.notify(safe(str(error), REPLACED), severity=severity, markup=False)

    @property
    def nothing_yet(self) -> bool:
        """Whether there is no window to be seen yet."""
        return self.state.last is None

    def show_tape(self) -> None:
        """Tell which tape plays, or is recorded."""
        self._show_status()

    def _show_tour(self) -> None:
        self.tour.look(self)
        if (front := self._front()) is not None:
            front.show_tour(self.tour)

    def show_tasks(self) -> None:
        self._show_status()

    def _show_status(self) -> None:
        if (front := self._front()) is not None:
            front.show_status(self._status())

    def _status(self) -> list[StatusItem]:
        last = self.frame.last
        failure = self.plane.failure()
        badge = StatusItem("LIVE", Tone.GOOD, badge=True)
        if (paused := self.moment_badge()) is not None:
            badge = paused
        elif failure is not None:
            badge = StatusItem("ENDED", Tone.BAD, badge=True)
        elif last is None:
            badge = StatusItem("STARTING", Tone.MUTED, badge=True)
        elif self.interval and (old := self.since_window) > _STALE_AFTER * self.interval:
            badge = StatusItem(f"NO DATA FOR {age(old)}", Tone.WARN, badge=True)
        items = [
            badge, *self.tape_items(), *self.moment_items(), *self.task_items(),
            *self.link_items(SHORTEST_INTERVAL),
        ]  # fmt: skip
        if self.read_only:
            items.append(StatusItem("READ ONLY", Tone.WARN, badge=True))
        if failure is not None:
            items.append(StatusItem(failure.message, Tone.BAD))
        items += self._hook_items()
        if last is not None:
            poll = (last.swap_ns + last.drain_ns) / 1e9
            lost = self.present.lost
            full = Tone.WARN if last.occupancy > 0.5 else Tone.NORMAL
            items += [
                StatusItem(str(last.generation), label="gen", priority=5),
                StatusItem(poll_time(poll, last.seconds), label="poll", priority=6),
                StatusItem(percent(last.occupancy), full, label="map", priority=4),
                StatusItem(str(lost), Tone.BAD if lost else Tone.GOOD, label="lost", priority=2),
            ]
        if self.capture:
            items.append(StatusItem(self.capture, Tone.WARN, 3, label="only"))
        return [*items, *self._notes]

    def _hook_items(self) -> list[StatusItem]:
        """How packets are seen, and whether another program sees them first."""
        hooks = self.plane.hook_status()
        modes = " ".join(each.mode for each in hooks if each.hook != Hook.TC_EGRESS.value)
        removed = any(each.mode == "removed" for each in hooks)
        tone = Tone.BAD if removed else Tone.NORMAL
        items = [StatusItem(f"{self._where} {modes}".rstrip(), tone, priority=1)]
        if before := list(dict.fromkeys(name for each in hooks for name in each.before)):
            more = f" and {len(before) - 1} more" if len(before) > 1 else ""
            items.append(StatusItem(f"{before[0]}{more}", Tone.WARN, 3, label="behind"))
        return items

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return self.tour.step is not None or not command.startswith("tour.")

    def open_path(self, choice: PathKey) -> None:
        """Turn to a path that is traced."""
        self.wanted_path = choice
        self.call_later(self.turn_to, "paths", None)

    async def turn_to(self, mode: str, key: Hashable | None) -> None:
        """Turn to a screen, with its cursor on what `key` means there; None: wherever it is."""
        await self.switch_mode(mode)
        if key is not None and (front := self._front()) is not None:
            front.point_at(key)

    def do_help_keys(self) -> None:
        self.push_screen(KeysScreen(self.current_mode, self.keymap, self.offers))

    def do_help_focus(self) -> None:
        # An editor's parser, which the first paint does without.
        from app.console.dialogs.focus_help import FocusHelp

        self.push_screen(FocusHelp(self.screen.focused, self.current_mode, self.key_of))

    def do_help_tour(self) -> None:
        self.tour.begin()
        self._show_tour()

    def do_tour_next(self) -> None:
        self.tour.skip()
        self._show_tour()

    def do_tour_end(self) -> None:
        self.tour.end()
        self._show_tour()

    def do_probe_info(self) -> None:
        from app.console.dialogs.program_info import LocalHooks, ProgramInfoScreen

        if not isinstance(self.plane, LocalHooks):
            self.complain(UsageError("the hooks' run time is known on their own host only"))
            return
        self.push_screen(ProgramInfoScreen(self.plane.hooks(), self.plane.memory()))

    def do_app_palette(self) -> None:
        from app.console.dialogs.palette import Palette

        self.push_screen(Palette())

    def do_app_redraw(self) -> None:
        if isinstance(self.screen, ConsoleScreen):
            self.screen.refresh_terminal()

    def do_app_quit(self) -> None:
        if self.unsaved and self.unsaved != self._asked_about:
            self._asked_about = self.unsaved
            names = ", ".join(self.unsaved)
            key = self.key_of("app.quit")
            text = f"edited and not saved: {names}; {key} again quits and loses that"
            self.notify(safe(text, REPLACED), severity="warning", markup=False)
            return
        self.exit(0)

    def reconfigure(self, capture: FlowFilter) -> None:
        """Count only some flows from now on; compiles, so not in the event loop."""
        what = capture.text or "every flow"

        def done(made: Replacement) -> None:
            text = f"generation {made.generation} counts {what}; it took {duration(made.seconds)}"
            self.notify(text, markup=False)

        def failed(error: ProbedeckError) -> None:
            self.plane.publish(Event.now("error", "flow", str(error)))
            self.complain(error)

        ask = partial(self.plane.reconfigure, capture)
        self.front_screen().run_in_worker(ask, done, failed, task=Task(f"counting {what}"))
