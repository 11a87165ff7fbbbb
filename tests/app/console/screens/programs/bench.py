"""A console that shows the programs screen, over a plane without a kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.console.screens.programs.screen import ProgramsScreen
from tests.app.console.fake import Desk, desk
from tests.app.console.fake_plane import SOURCE, FakePlane, config
from widgets.editor import CodeEditor
from widgets.table.table import VirtualTable

REFUSED = SOURCE.replace("data + 34", "data + 14")
NASTY = "[/red] [bold]x[/] \x1b[31m \x9b31m \u202e 漢字 \udc80"


class Bench(Desk):
    """A desk with screen 5 in front."""

    plane: FakePlane

    @property
    def screen(self) -> ProgramsScreen:
        screen = self.app.screen
        assert isinstance(screen, ProgramsScreen)
        return screen

    @property
    def editor(self) -> CodeEditor:
        editor = self.screen.editor
        assert editor is not None
        return editor

    @property
    def title(self) -> str:
        """The line above the editor."""
        return self.lines[self.screen.query_one("#editing").region.y]

    @property
    def panel(self) -> str:
        region = self.screen.query_one("#panel", VirtualTable).region
        return "\n".join(self.lines[region.y : region.bottom])

    async def until_still(self) -> None:
        await self.pilot.pause()
        while self.app.workers:
            await self.app.workers.wait_for_complete()
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await super().press(key)
            await self.until_still()

    async def write(self, text: str) -> None:
        """Have other source in the editor, as typed."""
        self.editor.put(text)
        await self.pilot.pause()


@asynccontextmanager
async def bench(
    width: int = 120, height: int = 40, plane: FakePlane | None = None, row: int = 2
) -> AsyncIterator[Bench]:
    plane = plane or FakePlane(config("flow"), config("hello"), config("drop", egress=False))
    async with desk(width, height, plane) as console:
        at = Bench(console.app, plane, console.pilot)
        at.plane = plane
        await at.feed()
        await at.press("5")
        await at.press(*["j"] * row)
        yield at


def changes(plane: FakePlane) -> list[str]:
    """The plane's requests, without checks."""
    return [what for what, _ in plane.asked if what != "check"]
