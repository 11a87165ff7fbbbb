"""Keys that arrive together are handled as if each had waited for the one before."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.widgets import Input

from app.config.model import Settings
from tests.app.console.fake import Desk, becomes, desk, flow


@pytest.mark.slow
async def test_escape_and_the_key_after_it_may_arrive_together() -> None:
    own = Settings(keys={"": {"alt+6": "view.paths"}})
    async with desk(80, 24, settings=own, first="overview") as console:
        await console.press("question_mark")
        console.app.post_message(events.Key("alt+3", "3"))
        await console.press("question_mark")
        console.app.post_message(events.Key("alt+slash", "/"))
        await console.still()
        assert console.app.current_mode == "flows"
        console.app.post_message(events.Key("alt+3", "3"))
        await console.still()
        assert console.app.tapes.asking == ("flow.filter", "3")
        await console.press("escape")
        console.app.post_message(events.Key("alt+6", "6"))
        await console.still()
        assert console.app.current_mode == "paths"


async def _typed_blindly(console: Desk, text: str) -> None:
    names = {"\r": "enter", ":": "colon", ".": "full_stop", "\x10": "ctrl+p", "\x1b": "escape"}
    for character in text:
        console.app.post_message(events.Key(names.get(character, character), character))
    await console.still()


@pytest.mark.slow
async def test_what_is_typed_ahead_goes_where_the_keys_before_it_lead() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await _typed_blindly(console, "2Tcopy")
        assert console.app.current_mode == "paths"
        assert console.app.tapes.asking == ("path.trace", "copy")
        await _typed_blindly(console, "\x1b:flow.reverse\rS:qs")
        assert console.app.current_mode == "flows"
        assert console.app.tapes.asking == ("app.prompt", "qs")
        assert console.sources == [2, 1]
        await _typed_blindly(console, "\x1b\x10lay")
        assert console.app.screen.query_one(Input).value == "lay"


@pytest.mark.slow
async def test_no_key_passes_one_whose_prompt_opens_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(80, 24) as console:
        run_lines = console.app.commands.run_lines

        async def slowly(lines: str) -> None:
            await asyncio.sleep(0.7)
            await run_lines(lines)

        monkeypatch.setattr(console.app.commands, "run_lines", slowly)
        await _typed_blindly(console, "2Tcopy")
        await becomes(console, lambda: console.app.tapes.asking == ("path.trace", "copy"))
