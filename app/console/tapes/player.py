"""Plays a tape on the console: one step after the other, each when the one before is done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual import events
from textual.app import App
from textual.dom import DOMNode

from app.commands.export_target import target
from app.commands.keys import NAMES
from app.console.protocol import Console
from app.console.tables.export import write
from app.files import make_directory
from app.tape.condition import StateCondition, shown
from app.tape.keys import character_of
from app.tape.model import (
    PATIENCE,
    Action,
    Expect,
    Export,
    Press,
    ScreenPattern,
    Screenshot,
    Sleep,
    StepError,
    Tape,
    TapeStep,
    Type,
    Wait,
)
from app.tape.named_state import StateValue
from app.tape.search import found
from bpf.errors import ProbedeckError
from widgets.format import REPLACED, safe
from widgets.terminal.compositor import DiffScreen

_LOOK = 0.025
"""Seconds between two looks at what is waited for."""
_PAINT = 0.2
"""Seconds that a frame is waited for; on a slow link it may come later."""


class _StoppedError(Exception):
    """The operator has enough of it."""


class Player:
    """One run of a tape; in a worker of the app, as no key is handled while a handler waits."""

    def __init__(self, console: Console, tape: Tape, state_of: Callable[[str], StateValue]) -> None:
        """`state_of` returns the value of a named state."""
        self.tape = tape
        self.number = 0
        """Of the step in hand, from 1; 0 before the first."""
        self.step: TapeStep | None = None
        """The step in hand."""
        self._console, self._app, self._state_of = console, console.app, state_of
        self._sending: events.Key | None = None
        self._complaint: ProbedeckError | None = None
        self._stopping = False

    def sent(self, event: events.Event) -> bool:
        """Whether this is the key that the tape presses."""
        return event is self._sending

    def complain(self, error: ProbedeckError) -> None:
        """What the step in hand led to did not work."""
        self._complaint = self._complaint or error

    def stop(self) -> None:
        """End it as soon as may be."""
        self._stopping = True

    async def play(self) -> str:
        """Play all of it; where it was stopped, in words. Raises StepError."""
        for number, step in enumerate(self.tape.steps, 1):
            self.number, self.step = number, step
            if self._ended:
                raise self._failure(step, "the console has ended before this")
            self._console.show_status()
            try:
                await self._do(step)
            except _StoppedError:
                return f"was stopped in line {step.place.line}"
        return ""

    @property
    def _ended(self) -> bool:
        """Whether the console is about to end, and does nothing more."""
        return self._app.return_value is not None

    async def _do(self, step: TapeStep) -> None:
        try:
            await self._done(step)
            if self._ended:
                return
            if not isinstance(step.instruction, Wait | Expect | Sleep):
                await self._idle(step)
        except ProbedeckError as error:
            if isinstance(error, StepError):
                raise
            raise self._failure(step, str(error)) from None
        self._look(step)

    async def _done(self, step: TapeStep) -> None:
        instruction = step.instruction
        if isinstance(instruction, Action):
            await self._console.run_command(instruction.asked)
        elif isinstance(instruction, Type):
            for character in instruction.text:
                key = NAMES.get(character, character)
                await self._press(step, key, character, instruction.pause or 0)
        elif isinstance(instruction, Press):
            for _ in range(instruction.count):
                await self._press(
                    step, instruction.key, character_of(instruction.key), instruction.pause or 0
                )
        elif isinstance(instruction, Sleep):
            await self._sleep(step, instruction.seconds)
        elif isinstance(instruction, Screenshot):
            self._picture(target(instruction.path))
        elif isinstance(instruction, Export):
            _make_room(target(instruction.path))
            await self._console.run_command(instruction.view)
            await self._idle(step)
            await self._console.run_command(instruction.command)
        elif isinstance(instruction, Expect):
            await self._expect(step, instruction.condition)
        else:
            await self._wait(step, instruction)

    async def _press(self, step: TapeStep, key: str, character: str | None, pause: float) -> None:
        self._sending = events.Key(key, character)
        self._app.post_message(self._sending)
        await self._settle(focused=True)
        self._look(step)
        if pause:
            await self._sleep(step, pause)

    def _picture(self, path: Path) -> None:
        """Write what the screen shows, as a picture or as text."""
        if path.suffix.lower() == ".svg":
            text = self._app.export_screenshot(title=f"probedeck: {self._app.current_mode}")
        else:
            text = "".join(f"{line.rstrip()}\n" for line in lines_of(self._app))
        _make_room(path)
        write(path, [text.encode()])

    # Waiting

    async def _expect(self, step: TapeStep, condition: StateCondition) -> None:
        if not await self._until(step, PATIENCE, lambda: self._holds(condition)):
            actual = shown(self._state_of(condition.state))
            raise self._failure(step, f"it is {actual}")

    async def _wait(self, step: TapeStep, instruction: Wait) -> None:
        seconds = step.patience if instruction.timeout is None else instruction.timeout
        until = instruction.until
        if until is None:
            await self._idle(step, seconds)
        elif isinstance(until, StateCondition):
            if not await self._until(step, seconds, lambda: self._holds(until)):
                actual = shown(self._state_of(until.state))
                raise self._failure(step, f"it is {actual} after {seconds:g} s")
        elif not await self._until(step, seconds, lambda: self._sees(until)):
            where = "on the screen" if until.whole else "in the line of the cursor"
            raise self._failure(step, f"not {where} within {seconds:g} s")

    def _holds(self, condition: StateCondition) -> bool:
        return condition.holds(self._state_of(condition.state))

    def _sees(self, seen: ScreenPattern) -> bool:
        lines = lines_of(self._app)
        if not seen.whole:
            at = cursor_line(self._app)
            lines = lines[at : at + 1] if at is not None else []
        return found(seen.pattern, "\n".join(lines))

    async def _until(self, step: TapeStep, seconds: float, holds: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() >= deadline:
                return False
            await self._sleep(step, _LOOK)
        return True

    async def _sleep(self, step: TapeStep, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK))
            self._look(step)

    async def _idle(self, step: TapeStep, seconds: float | None = None) -> None:
        """Wait until all that was asked for is done, and drawn."""
        seconds = step.patience if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while True:
            await self._settle()
            await self._painted()
            if not self._console.tasks.busy:
                return
            left = deadline - time.monotonic()
            if not await self._until(step, left, lambda: not self._console.tasks.busy):
                raise self._failure(step, f"not done within {seconds:g} s")

    async def _settle(self, *, focused: bool = False) -> None:
        """Have all that is shown, or what is on the way of a key, handle what it was told."""
        screen = self._app.screen
        nodes: list[DOMNode] = [self._app, *screen.walk_children(with_self=True)]
        if focused:
            nodes = [self._app, *(screen.focused or screen).ancestors_with_self]
        handled = [asyncio.Event() for _ in nodes]
        waited = [event for node, event in zip(nodes, handled, strict=True)
                  if node.call_later(event.set)]  # fmt: skip
        await _soon(asyncio.gather(*(event.wait() for event in waited)))

    async def _painted(self) -> None:
        painted = asyncio.Event()
        if self._app.screen.call_after_refresh(painted.set):
            await _soon(painted.wait())

    # What goes wrong

    def _look(self, step: TapeStep) -> None:
        """Raise what has come up meanwhile."""
        if self._stopping:
            raise _StoppedError
        if self._complaint is not None:
            raise self._failure(step, str(self._complaint))

    def _failure(self, step: TapeStep, reason: str) -> StepError:
        return StepError(step.place, f"{step.text}: {safe(reason, REPLACED)}")


async def _soon(what: Awaitable[Any]) -> None:
    # What is taken off the screen meanwhile handles nothing any more.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(what, _PAINT)


def lines_of(app: App[Any]) -> list[str]:
    """The lines of the screen, as text."""
    return app.screen.text_lines if isinstance(app.screen, DiffScreen) else []


def cursor_line(app: App[Any]) -> int | None:
    """The line of the screen with the cursor; None where nothing has one."""
    focused = app.screen.focused
    if focused is None:
        return None
    at = getattr(focused, "cursor_screen_offset", None)
    return at.y if at is not None else None


def _make_room(path: Path) -> None:
    """Make the directory of a file. Raises ProbedeckError."""
    try:
        make_directory(path.parent)
    except OSError as error:
        raise ProbedeckError(f"{path} cannot be written: {error.strerror}") from None
