"""Help on what has the focus, and the tour."""

from __future__ import annotations

import pytest

from app.console import glossary
from app.console.tour import STEPS
from tests.app.console.fake import desk, flow
from widgets.table import VirtualTable


@pytest.mark.parametrize("mode", ["overview", "paths", "flows", "triggers", "programs", "events"])
async def test_each_column_on_a_screen_is_explained(mode: str) -> None:
    async with desk() as console:
        if console.app.current_mode != mode:
            await console.app.switch_mode(mode)
        await console.still()
        for table in console.app.screen.query(VirtualTable):
            known = glossary.COLUMNS.get(table.id or "", {})
            assert {column.id for column in table.columns} <= set(known), table.id


async def test_f1_explains_the_columns_and_the_terms_of_a_filter() -> None:
    async with desk() as console:
        await console.feed(flow(1, 10))
        await console.press("f1")
        assert "Bits per second over the last window" in console.text
        await console.press("escape", "slash", "f1")
        assert "Terms of a filter" in console.text
        assert "dport:80,443" in console.text


async def test_the_tour_goes_on_when_what_it_asks_for_is_done() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.app.run_action("command('help.tour')")
        await console.still()
        # The console is on flows already, which is what the first step asks for.
        assert f"Tour 2/{len(STEPS)}" in console.text
        await console.press("slash")
        await console.type("tcp")
        await console.press("enter")
        await console.feed(flow(1, 10))
        assert f"Tour 3/{len(STEPS)}" in console.text
        assert console.lines[-1].strip(), "the footer is still there"
        for number in range(4, len(STEPS) + 1):
            await console.press("ctrl+n")
            assert f"Tour {number}/{len(STEPS)}" in console.text
        await console.press("ctrl+n")
        assert "Tour" not in console.text


async def test_a_console_without_a_tour_has_none_of_its_keys() -> None:
    async with desk() as console:
        await console.press("ctrl+n")
        assert "Tour" not in console.text
        assert not console.complaints
