"""Numbers before keys, and numbers of rows in the prompt."""

from __future__ import annotations

import pytest

from tests.app.console.fake import Desk, desk, flow


async def _feed(console: Desk) -> None:
    await console.feed(*(flow(number, 100 - number) for number in range(1, 60)))


async def test_a_number_belongs_to_the_next_key() -> None:
    async with desk(80, 24) as console:
        await _feed(console)
        for keys, number in (
            ("'5j", 6), ("'3k", 3), ("'10G", 10), ("'7g", 7), ("j", 8), ("'j", 9), ("G", 59),
        ):  # fmt: skip
            await console.press(*keys.replace("'", "'"))
            assert console.under_cursor == f"10.0.0.{number}:{40000 + number}", keys
        await console.press("'", "1", "2")
        await console.still()
        assert "number 12_" in console.strip
        await console.press("escape", "j")
        assert "number" not in console.strip
        await console.press("k", "2")
        assert console.app.current_mode == "paths", "digits alone turn to the screens"


async def test_a_number_before_another_key_is_refused_and_the_key_does_nothing() -> None:
    async with desk(80, 24) as console:
        await _feed(console)
        await console.press("'", "5", "space")
        assert "takes no number 5" in console.complaints[-1]
        assert not console.app.time.paused
        await console.press("'", "3", "x", "j")
        assert console.under_cursor == "10.0.0.2:40002"


async def test_numbers_are_recorded_as_values_of_the_commands() -> None:
    async with desk(80, 24) as console:
        await _feed(console)
        await console.press("Q", "'", "1", "2", "j", "j")
        recorder = console.app.tapes._recorder
        assert recorder is not None
        assert recorder.text().splitlines()[1:] == ["Action table.down 12", "Action table.down"]


@pytest.mark.parametrize(("line", "number"), [("10", 10), ("+4", 5), ("table.last 3", 3)])
async def test_a_line_goes_to_a_row(line: str, number: int) -> None:
    async with desk(80, 24) as console:
        await _feed(console)
        await console.app.action_command(line)
        assert console.under_cursor == f"10.0.0.{number}:{40000 + number}"
