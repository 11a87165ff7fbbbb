"""Tapes in the console: play them, and record keys as a tape. See app.tape for their language."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import events
from textual.worker import Worker, WorkerCancelled

from app.commands.line import Invocation
from app.commands.model import ParameterKind
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, front_screen, screen_of
from app.console.screens import SCREENS
from app.tape.options import NOTHING, Startup
from bpf.errors import ProbedeckError, UsageError
from widgets.status import StatusItem
from widgets.terminal.keybar import KeyBar
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.tapes.player import Player
    from app.console.tapes.recorder import Recorder
    from app.junit import Suite
    from app.tape.model import Tape, TapeStep
    from app.tape.named_state import StateValue, StateValues

LINE = "app.prompt"
"""The command that asks for a whole line."""
_FIRST = 3.0
"""Seconds to wait for the first window, once the probes have started."""
_POLL = 0.025
"""Seconds between two checks for the first window."""
REGISTER = "q"
"""The register of a recording that names none."""


class Tapes:
    """Plays one tape at a time, or records the user's keys."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.startup = NOTHING
        """The tape to play once the console is ready. If it fails, the console ends."""
        self.message = ""
        """The last message in the corner."""
        self._left: TapeStep | None = None
        """The step of the startup tape that is played or comes next; None: all were played."""
        self._number, self._seconds = 0, 0.0
        """Number of the step of the startup tape that was played last, from 1, and its duration."""
        self._player: Player | None = None
        self._recorder: Recorder | None = None
        self._last_tape = REGISTER
        """The tape that was recorded or played last."""
        self._key: events.Key | None = None
        """The key that the app handles now."""
        self._turn = asyncio.Lock()
        """Held while a tape plays, or waits for the probes; other tapes follow it."""

    @property
    def playing(self) -> str:
        """Name of the tape that plays; empty if none does."""
        return self._player.tape.name if self._player is not None else ""

    @property
    def asking(self) -> tuple[str, str]:
        """The command that asks for a value, and the answer until now; empty if none asks."""
        screen = self._console.app.screen
        if not (isinstance(screen, ConsoleScreen) and screen.is_mounted and screen.prompt.is_open):
            return "", ""
        return screen.prompt.command or LINE, screen.prompt.input.value

    def state_of(self, name: str) -> StateValue:
        """Return the value of a named state; None if it does not exist now."""
        console, app, last = self._console, self._console.app, self._console.time.frame.last
        # States that belong to no screen.
        values: StateValues = {
            "message": self.message,
            "prompt": self.asking[0],
            "prompt.text": self.asking[1],
            "macro.playing": self.playing,
            "macro.recording": self._recorder.register if self._recorder is not None else "",
            "view": app.current_mode,
            "paused": console.time.paused,
            "busy": console.tasks.busy,
            "read_only": bool(console.plane.read_only),
            "theme": "dark" if app.current_theme.dark else "light",
            "width": app.size.width,
            "height": app.size.height,
            "windows": last.window if last is not None else 0,
            "generation": last.generation if last is not None else None,
            "rate": float(console.time.frame.flows.rows["bit_rate"].sum()),
            "lost": console.time.frame.lost,
        }
        group, dot, _ = name.partition(".")
        for mode, info in SCREENS.items():
            if dot and any(state.name.startswith(f"{group}.") for state in info.states):
                values |= info.values(console)
                if (screen := screen_of(app, mode)) is not None:
                    values |= screen.states()
        return values.get(name)

    def status_items(self) -> list[StatusItem]:
        """Items of the status strip: the tape that plays, and the register of the recording."""
        items = []
        if (player := self._player) is not None:
            text = f"PLAYING {player.tape.name} {player.number}/{len(player.tape.steps)}"
            items.append(StatusItem(text, Tone.ACCENT, badge=True))
        if self._recorder is not None:
            items.append(StatusItem(f"REC {self._recorder.register}", Tone.BAD, badge=True))
        return items

    # Events, commands and errors of the console

    def admits(self, event: events.Event) -> bool:
        """Whether to handle an event; while a tape plays, only its keys, and Escape stops it."""
        arrives = isinstance(event, events.InputEvent) and not event.is_forwarded
        if not arrives or self._player is None or self._player.sent(event):
            return True
        if isinstance(event, events.Key) and event.key in ("escape", "ctrl+c"):
            self._player.stop()
        return False

    @contextmanager
    def handling(self, event: events.Event) -> Iterator[None]:
        """Record an event while the app handles it."""
        if self._recorder is not None and not event.is_forwarded:
            if isinstance(event, events.Key):
                self._recorder.key(event)
            elif isinstance(event, events.Paste):
                self._recorder.paste(event.text)
        self._key = event if isinstance(event, events.Key) else None
        try:
            yield
        finally:
            self._key = None

    @property
    def writes_refused(self) -> str:
        """Why the tape that plays may change nothing; empty if it may, or if none plays."""
        if self._player is None or self.startup.allow_write:
            return ""
        return "the tape may change nothing: --allow-write allows it"

    def clicked(self, event: events.Click) -> None:
        """Warn that a recording has no mouse; clicks on a key of the footer press the key."""
        if self._recorder is not None and not isinstance(event.widget, KeyBar):
            text = "what the mouse does is not recorded: use keys"
            self._console.app.notify(text, severity="warning", timeout=3.0, markup=False)

    def called(self, lines: str) -> None:
        """Record command lines of a key, or of the palette."""
        if self._recorder is not None:
            self._recorder.called(lines.splitlines(), self._key)

    @contextmanager
    def running(self, asked: Invocation) -> Iterator[None]:
        """Record a command that the prompt ran. Raises UsageError if the tape may not run it."""
        if asked.writes and self._player is not None and not self.startup.allow_write:
            from app.tape.load import refused

            raise UsageError(refused(asked.command.name))
        command, text = self.asking if self._key is None else ("", "")
        yield
        if self._recorder is not None:
            if sorted_by := self._reached(asked):
                self._recorder.reached(asked.line, f"{asked.line} {sorted_by}")
                asked = replace(asked, values=(sorted_by,))
            if command == LINE:
                self._recorder.called([asked.line])
            elif command == asked.command.name:
                self._recorder.answered(text)

    def _reached(self, asked: Invocation) -> str:
        """Return the column that a command without values sorted by: the next one differs when
        the tape plays. Empty for other commands."""
        (parameter,) = asked.command.parameters[:1] or (None,)
        screen = self._console.app.screen
        if parameter is None or parameter.kind is not ParameterKind.COLUMN or asked.values:
            return ""
        return screen.table_with().sort if isinstance(screen, ConsoleScreen) else ""

    def refused(self, text: str, left: int) -> None:
        """Record that the prompt keeps a text to correct, `left` characters after the cursor."""
        if self._recorder is not None:
            self._recorder.put(text, left)

    def hear(self, error: ProbedeckError) -> None:
        """Fail the step of the tape that plays, and drop the key from the recording."""
        if self._player is not None:
            self._player.complain(error)
        if self._recorder is not None and self._key is not None:
            self._recorder.refused(self._key)

    # Playing

    def play(self, name: str) -> None:
        """Play the tape of a register's letter, a name or a file. Raises ProbedeckError."""
        from app.tape.store import TapeStore

        if self._player is not None:
            raise UsageError(f"{self.playing} is playing", hint="esc stops it")
        if self._recorder is not None:
            raise UsageError("what is recorded plays no tape", hint="Q stops recording")
        settings = self._console.settings
        store = TapeStore(settings.macros, settings.filters, self.startup.variables)
        path = store.path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            # Reading a FIFO or a device would block the console.
            raise UsageError(f"tape {name!r} is no file")
        tape = store.load(name)
        replace(self.startup, tape=tape).check()
        self._last_tape = name
        self._console.app.run_worker(self._play(tape), group="tape")

    def begin_with(self, startup: Startup) -> None:
        self.startup = startup
        self._left = next(iter(startup.tape.steps if startup.tape is not None else ()), None)

    def play_startup(self, starting: Worker[None]) -> None:
        """Play the startup tape, if there is one, when the worker `starting` is done."""
        if self.startup.tape is not None:
            worker = self._play_startup(self.startup.tape, starting)
            self._console.app.run_worker(worker, group="tape")

    def suite(self, failure: str) -> Suite:
        """Return the steps of the startup tape as a suite. `failure` is the reason why the last
        played step failed, or empty."""
        from app.junit import Case, Suite

        tape, reached = self.startup.tape, max(1, self._number)
        assert tape is not None
        cases = [
            Case(
                f"{step.place.line}: {step.text}", failure if number == reached else "",
                number > reached,
            )
            for number, step in enumerate(tape.steps, 1)
        ]  # fmt: skip
        return Suite(tape.name, cases, self._seconds)

    def unplayed(self) -> ProbedeckError | None:
        """The error of a console that ended before the startup tape; None if all was played."""
        if self._left is None:
            return None
        from app.tape.model import StepError

        reason = f"{self._left.text}: the console ended before this was done"
        return StepError(self._left.place, reason)

    async def _play(self, tape: Tape) -> None:
        try:
            async with self._turn:
                stopped = await self._played(tape)
        except ProbedeckError as error:
            self._console.complain(error)
        else:
            self._notify(f"{tape.name} {stopped or 'is done'}", 2.0)

    async def _play_startup(self, tape: Tape, starting: Worker[None]) -> None:
        """Play the startup tape; then hand over to the user, or exit without a terminal."""
        console = self._console
        async with self._turn:
            try:
                await starting.wait()
            except WorkerCancelled:
                return  # The console ends.
            deadline = time.monotonic() + _FIRST
            while console.time.frame.last is None and time.monotonic() < deadline:
                await asyncio.sleep(_POLL)
            if console.failure is not None:
                return
            begun = time.monotonic()
            try:
                stopped = await self._played(tape)
            except ProbedeckError as error:
                console.fail(error)
                return
            finally:
                self._seconds = time.monotonic() - begun
            self._left = None
            if self.startup.shown:
                self._notify(f"{tape.name} {stopped or 'is done'}", 2.0)
            else:
                console.app.exit(0)

    async def _played(self, tape: Tape) -> str:
        """Play a tape; return the place where the user stopped it, in words. Raises StepError."""
        from app.console.tapes.player import Player

        self._player = player = Player(
            self._console, tape, self.state_of, updates_golden=self.startup.updates_golden
        )
        try:
            return await player.play()
        except asyncio.CancelledError:
            if self._left is not None:
                self._left = player.step
            raise
        finally:
            if tape is self.startup.tape:
                self._number = player.number
            self._player = None
            self._console.show_status()

    def _notify(self, text: str, seconds: float) -> None:
        self._console.app.notify(text, timeout=seconds, markup=False)

    def do_macro_play(self, tape: str = "") -> None:
        if tape:
            self.play(tape)
        else:
            example = "a register's letter, a tape's name or file"
            prompt = front_screen(self._console.app).prompt
            prompt.ask("macro.play", "Play", example, self._last_tape, replaced=True)

    def do_macro_stop(self) -> None:
        if self._player is not None:
            self._player.stop()
        elif self._recorder is not None:
            self._keep()
        else:
            raise UsageError("no tape is playing, and none is recorded")

    # Recording

    def do_macro_record(self, register: str = REGISTER) -> None:
        from app.console.tapes.recorder import Recorder
        from app.tape import store

        if self._recorder is not None:
            self._keep()
            return
        if self._player is not None:
            raise UsageError(f"{self.playing} is playing", hint="esc stops it")
        store.register(register)
        self._recorder = Recorder(register, self._console.app.current_mode)
        self._console.show_status()

    def _keep(self) -> None:
        from app.tape import store

        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        if self.asking[0] == LINE:
            recorder.called(["macro.stop"])
        self._console.show_status()
        store.record(recorder.register, recorder.text())
        self._last_tape = recorder.register
        self._notify(f"register {recorder.register} has {recorder.count} steps; @ plays it", 3.0)
