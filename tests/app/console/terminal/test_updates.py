"""How often the screen is brought up to date."""

from __future__ import annotations

import asyncio

import pytest

from tests.app.console.fake import desk, flow

pytestmark = pytest.mark.timing


async def test_what_comes_within_a_moment_is_shown_together_and_the_last_of_it_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.console.terminal.console_terminal.SHORTEST_INTERVAL", 0.3)
    async with desk() as console:
        await console.feed(flow(1, 10))
        updates = 0
        refresh = console.app.refresh_view

        def counted() -> None:
            nonlocal updates
            updates += 1
            refresh()

        monkeypatch.setattr(console.app, "refresh_view", counted)
        for number in range(2, 12):
            await console.feed(*(flow(one, 10) for one in range(number)))
            await asyncio.sleep(0.01)
        assert updates <= 2
        await asyncio.sleep(0.4)
        await console.still()
        assert updates <= 3
        assert "11 flows" in console.strip
