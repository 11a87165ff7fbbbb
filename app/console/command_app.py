"""How the console does what it is asked to: by keys, the palette, prompts, tapes and the API."""

from __future__ import annotations

import asyncio
from inspect import isawaitable

from textual import events, work
from textual.app import App
from textual.screen import ModalScreen

from app.commands import Invocation, parse
from app.commands.keymap import Keymap
from app.commands.keys import CHARACTERS
from app.console.commands import bindings
from app.console.screens.base import DeckScreen
from bpf.errors import DeckError, UsageError
from widgets.table import VirtualTable


class CommandApp(App[int]):
    """An app that does commands, whoever asks: a key, the palette, a prompt, a tape, the API."""

    keymap: Keymap
    pending = 0
    """What was asked for, and is done by threads."""

    @property
    def read_only(self) -> str:
        """Why nothing may be changed; empty where it may."""
        raise NotImplementedError

    def complain(self, error: DeckError) -> None:
        """Show it."""
        raise NotImplementedError

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def take_keys(self, keymap: Keymap) -> None:
        """Go by these keys; screens take them up when they are made."""
        self.keymap = keymap
        self._bindings = bindings(keymap)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a command has a meaning on the screen in front."""
        if action != "command" or not parameters:
            return super().check_action(action, parameters)
        name = str(parameters[0]).partition(" ")[0]
        if parameters == (f"view.{self.current_mode}",) or not self.offers(name):
            return False
        return not isinstance(self.screen, DeckScreen) or self.screen.offers(name)

    async def action_command(self, *lines: str) -> None:
        """Do what lines of a command and its values say, until one fails: that is shown."""
        try:
            for line in lines:
                await self._do(line)
        except DeckError as error:
            self.complain(error)

    async def _do(self, line: str) -> None:
        if line.startswith("@"):
            if isawaitable(playing := self.play(line[1:])):
                await playing
        else:
            await self.perform(parse(line))

    async def perform(self, asked: Invocation) -> None:
        """Have a command done by its screen, which is turned to, or by the app. Raises DeckError.

        What takes its time goes on in a worker afterwards, and complains by itself.
        """
        command = asked.command
        if command.writes and self.read_only:
            raise UsageError(f"{command.name} is refused: {self.read_only}")
        if command.screen:
            self.deck_screen()
            if self.current_mode != command.screen:
                await self.switch_mode(command.screen)
        owner = self.deck_screen() if command.screen else self
        getattr(owner, command.method)(*asked.values)

    def deck_screen(self) -> DeckScreen:
        """The full screen in front; what is open over it is closed."""
        while isinstance(self.screen, ModalScreen):
            self.pop_screen()
        screen = self.screen
        assert isinstance(screen, DeckScreen)
        return screen

    @work(exclusive=True, group="keys")
    async def action_press(self, *keys: str) -> None:
        """Press keys one after the other, each when what the one before came to is done."""
        for key in keys:
            character = CHARACTERS.get(key, key if len(key) == 1 else None)
            self.post_message(events.Key(key, character))
            await self._settle()

    async def _settle(self) -> None:
        focused = self.screen.focused or self.screen
        # The way of a key: to the focused widget, and up to the app.
        for node in (self, *focused.ancestors_with_self):
            handled = asyncio.Event()
            if node.call_later(handled.set):
                await handled.wait()

    def do_app_prompt(self, text: str = "") -> None:
        self.deck_screen().prompt.ask("", ":", "a command; tab completes it", text)

    def _table(self) -> VirtualTable:
        """The one that has the focus, or else the first. UsageError where there is none."""
        screen = self.deck_screen()
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
        self.deck_screen().focus_next()

    def do_pane_previous(self) -> None:
        self.deck_screen().focus_previous()
