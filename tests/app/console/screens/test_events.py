"""Screen 6: events, the whole text of one, and the way from one to its moment."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.console.screens.events.screen import EventsScreen, _traffic
from probes.flow.records import FLOW
from probes.snapshot import Event, Loss, LossReason
from probes.tables.conversion import TableKind, TableSchema
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_plane import FakePlane, config
from tests.support.console.feed import window

LONG = "it failed: " + " ".join(f"word{number}" for number in range(40))


async def say(console: Desk, source: str, text: str, *, ago: float = 0.0) -> None:
    utc_ns = time.time_ns() - round(ago * 1e9)
    console.controller.publish(Event(utc_ns, "warning", source, text))
    await console.still()


@pytest.mark.parametrize(
    ("source", "mode"),
    [("flow", "flows"), ("path", "paths"), ("monitor", "triggers"), ("eth0", "events")],
)
async def test_enter_turns_to_what_an_event_is_about(source: str, mode: str) -> None:
    async with desk() as console:
        await console.press("6")
        await console.feed(flow(1, 8))
        await say(console, source, "something happened")
        await console.feed(flow(1, 8), flow(2, 8))
        await console.feed(flow(1, 8), flow(2, 8), flow(3, 8))
        await console.press("enter")
        assert console.app.current_mode == mode
        assert "PAUSED " in console.strip
        assert "event of " in console.strip
        await console.press("3")
        # The first window that ended after it.
        assert sorted(console.sources) == [1, 2]
        await console.press("escape")
        assert "LIVE" in console.strip
        assert "event of" not in console.strip
        assert sorted(console.sources) == [1, 2, 3]


@pytest.mark.slow
async def test_events_of_a_users_program_lead_to_programs() -> None:
    async with desk(controller=FakePlane(config("hello"))) as console:
        await console.press("6")
        schema = TableSchema(TableKind.HASH)
        made = replace(window(flow(1, 8)), probe="hello", metric="senders", schema=schema)
        console.controller.publish(made)
        await say(console, "hello", "it was swapped")
        await console.press("enter")
        assert console.app.current_mode == "programs"
        assert "PAUSED " in console.strip
        await console.press("escape")
        assert "LIVE" in console.strip


async def test_what_came_after_the_moment_is_not_shown() -> None:
    async with desk() as console:
        await console.press("6")
        await console.feed(flow(1, 8), losses={LossReason.TABLE_FULL: Loss(5, 300)})
        await console.feed(flow(1, 8))
        await say(console, "eth0", "later")
        assert "later" in console.text
        await console.press("j", "enter", "6")
        assert "lost in window 1" in console.text
        assert "later" not in console.text
        await say(console, "eth0", "much later")
        assert "later" not in console.text
        await console.press("escape")
        assert "much later" in console.text


async def test_an_event_before_all_that_is_kept_is_refused() -> None:
    async with desk() as console:
        await console.press("6")
        await say(console, "flow", "early", ago=3600)
        await console.press("enter")
        assert "there was no window yet" in console.complaints[-1]
        console.controller.publish(window(flow(1, 8)[:0].astype(FLOW)))
        await console.still()
        await console.press("enter")
        assert "nothing is kept of " in console.complaints[-1]
        assert "kept since " in console.complaints[-1]
        assert console.app.current_mode == "events"
        assert "LIVE" in console.strip


async def test_the_whole_of_a_long_text_is_shown_below() -> None:
    async with desk(80, 24) as console:
        await console.press("6")
        await say(console, "flow", LONG)
        await say(console, "flow", "first line\nsecond \x1b[31m line")
        await console.press("d")
        assert whole(console) == [" Event     first line?second ?[31m line"]
        await console.press("j")
        assert "word39" in whole(console)[-1]
        assert max(map(len, whole(console))) <= 80
        await console.press("escape")
        assert whole(console) == []


def whole(console: Desk) -> list[str]:
    return [line.rstrip() for line in part(console, "#text")]


def part(console: Desk, widget: str) -> list[str]:
    """Return the lines of a widget of the screen."""
    region = console.app.screen.query_one(widget).region
    lines = console.lines[region.y : region.bottom]
    return [line[region.x : region.right] for line in lines]


def story(text: str, phase: str = "", value: float | None = None, *, ago: float = 0.0) -> Event:
    at, severity = time.time_ns() - round(ago * 1e9), "warning" if phase == "begin" else "info"
    return Event(at, severity, "monitor", text, "policy burst", phase, value, "kbit/s")


async def tell(console: Desk, *events: Event) -> None:
    for event in events:
        console.controller.publish(event)
    await console.still()


async def test_repeats_are_one_row_that_opens_and_its_events_lead_to_their_moments() -> None:
    async with desk() as console:
        await console.press("6")
        await console.feed(flow(1, 8))
        await tell(
            console,
            story("burst fired: 1564", "begin", 1564.0, ago=0.03),
            story("burst ended", "end", ago=0.02),
            story("burst fired: 2187", "begin", 2187.0, ago=0.01),
            Event.now("info", "eth0", "other"),
        )
        await console.feed(flow(2, 8))
        (row,) = (line for line in console.lines if "fired" in line)
        assert "▸ 2" in row
        assert row.split("fired: 2187")[1].split() == ["goes", "on", "1564..2187", "kbit/s"]
        await console.press("j", "enter")
        rows = [line for line in part(console, "#events") if "burst" in line]
        assert ["▾ 2" in line for line in rows] == [True, False, False, False]
        assert "LIVE" in console.strip
        await console.press("j", "j", "enter")
        assert (console.app.current_mode, "PAUSED " in console.strip) == ("triggers", True)
        await console.press("6")
        assert "[ Back ] On { -1 min } +1 min" in console.lines[-1]
        await console.press("escape")
        assert "Back" not in console.lines[-1]
        await console.press("g", "j", "enter")
        assert len([line for line in part(console, "#events") if "burst" in line]) == 1


async def test_a_filter_passes_whole_groups() -> None:
    async with desk() as console:
        await console.press("6")
        events = story("burst fired", "begin", 1.0), story("burst ended", "end")
        await tell(console, *events, Event.now("info", "eth0", "other"))
        await console.app.action_command("event.filter severity:warning")
        assert "burst ended" in console.text  # the group goes on being over
        assert "other" not in console.text
        assert "1 of 2 groups" in console.strip


async def test_marks_dim_and_hide_groups_and_a_layout_keeps_them(tmp_path: Path) -> None:
    async with desk() as console:
        await console.press("6")
        begin = story("burst fired", "begin", 1.0, ago=1.0)
        await tell(console, begin, Event.now("info", "eth0", "noise"))
        await console.press("m")
        assert "noise" not in console.text
        assert "muted (H) 1" in console.strip
        await console.press("A")
        assert "✓ burst fired" in console.text
        kept = console.app.event_marks.keep()
        await tell(console, story("burst ended", "end", ago=0.5))
        assert "✓ burst ended" in console.text
        await tell(console, story("burst fired", "begin", 2.0))
        assert "✓" not in console.text
        await console.press("H")
        assert "muted: noise" in console.text
        events = console.app.time.frame.events
        left = console.app.event_marks.unmuted(events)
        assert [e.text for e in events if e not in left] == ["noise"]
        assert console.app.event_marks.unmuted(events) is left
        await console.press("1")
        assert any("burst fired" in line for line in console.lines)
        assert not any("noise" in line for line in console.lines)
        await console.press("6", "m")
        assert console.app.event_marks.unmuted(events) is not left
        await console.press("m")
        console.app.event_marks.restore({"muted": "nonsense"})
        await console.press("g", "H")
        assert "noise" not in console.text
        await console.app.action_command("layout.save marks")
        console.app.event_marks.restore({"muted": "[]"})
        await console.app.action_command("layout.load marks")
        await console.still()
        assert console.app.event_marks.keep() == kept
        assert "noise" not in console.text


async def test_the_ribbon_marks_the_times_of_the_row_under_the_cursor() -> None:
    async with desk() as console:
        await console.press("6")
        await console.feed(flow(1, 8))
        await tell(
            console,
            Event(time.time_ns() - 60 * 10**9, "error", "flow", "bad"),
            Event(time.time_ns() - 30 * 10**9, "warning", "path", "worse"),
            Event.now("info", "eth0", "good"),
        )
        shown = console.lines[1].strip("· ")
        assert shown.endswith("1 s a cell")
        assert [c for c in shown if c in "▁▄▇◆"] == ["▇", "▄", "◆"]
        await console.press("j", "j")
        assert [c for c in console.lines[1] if c in "▁▄▇◆"] == ["◆", "▄", "▁"]


async def test_a_tall_screen_shows_times_and_traffic_of_the_row_under_the_cursor() -> None:
    async with desk() as console:
        await console.press("6")
        await console.feed(flow(1, 8), flow(2, 400))
        begin, end = story("burst fired: 1564", "begin", 1564.0), story("burst held", "end")
        begin = replace(begin, utc_ns=console.app.time.frame.utc_ns - 2)
        # The burst is over, and its flow too.
        await console.feed(flow(1, 8))
        await tell(console, begin, replace(end, utc_ns=console.app.time.frame.utc_ns - 1))
        told = whole(console)
        assert told[:2] == [" Event     burst held", " Began     burst fired: 1564"]
        (at,) = (n for n, line in enumerate(told) if line.startswith(" Then "))
        assert "of 2 flows as it began, the fastest:" in told[at]
        assert told[at + 1].split("tcp")[1] == " 10.0.0.2:40002 -> 192.0.2.1:443"
        newest, oldest = (line.split()[1:] for line in part(console, "#times")[:2])
        assert (newest, oldest) == (["end"], ["begin", "1564", "kbit/s"])
        # Of an old moment there may be a much later frame only.
        frame, old = console.app.time.frame, console.app.time.frame.utc_ns - 9 * 10**9
        for phase, moment in (("begin", "it began"), ("end", "it ended"), ("", "it")):
            _, shown, _ = next(_traffic(frame, replace(begin, phase=phase, utc_ns=old)))
            assert shown.endswith(f"of 1 flow, 9.0 s after {moment}, the fastest:")
        _, shown, _ = next(_traffic(frame, replace(end, utc_ns=frame.utc_ns - 1)))
        assert shown.endswith("of 1 flow as it ended, the fastest:")
        await console.press("escape")
        assert whole(console)
        await console.press("d")
        assert whole(console) == []
        screen = console.app.screen
        assert isinstance(screen, EventsScreen)
        kept = screen.keep()
        await console.press("d")
        assert whole(console) == told
        screen.restore(kept)
        console.app.refresh_view()
        await console.still()
        assert whole(console) == []
