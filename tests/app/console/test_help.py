"""Help on the focused widget, and the tour."""

from __future__ import annotations

import pytest

from app.console.tour import STEPS
from probes.monitor.policy import Policy
from tests.app.console.fake import desk, flow
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import monitor, policy
from widgets.table.table import VirtualTable


@pytest.mark.parametrize("mode", ["overview", "paths", "flows", "triggers", "programs", "events"])
async def test_each_column_on_a_screen_is_explained(mode: str) -> None:
    plane = FakePlane(config())
    plane.monitor_info = monitor(policy("books: always -> accounting"))
    async with desk(controller=plane) as console:
        if console.app.current_mode != mode:
            await console.app.switch_mode(mode)
        await console.still()
        for table in console.app.screen.query(VirtualTable):
            assert all(column.help for column in table.columns), table.id


async def test_f1_explains_the_columns_and_the_terms_of_a_filter() -> None:
    async with desk() as console:
        await console.feed(flow(1, 10))
        await console.press("f1")
        assert "Bits per second over the last window" in console.text
        await console.press("escape", "slash", "f1")
        assert "flow.filter [FILTER]" in console.text, "which is no markup"
        assert "Terms of a filter" in console.text
        assert "dport:80,443" in console.text


async def test_f1_explains_how_a_policy_is_written_by_what_the_language_takes() -> None:
    async with desk(80, 24) as console:
        await console.press("4", "a", "f1")
        assert "always, operator" in console.text
        assert "esc closes this" in console.text
    for condition in (
        "packets > 1000", "rate(bytes)>1Mbit/s", "flows > 5 * baseline(60s)", "always", "operator",
        "flows > 500 until flows < 100 hold 5s cooldown 10s",
    ):  # fmt: skip
        Policy.parse_short(f"a: {condition} -> accounting, dns, trace:3 on tcp port:443")


async def test_the_first_page_of_keys_has_what_one_looks_for() -> None:
    async with desk(80, 24) as console:
        await console.press("question_mark")
        for name in ("flow.filter", "view.pause", "view.columns", "view.copy", "view.export"):
            assert name in console.text
        await console.still()
        assert " more lines: j" in console.lines[-1]
        for _ in range(4):
            await console.press("j")
        assert "more lines" not in console.lines[-1]


@pytest.mark.parametrize(("width", "sides"), [(80, 0), (81, 2)])
@pytest.mark.parametrize("key", ["question_mark", "ctrl+p"])
async def test_a_box_that_is_as_wide_as_the_terminal_has_no_sides(
    width: int, sides: int, key: str
) -> None:
    async with desk(width, 24) as console:
        await console.press(key)
        await console.still()
        assert console.lines[4].count("│") == sides


async def test_what_is_said_in_the_corner_makes_room_for_what_is_said_next_and_for_a_prompt() -> (
    None
):
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("c")
        await console.app.action_command("view.copy sorce")
        await console.press("c", "c")
        assert [text.partition(";")[0] for text in console.complaints] == [
            "there is no 'sorce' to copy", "copied 1 row",
        ]  # fmt: skip
        covered = [line for line in console.lines if "copied" in line or "sorce" in line]
        assert len(covered) == 2
        await console.press("slash")
        assert not console.complaints


async def test_the_tour_goes_on_when_what_it_asks_for_is_done() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.app.run_action("command('help.tour')")
        await console.still()
        # The console is on flows already: the first step is done.
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
