"""Bytes that a switch of screens costs on a slow link, at 80x24."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import cast

import pytest
from rich.color import ColorSystem
from textual.geometry import Size

from tests.app.console.fake import Desk, desk
from tests.support.console.feed import Flows, window
from widgets.terminal.compositor import DiffScreen, DiffUpdate
from widgets.terminal.diff_writer import CellLine, DiffWriter
from widgets.terminal.terminal_state import TerminalState

SCREENS = "123456"
MOST = 2900
"""Bytes of a switch: the text of 20 flows, almost without colours."""
FIRST = 500
"""Bytes after which the status and the title or the table's header are there."""


def frame(console: Desk) -> dict[int, CellLine]:
    screen = cast("DiffScreen[object]", console.app.screen)
    update = screen._compositor.render_full_update()
    assert isinstance(update, DiffUpdate)
    return dict(update.lines)


def switch(old: dict[int, CellLine], new: dict[int, CellLine], room: int) -> tuple[str, set[int]]:
    """Return what a switch writes, and the lines that wait for room."""
    state = TerminalState()
    state.reset(Size(80, 24))
    state.lines = list(old.values())
    pen = DiffWriter(ColorSystem.EIGHT_BIT, 80, (0, 0), erases=True)
    state.draw(pen, new, room, near=20)
    pen.by_style()
    return pen.finished(), set(state.owed)


@pytest.mark.slow
async def test_a_switch_of_screens_takes_few_bytes_and_begins_with_the_title() -> None:
    async with desk(80, 24, view="conversations") as console:
        flows = Flows(1000)
        for number in range(1, 30):
            rows = flows.next(number * 10**9)
            console.controller.publish(window(rows, number, end_ns=number * 10**9))
        terminal = console.app.terminal
        terminal.change(replace(terminal.ui, low_bandwidth=True))
        frames = {}
        for key in SCREENS:
            await console.press(key)
            frames[key] = frame(console)
    for old, new in permutations(SCREENS, 2):
        text, waiting = switch(frames[old], frames[new], 1 << 20)
        assert not waiting
        assert len(text.encode()) <= MOST, (old, new)
        assert "─" not in text
        text, waiting = switch(frames[old], frames[new], FIRST)
        assert not waiting & {0, 1}, (old, new)
