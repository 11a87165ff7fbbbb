"""Screen 4 on a tall terminal."""

from __future__ import annotations

import pytest

from tests.app.console.screens.triggers.test_triggers import SAID, console, policies


@pytest.mark.slow
async def test_a_tall_screen_always_shows_the_detail_of_the_row_under_the_cursor() -> None:
    async with console(*policies()) as c:
        await c.play(SAID)
        assert "flood, active since" in c.below
        await c.press("j", "escape")
        assert "syn, armed since" in c.below
        await c.press("tab")
        assert "accounting" in c.below.splitlines()[1]
        await c.press("tab")
        assert c.app.screen.focused is c.app.screen.query_one("#top")
        assert "accounting" in c.below.splitlines()[1]
        await c.press("escape")
        assert "syn, armed since" in c.below
