"""Commands from keys, the palette, prompts, tapes and the API, and the methods that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar

from app.commands.keys import spoken
from app.commands.line import Invocation, parse
from app.commands.registry import REGISTRY
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, front_screen
from bpf.errors import ProbedeckError, UsageError
from widgets.terminal.compositor import DiffScreen

_PATIENCE_S = 30.0
"""Seconds that another thread waits for its command."""
_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)
"""The list for errors of the current task. Only a command of another thread has one; errors of keys
that the user presses meanwhile go elsewhere."""
Runner = Callable[..., object]
"""A method that runs a command; its arguments are the command's values."""


def runners(owners: Iterable[object]) -> dict[str, Runner]:
    """Return the methods `do_NAME` of some objects, by name."""
    return {
        name: getattr(owner, name)
        for owner in owners
        for name in dir(type(owner))
        if name.startswith("do_")
    }


class Dispatcher:
    """Runs the commands of screens, and of the other parts of the console."""

    def __init__(self, console: Console, runners: Mapping[str, Runner]) -> None:
        """`runners` has the method of each command that belongs to no screen."""
        self._console, self.runners = console, runners
        self._heard: list[str] | None = None
        """Errors of the command that runs for another thread."""

    def key_of(self, command: str) -> str:
        """Return the key of a command on its screen, as the user has it; `:NAME` if none."""
        screen = REGISTRY[command].screen or self._console.app.current_mode
        keys = self._console.keymap.keys(command, screen)
        return spoken(keys.partition(",")[0]) or f":{command}"

    def is_offered(self, lines: str) -> bool:
        """Whether the first of some command lines means anything on the screen in front."""
        name, screen = next(iter(lines.split()), ""), self._console.app.screen
        if lines == f"view.{self._console.app.current_mode}" or not self.has_screen(name):
            return False
        return not isinstance(screen, ConsoleScreen) or screen.offers(name)

    def has_screen(self, name: str) -> bool:
        """Whether the screen of a command is there: screen 7 needs a fleet."""
        of = REGISTRY[name].screen or name.removeprefix("view.") if name in REGISTRY else ""
        return of != "hosts" or self._console.has_fleet

    async def run_lines(self, lines: str) -> None:
        """Run lines of a command and its values, until one fails: show its error."""
        try:
            for line in lines.splitlines():
                await self._console.run_command(parse(line))
        except ProbedeckError as error:
            self._console.complain(error)

    async def run(self, asked: Invocation) -> None:
        """Run a command. Raises ProbedeckError; tasks go on afterwards and show their own errors.

        A command of a screen turns to it first.
        """
        command, app = asked.command, self._console.app
        if command.writes and (reason := self._console.plane.read_only):
            raise UsageError(f"{command.name} is refused: {reason}")
        if not self.has_screen(command.name):
            hint = "a console of several hosts: probedeck fleet hosts.toml"
            raise UsageError("there is no fleet here", hint=hint)
        if command.screen:
            front_screen(app)
            if app.current_mode != command.screen:
                await app.switch_mode(command.screen)
        # Keys may be faster than the screen to which the last key turned.
        first = app.screen_stack[0]
        if isinstance(first, DiffScreen):
            await first.made()
        if command.screen and not command.task:
            front_screen(app).do(asked)
        else:
            self.runners[command.method](*asked.values)

    def ask(self, asked: Invocation) -> Sequence[str]:
        """Run a command for another thread; return the errors that were shown meanwhile.

        Raises ProbedeckError. A command that has not begun in time is dropped: the caller may ask
        again.
        """
        answer: Future[Sequence[str]] = Future()
        app = self._console.app
        if not (app.is_running and app.call_later(self._answer, asked, answer)):
            raise ProbedeckError("the console does not answer", hint="it has ended")
        try:
            return answer.result(_PATIENCE_S)
        except TimeoutError:
            if answer.cancel():
                text = f"{asked.command.name} is not done: the console is busy"
                raise ProbedeckError(text, hint="try again") from None
            text = f"{asked.command.name} has begun and is not done after {_PATIENCE_S:g} s"
            raise ProbedeckError(text, hint="it goes on; look before you ask again") from None

    async def _answer(self, asked: Invocation, answer: Future[Sequence[str]]) -> None:
        if not answer.set_running_or_notify_cancel():
            return  # The caller no longer waits.
        heard = self._heard = []
        token = _HEARD.set(heard)
        try:
            await self._console.run_command(asked)
        except ProbedeckError as error:
            answer.set_exception(error)
        else:
            answer.set_result(tuple(heard))
        finally:
            self._heard = None
            _HEARD.reset(token)

    def hear(self, error: ProbedeckError) -> None:
        """Note an error that is shown, if it belongs to a command of another thread."""
        if (heard := _HEARD.get()) is not None and heard is self._heard:
            heard.append(str(error))
