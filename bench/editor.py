"""CPU time of a key in the source editor, as a ratio to Textual's own text area."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

from textual.app import ComposeResult
from textual.widgets import TextArea

from bench.runner.cases import Case, Effort, Group, Line, at_most
from probes.flow.hook import SOURCE
from widgets.editor import LANGUAGE, QUERY, CodeEditor
from widgets.terminal.compositor import DiffApp


class _Bed(DiffApp[None]):
    def __init__(self, area: TextArea) -> None:
        super().__init__()
        self.area = area

    def compose(self) -> ComposeResult:
        yield self.area


def source(lines: int) -> str:
    """Return the flow probe's C, repeated up to a number of lines."""
    text = SOURCE.read_text().splitlines()
    return "\n".join((text * (lines // len(text) + 1))[:lines])


def stock(text: str) -> TextArea:
    """Return Textual's own text area with the editor's grammar."""
    area = TextArea("", soft_wrap=False, tab_behavior="indent", show_line_numbers=True)
    area.register_language("c", LANGUAGE, QUERY)
    area.language = "c"
    area.load_text(text)
    return area


async def key(area: TextArea, keys: int) -> float:
    """Return the median CPU time of a key, in seconds."""
    async with _Bed(area).run_test(size=(120, 40)) as pilot:
        area.focus()
        area.move_cursor((area.document.line_count // 2, 0))
        await pilot.pause()
        times = []
        for _ in range(keys):
            before = time.process_time()
            await pilot.press("a")
            times.append(time.process_time() - before)
        return statistics.median(times)


def keys(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    count = effort.of(30, 2)
    line = Line("A key in the editor by lines", "probedeck", "lines")
    for lines in effort.of((400, 2000, 20_000), (50,)):
        text = source(lines)
        ours, theirs = (
            lambda make=make, text=text: asyncio.run(key(make(text), count)) * 1e3
            for make in (CodeEditor, stock)
        )
        yield Case(f"a key in the middle of a C source, {lines} lines", "ms of CPU", ours, theirs,
                   "Textual's text area", goal=at_most(1), line=line, size=lines)  # fmt: skip


GROUPS = (Group("keys", keys, 3, warm=False),)
