"""An operator at the paths screen, and the network that is traced."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.console.screens.paths.columns import HOPS
from app.console.screens.paths.detail import PathDetail
from bpf.arrays import Array
from probes.path.options import TracedFlow
from probes.path.traced import Traced
from tests.app.console.fake import Desk, desk
from tests.app.console.fake_paths import SECOND_NS, FakePath, table
from tests.app.console.fake_plane import FakePlane
from widgets.table.table import VirtualTable
from widgets.tones import Tone

UDP = TracedFlow(17, 5004, 9000)


class Tracer:
    """An operator at screen 2, and the network that is traced."""

    def __init__(self, desk: Desk, plane: FakePlane) -> None:
        self.desk, self.plane = desk, plane
        self.now_ns = time.monotonic_ns() // SECOND_NS // 2 * 2 * SECOND_NS

    async def play(self, *paths: FakePath, seconds: int = 1) -> None:
        """Publish the windows of so many seconds; then wait until the screen shows them."""
        for _ in range(seconds):
            end = self.now_ns + SECOND_NS - 1
            for path in paths:
                self.plane.publish(table(path.second(self.now_ns), end))
                self.plane.publish(table(path.summaries(self.now_ns), end))
            self.now_ns += SECOND_NS
        await self.still()

    async def still(self) -> None:
        await self.desk.still()

    async def find_out(self, rows: Array) -> None:
        self.plane.publish(table(rows, self.now_ns - 1))
        await self.still()

    def traced(self, path: FakePath, length: int = 0) -> None:
        self.plane.paths[path.destination] = Traced(
            path.destination, (), length, (), (), packets=0, sent=0, matched=0
        )

    @property
    def hops(self) -> VirtualTable:
        return self.desk.app.screen.query_one("#hops", VirtualTable)

    @property
    def listing(self) -> VirtualTable:
        return self.desk.app.screen.query_one("#paths", VirtualTable)

    @property
    def detail(self) -> str:
        region = self.desk.app.screen.query_one(PathDetail).region
        return "\n".join(self.desk.lines[region.y : region.bottom])

    def row(self, number: int | str) -> list[str]:
        """The words of a hop's row on the screen, up to its time line."""
        lines = (line.split() for line in self.desk.lines)
        return next(line for line in lines if line[:1] == [str(number)])

    def cells(self, number: int) -> dict[str, str]:
        """The cells of a row of the hops, counted from 1, by column."""
        found = self.hops.source.cells(number - 1)
        texts = ("".join(text for text, _ in cell) if isinstance(cell, tuple) else str(cell)
                 for cell in found)  # fmt: skip
        return dict(zip(HOPS.names, texts, strict=True))

    def line(self, number: int) -> str:
        """A hop's time line."""
        pieces = self.hops.source.cells(number - 1)[-1]
        assert not isinstance(pieces, str)
        return "".join(text for text, _ in pieces)

    def tones(self, number: int) -> set[Tone]:
        pieces = self.hops.source.cells(number - 1)[-1]
        assert not isinstance(pieces, str)
        return {tone for text, tone in pieces if text.strip()}


@asynccontextmanager
async def tracer(
    *paths: FakePath, width: int = 120, height: int = 40, length: int = 6, seconds: int = 10
) -> AsyncIterator[Tracer]:
    plane = FakePlane()
    async with desk(width, height, plane) as console:
        shown = Tracer(console, plane)
        for path in paths:
            shown.traced(path, length)
        await shown.play(*paths, seconds=seconds)
        await console.press("2")
        await shown.still()
        yield shown
