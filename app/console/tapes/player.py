"""Plays a tape on the console: one step after the other, each when the one before is done."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from textual import events
from textual.dom import DOMNode

from app.commands.export_target import DRAWN, suffix_of
from app.console.protocol import Console
from app.console.tables.export import encoded, svg, write
from app.tape.condition import EventPattern, found
from app.tape.model import StepError, Tape, TapeStep
from app.tape.named_state import StateValue
from app.tape.steps import Sleep, Wait
from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED
from probes.snapshot import Event
from widgets.terminal.compositor import DiffScreen

_LOOK = 0.025
"""Seconds between two checks of a condition."""
_PAINT = 0.2
"""Seconds to wait for a frame; on a slow link it may come later."""


class _StoppedError(Exception):
    """The user stopped the tape."""


class Player:
    """One run of a tape; in a worker of the app, as no key is handled while a handler waits."""

    def __init__(
        self, console: Console, tape: Tape, state_of: Callable[[str], StateValue], *,
        updates_golden: bool = False,
    ) -> None:  # fmt: skip
        """`state_of` returns the value of a named state."""
        self.tape = tape
        self.number = 0
        """Number of the step in hand, from 1; 0 before the first."""
        self.step: TapeStep | None = None
        """The step in hand."""
        self._console, self._app, self._state_of = console, console.app, state_of
        self.run_command = console.run_command
        self._sending: events.Key | None = None
        self._complaint: ProbedeckError | None = None
        self._stopping = False
        self.updates_golden = updates_golden
        self._skipped = 0
        """Steps to leave out after the one in hand."""
        self._reactions: list[tuple[EventPattern, Sequence[TapeStep]]] = []
        self._events: tuple[Event, ...] = ()
        """The events, newest first, that were compared with the reactions."""
        self._reacting = False

    def sent(self, event: events.Event) -> bool:
        """Whether this is the key that the tape presses."""
        return event is self._sending

    def complain(self, error: ProbedeckError) -> None:
        """Note an error of the step in hand."""
        self._complaint = self._complaint or error

    def stop(self) -> None:
        self._stopping = True

    async def play(self) -> str:
        """Play all steps; return the place where the user stopped, in words. Raises StepError."""
        try:
            await self._run(self.tape.steps)
        except _StoppedError:
            assert self.step is not None
            return f"was stopped in line {self.step.place.line}"
        return ""

    async def _run(self, steps: Sequence[TapeStep]) -> None:
        at = 0
        while at < len(steps):
            self.step, self._skipped = steps[at], 0
            if not self._reacting:
                self.number = at + 1
            if self._app.return_value is not None:
                self.fail("the console has ended before this")
            self._console.show_status()
            await self._do(steps[at])
            at += 1 + self._skipped
            await self._react()

    async def _react(self) -> None:
        """Play the steps of events since the last look."""
        events = self._console.time.present.events
        if self._reacting or not self._reactions or events is self._events:
            return
        known, self._events = self._events[:1], events
        new = list(takewhile(lambda event: not known or event is not known[0], events))
        before, self._reacting = self.step, True
        try:
            for pattern, steps in self._reactions:
                if any(map(pattern.matches, new)):
                    await self._run(steps)
        finally:
            self._reacting = False
        # A step that failed stays the step in hand.
        self.step, self._skipped = before, 0

    async def _do(self, step: TapeStep) -> None:
        try:
            await step.instruction.play(self)
            if self._app.return_value is not None:
                return  # The console ends.
            if step.instruction.settles:
                await self.idle(self.patience)
        except ProbedeckError as error:
            if isinstance(error, StepError):
                raise
            self.fail(str(error))
        self._look()

    # The stage of steps

    @property
    def patience(self) -> float:
        assert self.step is not None
        return self.step.patience

    async def press(self, key: str, character: str | None, pause: float) -> None:
        self._sending = events.Key(key, character)
        self._app.post_message(self._sending)
        await self._settle(focused=True)
        self._look()
        if pause:
            await self.sleep(pause)

    def picture(self, path: Path) -> None:
        if (suffix := suffix_of(path)) in DRAWN:
            drawn = encoded(svg(self._app), suffix)
        else:
            drawn = self.text.encode()
        write(path, [drawn])

    @property
    def _lines(self) -> list[str]:
        screen = self._app.screen
        return screen.text_lines if isinstance(screen, DiffScreen) else []

    @property
    def text(self) -> str:
        return "".join(f"{line.rstrip()}\n" for line in self._lines)

    def skip(self, steps: int) -> None:
        self._skipped = steps

    def react(self, pattern: EventPattern, steps: Sequence[TapeStep]) -> None:
        if not self._reactions:
            self._events = self._console.time.present.events
        self._reactions.append((pattern, steps))

    def state(self, name: str) -> StateValue:
        return self._state_of(name)

    def sees(self, pattern: re.Pattern[str], *, whole: bool) -> bool:
        lines = self._lines
        if not whole:
            cursor = getattr(self._app.screen.focused, "cursor_screen_offset", None)
            lines = lines[cursor.y : cursor.y + 1] if cursor is not None else []
        return found(pattern, "\n".join(lines))

    async def until(self, seconds: float, holds: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() >= deadline:
                return False
            await self.sleep(_LOOK)
        return True

    async def sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK))
            self._look()
            if self.step is not None and isinstance(self.step.instruction, Sleep | Wait):
                await self._react()

    async def idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            await self._settle()
            painted = asyncio.Event()
            if self._app.screen.call_after_refresh(painted.set):
                await _soon(painted.wait())
            if not self._console.tasks.busy:
                return
            left = deadline - time.monotonic()
            if not await self.until(left, lambda: not self._console.tasks.busy):
                self.fail(f"not done within {seconds:g} s")

    def fail(self, reason: str) -> NoReturn:
        assert self.step is not None
        raise StepError(self.step.place, f"{self.step.text}: {printable(reason, REPLACED)}")

    async def _settle(self, *, focused: bool = False) -> None:
        """Wait until all widgets have handled their messages, or only those that a key passes."""
        screen = self._app.screen
        nodes: list[DOMNode] = [self._app, *screen.walk_children(with_self=True)]
        if focused:
            nodes = [self._app, *(screen.focused or screen).ancestors_with_self]
        handled = [asyncio.Event() for _ in nodes]
        waited = [event for node, event in zip(nodes, handled, strict=True)
                  if node.call_later(event.set)]  # fmt: skip
        await _soon(asyncio.gather(*(event.wait() for event in waited)))

    def _look(self) -> None:
        if self._stopping:
            raise _StoppedError
        if self._complaint is not None:
            self.fail(str(self._complaint))


async def _soon(what: Awaitable[Any]) -> None:
    # A widget that is removed meanwhile handles nothing any more.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(what, _PAINT)
