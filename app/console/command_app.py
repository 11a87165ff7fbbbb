"""How the console does what it is asked to: by keys, the palette, prompts, tapes and the API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import ContextVar

from textual import events, on, work
from textual.app import App
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget

from app.commands import REGISTRY, Invocation, parse
from app.commands.keys import CHARACTERS, spoken
from app.config.keymap import Keymap
from app.console.bindings import bindings
from app.console.screen import ConsoleScreen
from bpf.errors import ProbedeckError, UsageError
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffScreen

_PATIENCE_S = 30.0
"""How long another thread waits for its command."""
_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)
"""The list to which the current task adds its complaints. Set for a command of another thread;
keys that the user presses meanwhile complain elsewhere."""


class CommandRequested(Message):
    """Another thread asks for a command."""

    def __init__(self, asked: Invocation) -> None:
        super().__init__()
        self.asked = asked
        self.answer: Future[Sequence[str]] = Future()


class CommandApp(App[int]):
    """An app that does commands, whoever asks: a key, the palette, a prompt, a tape, the API."""

    keymap: Keymap
    pending = 0
    """What was asked for, and is done by threads."""

    _answer: list[str] | None = None
    """Complaints about the command that is done for another thread now."""

    @property
    def read_only(self) -> str:
        """Why nothing may be changed; empty where it may."""
        raise NotImplementedError

    def complain(self, error: ProbedeckError) -> None:
        """Show it."""
        if (heard := _HEARD.get()) is not None and heard is self._answer:
            heard.append(str(error))

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def key_of(self, command: str) -> str:
        """The key that does a command on its screen, as the user has it; `:NAME` if none does."""
        screen = REGISTRY[command].screen or self.current_mode
        return spoken(self.keymap.keys(command, screen).partition(",")[0]) or f":{command}"

    def take_keys(self, keymap: Keymap) -> None:
        """Go by these keys; screens take them up when they are made."""
        self.keymap = keymap
        self._bindings = bindings(keymap)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a command has a meaning on the screen in front."""
        if action != "command" or not parameters:
            return super().check_action(action, parameters)
        name = next(iter(str(parameters[0]).split()), "")
        if parameters == (f"view.{self.current_mode}",) or not self.offers(name):
            return False
        return not isinstance(self.screen, ConsoleScreen) or self.screen.offers(name)

    async def action_command(self, lines: str) -> None:
        """Do what lines of a command and its values say, until one fails: that is shown."""
        try:
            for line in lines.splitlines():
                await self.run_command(parse(line))
        except ProbedeckError as error:
            self.complain(error)

    def ask(self, asked: Invocation) -> Sequence[str]:
        """Have a command done. Returns the complaints until then. For other threads.

        Raises ProbedeckError. A command that the console does not begin in time is dropped:
        the caller may ask again.
        """
        message = CommandRequested(asked)
        if not (self.is_running and self.post_message(message)):
            raise ProbedeckError("the console does not answer", hint="it has ended")
        try:
            return message.answer.result(_PATIENCE_S)
        except TimeoutError:
            if message.answer.cancel():
                text = f"{asked.command.name} is not done: the console is busy"
                raise ProbedeckError(text, hint="try again") from None
            text = f"{asked.command.name} has begun and is not done after {_PATIENCE_S:g} s"
            raise ProbedeckError(text, hint="it goes on; look before you ask again") from None

    @on(CommandRequested)
    async def _asked(self, message: CommandRequested) -> None:
        if not message.answer.set_running_or_notify_cancel():
            return  # The caller waits no longer.
        heard = self._answer = []
        token = _HEARD.set(heard)
        try:
            await self.run_command(message.asked)
        except ProbedeckError as error:
            message.answer.set_exception(error)
        else:
            message.answer.set_result(tuple(heard))
        finally:
            self._answer = None
            _HEARD.reset(token)

    async def run_command(self, asked: Invocation) -> None:
        """Turn to the screen of a command and run it there, or in the app. Raises ProbedeckError.

        What takes its time goes on in a worker afterwards, and complains by itself.
        """
        command = asked.command
        if command.writes and self.read_only:
            raise UsageError(f"{command.name} is refused: {self.read_only}")
        if command.screen:
            self.front_screen()
            if self.current_mode != command.screen:
                await self.switch_mode(command.screen)
        # Keys may be faster than the screen that the last one turned to.
        first = self.screen_stack[0]
        if isinstance(first, DiffScreen):
            await first.made()
        if command.screen:
            self.front_screen().do(asked)
        else:
            getattr(self, command.method)(*asked.values)

    def front_screen(self) -> ConsoleScreen:
        """The full screen in front; what is open over it is closed."""
        while isinstance(self.screen, ModalScreen):
            self.pop_screen()
        screen = self.screen
        assert isinstance(screen, ConsoleScreen)
        return screen

    @work(exclusive=True, group="keys")
    async def action_press(self, keys: str) -> None:
        """Press keys, by comma, one after the other: each when what the last came to is done."""
        for key in keys.split(","):
            character = CHARACTERS.get(key, key if len(key) == 1 else None)
            self.post_message(events.Key(key, character))
            await self.settle()

    async def settle(self) -> None:
        """Have a key handled on its way: by what has the focus, up to the app; and so what that
        leads to, which may have the focus then."""
        done: Widget | None = None
        while (focused := self.screen.focused or self.screen) is not done:
            done = focused
            for node in (self, *focused.ancestors_with_self):
                handled = asyncio.Event()
                if node.call_later(handled.set):
                    await handled.wait()

    def do_app_prompt(self, text: str = "") -> None:
        if text in REGISTRY and REGISTRY[text].parameters:
            text += " "
        self.front_screen().prompt.ask("", ":", "a command; tab completes it", text)

    def _table(self) -> VirtualTable:
        """The one that has the focus, or else the first. UsageError where there is none."""
        screen = self.front_screen()
        if isinstance(screen.focused, VirtualTable):
            return screen.focused
        found = [table for table in screen.query(VirtualTable) if table.display]
        if not found:
            raise UsageError("there is no table here")
        return found[0]

    def do_table_down(self) -> None:
        self._table().action_move(1)

    def do_table_up(self) -> None:
        self._table().action_move(-1)

    def do_table_page_down(self) -> None:
        self._table().action_page(1)

    def do_table_page_up(self) -> None:
        self._table().action_page(-1)

    def do_table_first(self) -> None:
        self._table().action_first()

    def do_table_last(self) -> None:
        self._table().action_last()

    def do_table_top(self) -> None:
        self._table().action_top()

    def do_table_select(self) -> None:
        self._table().action_select()

    def do_pane_next(self) -> None:
        self.front_screen().focus_next()

    def do_pane_previous(self) -> None:
        self.front_screen().focus_previous()
