"""The console plays tapes and records them; see app.tape for what they are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from textual import events, on
from textual.notifications import Notify
from textual.widgets._footer import FooterKey
from textual.worker import Worker, WorkerCancelled

from app.commands import Invocation
from app.config.model import Settings
from app.console.command_app import CommandApp
from app.console.screen import ConsoleScreen
from app.tape.options import NOTHING, Startup
from bpf.errors import ProbedeckError, UsageError
from widgets.status import StatusItem
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.app import ConsoleApp
    from app.console.tapes.player import Player
    from app.console.tapes.recorder import Recorder
    from app.tape.model import Tape, TapeStep

LINE = "app.prompt"
"""The command that asks for a whole line."""
_FIRST = 3.0
"""Seconds that the first window is waited for, once what measures it has started."""
_LOOK = 0.025
"""Seconds between two looks whether it is there."""
REGISTER = "q"
"""What is recorded into where no other is named."""


class TapeApp(CommandApp):
    """An app that plays tapes, and records what is done with keys."""

    settings: Settings
    script = NOTHING
    """What is played as soon as there is something to be seen; the console ends if it fails."""
    failure: ProbedeckError | None = None
    """Why the console ended by itself."""
    message = ""
    """The last one in the corner."""
    _left: TapeStep | None = None
    """The step of it to come, or in hand."""
    _player: Player | None = None
    _recorder: Recorder | None = None
    _last_tape = REGISTER
    """What was recorded into, or played, last."""
    _key: events.Key | None = None
    """What is being handled by the app."""

    def __init__(self) -> None:
        super().__init__()
        self._playing_turn = asyncio.Lock()
        """Held by the tape that plays, or waits for the probes; others play after it."""

    @property
    def nothing_yet(self) -> bool:
        """Whether there is no window to be seen yet."""
        raise NotImplementedError

    @property
    def playing(self) -> str:
        """The tape that plays; empty where none does."""
        return self._player.tape.name if self._player is not None else ""

    @property
    def recording(self) -> str:
        """The register that is recorded into; empty where none is."""
        return self._recorder.register if self._recorder is not None else ""

    @property
    def at_work(self) -> bool:
        """Whether something goes on that was asked for."""
        pressing = (worker for worker in self.workers if worker.group == "keys")
        return self.pending > 0 or any(worker.is_running for worker in pressing)

    @property
    def asking(self) -> tuple[str, str]:
        """The command that a value is asked for, and the answer until now; empty for none."""
        screen = self.screen
        if not (isinstance(screen, ConsoleScreen) and screen.is_mounted and screen.prompt.is_open):
            return "", ""
        return screen.prompt.command or LINE, screen.prompt.input.value

    def screen_of(self, mode: str) -> ConsoleScreen | None:
        """A mode's screen, where it was turned to before."""
        try:
            screen = self.get_screen_stack(mode)[0]
        except (KeyError, IndexError):
            return None
        return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None

    def tape_items(self) -> list[StatusItem]:
        """For the status strip."""
        items = []
        if (player := self._player) is not None:
            text = f"PLAYING {player.tape.name} {player.number}/{len(player.tape.steps)}"
            items.append(StatusItem(text, Tone.ACCENT, badge=True))
        if self._recorder is not None:
            items.append(StatusItem(f"REC {self._recorder.register}", Tone.BAD, badge=True))
        return items

    def show_tape(self) -> None:
        """Tell which tape plays, or is recorded."""
        raise NotImplementedError

    # What it sees and hears

    async def on_event(self, event: events.Event) -> None:
        arrives = isinstance(event, events.InputEvent) and not event.is_forwarded
        if arrives and self._player is not None and not self._player.sent(event):
            # What an operator presses would get between the steps.
            if isinstance(event, events.Key) and event.key in ("escape", "ctrl+c"):
                self._player.stop()
            return
        if self._recorder is not None and not event.is_forwarded:
            if isinstance(event, events.Key):
                self._recorder.key(event)
            elif isinstance(event, events.Paste):
                self._recorder.paste(event.text)
        self._key = event if isinstance(event, events.Key) else None
        try:
            await super().on_event(event)
        finally:
            self._key = None

    @on(Notify)
    def _notified(self, event: Notify) -> None:
        self.message = event.notification.message

    def on_click(self, event: events.Click) -> None:
        # Those on a key of the footer press it.
        if self._recorder is not None and not isinstance(event.widget, FooterKey):
            said = "what the mouse does is not recorded: use keys"
            self.notify(said, severity="warning", timeout=3.0, markup=False)

    async def action_command(self, lines: str) -> None:
        if self._recorder is not None:
            if self._key is not None:
                self._recorder.commands(self._key, tuple(lines.splitlines()))
            else:
                self._recorder.called(tuple(lines.splitlines()))
        await super().action_command(lines)

    async def run_command(self, asked: Invocation) -> None:
        if asked.command.writes and self._player is not None and not self.script.allow_write:
            from app.tape.load import refused

            raise UsageError(refused(asked.command.name))
        command, text = self.asking if self._key is None else ("", "")
        await super().run_command(asked)
        if self._recorder is not None:
            if command == LINE:
                self._recorder.called((asked.line,))
            elif command == asked.command.name:
                self._recorder.answered(text)

    def show_refusal(self, text: str, left: int) -> None:
        """A prompt's answer does not do: its text stays to be mended, with the cursor so many
        characters before its end."""
        if self._recorder is not None:
            self._recorder.put(text, left)

    def complain(self, error: ProbedeckError) -> None:
        super().complain(error)
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
        shelf = TapeStore(self.settings.macros, self.settings.filters)
        path = shelf.path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            # Reading one would wait, and nothing else be done meanwhile.
            raise UsageError(f"tape {name!r} is no file")
        tape = shelf.load(name)
        replace(self.script, tape=tape).check()
        self._last_tape = name
        self.run_worker(self._play(tape), group="tape")

    def begin_with(self, script: Startup) -> None:
        """Have this played first."""
        self.script = script
        steps = script.tape.steps if script.tape is not None else ()
        self._left = next(iter(steps), None)

    def begin_script(self, starting: Worker[None]) -> None:
        """Play what is to be played first, when `starting` is done."""
        if self.script.tape is not None:
            self.run_worker(self._play_script(self.script.tape, starting), group="tape")

    def unplayed(self) -> ProbedeckError | None:
        """What is wrong where the console has ended before what was to be played first."""
        if self._left is None:
            return None
        from app.tape.model import StepError

        reason = f"{self._left.text}: the console ended before this was done"
        return StepError(self._left.place, reason)

    async def _play(self, tape: Tape) -> None:
        try:
            async with self._playing_turn:
                stopped = await self._played(tape)
        except ProbedeckError as error:
            self.complain(error)
        else:
            self.notify(f"{tape.name} {stopped or 'is done'}", timeout=2.0, markup=False)

    async def _play_script(self, tape: Tape, starting: Worker[None]) -> None:
        async with self._playing_turn:
            await self._play_first(tape, starting)

    async def _play_first(self, tape: Tape, starting: Worker[None]) -> None:
        """Play it; then the console is the operator's, or over where he does not see it."""
        try:
            await starting.wait()
        except WorkerCancelled:
            return  # The console ends.
        deadline = time.monotonic() + _FIRST
        while self.nothing_yet and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        if self.failure is not None:
            return
        try:
            stopped = await self._played(tape)
        except ProbedeckError as error:
            self.failure = error
            self.exit(error.exit_code)
            return
        self._left = None
        if self.script.shown:
            self.notify(f"{tape.name} {stopped or 'is done'}", timeout=2.0, markup=False)
        else:
            self.exit(0)

    async def _played(self, tape: Tape) -> str:
        """Play it; where it was stopped, in words. Raises StepError."""
        from app.console.tapes.player import Player

        self._player = player = Player(cast("ConsoleApp", self), tape)
        try:
            return await player.play()
        except asyncio.CancelledError:
            if self._left is not None:
                self._left = player.step
            raise
        finally:
            self._player = None
            self.show_tape()

    def do_macro_play(self, tape: str = "") -> None:
        if tape:
            self.play(tape)
        else:
            example = "a register's letter, a tape's name or file"
            prompt = self.front_screen().prompt
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
        from app.tape import store as shelf

        if self._recorder is not None:
            self._keep()
            return
        if self._player is not None:
            raise UsageError(f"{self.playing} is playing", hint="esc stops it")
        shelf.register(register)
        self._recorder = Recorder(register, self.current_mode)
        self.show_tape()

    def _keep(self) -> None:
        """Put what was recorded into its register."""
        from app.tape import store as shelf

        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        if self.asking[0] == LINE:
            recorder.called(("macro.stop",))
        self.show_tape()
        shelf.record(recorder.register, recorder.text())
        self._last_tape = recorder.register
        said = f"register {recorder.register} has {recorder.count} steps; @ plays it"
        self.notify(said, timeout=3.0, markup=False)
