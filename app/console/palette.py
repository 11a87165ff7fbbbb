"""`ctrl+p`: every command that can be used here, one a line, with its key and its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from app.commands import REGISTRY, Command
from app.commands.keys import spoken

_TITLE_CELLS = 46
_KEYS_CELLS = 8


class CommandProvider(Provider):
    """The registry, for the palette."""

    async def discover(self) -> Hits:
        for entry in self._usable():
            yield DiscoveryHit(_line(entry), self._runner(entry.name), text=entry.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._usable():
            score = max(matcher.match(entry.title), matcher.match(entry.name))
            if score > 0:
                yield Hit(score, _line(entry), self._runner(entry.name), text=entry.title)

    def _usable(self) -> list[Command]:
        """This screen's own first."""
        own, everywhere = (
            [entry for entry in REGISTRY.values() if entry.screen == screen]
            for screen in (self.app.current_mode, "")
        )
        return [*own, *everywhere]

    def _runner(self, name: str) -> Callable[[], Awaitable[None]]:
        return partial(self.app.run_action, f"command('{name}')")  # type: ignore[return-value]


class Palette(CommandPalette):
    """The palette over the registry."""

    CSS = """
    Palette > #--container { margin-top: 0; width: 76; max-width: 100%; }
    Palette SearchIcon { display: none; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="a command, by what it does or by its name")


def _line(entry: Command) -> Content:
    return Content.assemble(
        entry.title.ljust(_TITLE_CELLS),
        (spoken(entry.keys).ljust(_KEYS_CELLS), "$text-primary"),
        (entry.name, "$text-muted"),
    )
