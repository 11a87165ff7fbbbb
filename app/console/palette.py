"""`ctrl+p`: every command that can be used here, one a line, with its keys and how it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from app.commands import REGISTRY, Command
from app.commands.keys import spoken

if TYPE_CHECKING:
    from app.console.app import ConsoleApp

_TITLE_CELLS = 37
_KEYS_CELLS = 10


class CommandProvider(Provider):
    """The registry, for the palette."""

    async def discover(self) -> Hits:
        for entry in self._usable():
            yield DiscoveryHit(self._line(entry), self._runner(entry), text=entry.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._usable():
            score = max(matcher.match(entry.title), matcher.match(entry.name))
            if score > 0:
                yield Hit(score, self._line(entry), self._runner(entry), text=entry.title)

    @property
    def _console(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    def _usable(self) -> list[Command]:
        """This screen's own first, then those that are everywhere."""
        screens = (self.app.current_mode, "")
        entries = [entry for entry in REGISTRY.values() if entry.screen in screens]
        return sorted(entries, key=lambda entry: not entry.screen)

    def _runner(self, entry: Command) -> Callable[[], Awaitable[None]]:
        # What it needs is typed behind its name.
        needs = any(parameter.needed for parameter in entry.parameters)
        line = f"app.prompt {entry.name}" if needs else entry.name
        return partial(self._console.action_command, line)

    def _line(self, entry: Command) -> Content:
        keys = spoken(self._console.keymap.keys(entry.name, self.app.current_mode))
        return Content.assemble(
            entry.title.ljust(_TITLE_CELLS),
            (keys.ljust(_KEYS_CELLS - 1) + " ", "$text-primary"),
            (entry.usage, "$text-muted"),
        )


class Palette(CommandPalette):
    """The palette over the registry."""

    CSS = """
    Palette > #--container { margin-top: 0; width: 78; max-width: 100%; }
    Palette SearchIcon { display: none; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="a command, by what it does or by its name")
