"""Screen 1 as an operator sees it: what it says first, and where each part of it leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest
from textual.widget import Widget

from app.console.app import ConsoleApp
from app.console.screens.events.screen import EventsScreen
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.programs.model import Slot
from app.console.screens.programs.screen import ProgramsScreen
from app.console.screens.triggers.screen import TriggersScreen
from probes.config.model import ProbeConfig
from probes.control_plane import ControlPlane
from probes.monitor.state import PolicyState
from probes.snapshot import Event, Loss, LossReason
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_paths import LAB, FakePath, table
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from tests.app.console.screens.overview.traffic import FULL, SECOND_NS, some
from widgets.table.block import Block
from widgets.table.rows import Pieces
from widgets.tones import Tone


def screen(console: Desk) -> OverviewScreen:
    assert isinstance(console.app.screen, OverviewScreen)
    return console.app.screen


def line(console: Desk, begin: str) -> str:
    """The line that begins so, after the margin with the number of a key."""
    return next(line for line in console.lines if line[1:].startswith(begin))


async def trace(console: Desk, seconds: int = 10) -> None:
    """Probes of a path, until now."""
    path = FakePath(LAB)
    end = time.monotonic_ns()
    for ago in reversed(range(seconds)):
        rows = path.second(end - (ago + 1) * SECOND_NS)
        console.controller.publish(table(rows, end - ago * SECOND_NS))
    console.controller.publish(table(path.summaries(end), end))
    await console.still()


async def have_policies(console: Desk) -> None:
    """Four of them, and a window of each."""
    cast("FakePlane", console.controller).monitor_info = monitor(
        policy("off: operator -> dns", PolicyState.OFF),
        policy("near: flows > 500 -> half_open"),
        policy("busy: packets > 100 -> accounting", PolicyState.ACTIVE),
    )
    says = {"off": Said(state=PolicyState.OFF), "near": Said(400, 500), "busy": Said(120, 100)}
    for item in FakeMonitor().window(says):
        console.controller.publish(item)
    screen(console)._poll()
    await console.still()
    await console.still()


async def test_it_says_how_to_begin_and_then_what_passes() -> None:
    async with desk(80, 24, first="overview") as console:
        assert "STARTING" in console.strip
        assert "Waiting for packets" in console.text
        assert "No paths traced yet. Press Enter on a flow (3)" in console.text
        assert "No policies yet. Press 4, then a." in line(console, "Policies")
        assert "Traffic" not in console.text
        await console.feed(*some())
        await console.feed(*some())
        assert (
            line(console, "●")
            .strip()
            .startswith("● Nothing is wrong: 1 probe running, no packet lost")
        )
        assert "45.0 kbit/s" in line(console, "in ")
        assert "20.0 kbit/s" in line(console, "out ")
        # Each direction has its own scale.
        scales = [line(console, f"{way} ").split()[-2:] for way in ("in", "out")]
        assert scales == [["50.0", "kbit/s"], ["20.0", "kbit/s"]]
        assert set(tones(console, "traffic")) >= {Tone.IN, Tone.OUT}
        assert "TCP 75.0 %" in console.text
        assert "other 0 %" in console.text
        rows = [text.split()[1] for text in console.lines if ":4000" in text]
        assert rows == ["10.0.0.2:40002", "10.0.0.1:40001"]
        assert "2 Paths 3 Flows 4 Triggers 5 Programs 6 Events" in console.lines[-1]
        nasty = "[/red] \x1b[31m \u202e \udc80"
        console.controller.publish(Event.now("error", nasty, nasty))
        await console.still()
        assert "[/red] ?[31m" in console.text
        assert "\x1b" not in console.text
        assert console.lines[-1].rstrip().endswith("q Quit")


@pytest.mark.slow
async def test_each_block_leads_to_its_screen_and_its_row() -> None:
    async with desk(120, 40, first="overview") as console:
        await console.feed(*some())
        await trace(console)
        await have_policies(console)
        warned = Event.now("error", "hello", "it ended")
        console.controller.publish(warned)
        console.controller.publish(Event.now("info", "eth0", "xdp: native"))
        await console.still()

        for title in ("²Worst hops", "⁴Policies"):
            assert title in console.text

        async def opened(name: str, row: int) -> Widget:
            if console.app.current_mode != "overview":
                await console.press("1")
            block = screen(console).block(name)
            screen(console).set_focus(block)
            block.move_to(row)
            await console.press("enter")
            return console.app.screen

        flows = await opened("conversations", 1)
        assert isinstance(flows, FlowsScreen)
        assert "10.0.0.3" in str(console.app.tapes.state_of("flow.source"))
        hops = await opened("hops", 1)
        assert isinstance(hops, PathsScreen)
        assert hops.table.cursor_key == 3
        assert hops.listing.cursor_key == PathKey("10.94.6.2")
        triggers = await opened("policies", 1)
        assert isinstance(triggers, TriggersScreen)
        assert triggers.listing.cursor_key == "near"
        events = await opened("now", 0)
        assert isinstance(events, EventsScreen)
        assert events.table.cursor_key == (warned.source, warned.text)
        await opened("traffic", 0)
        assert console.app.current_mode == "flows"
        policies = await opened("now", 1)
        assert isinstance(policies, TriggersScreen)
        assert policies.listing.cursor_key == "busy"


async def test_the_cursor_goes_from_block_to_block_and_stays_at_the_ends() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some())

        async def at(*keys: str) -> tuple[str | None, int]:
            await console.press(*keys)
            focused = cast("Widget", screen(console).focused)
            return focused.id, focused.cursor_index if isinstance(focused, Block) else 0

        assert await at() == ("conversations", 0)
        assert await at("up") == ("traffic", 1)
        assert await at("k", "up") == ("now", 0)
        assert await at("up") == ("now", 0)
        assert await at("tab", "down", "j") == ("conversations", 0)
        assert await at("end") == ("conversations", 3)
        assert await at("down") == ("hosts", 0)
        # The blocks below the services, or here the hosts, have no rows.
        assert (await at("end", "down"))[0] == "hosts"


async def test_a_click_chooses_a_row_and_another_opens_it() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some())
        await have_policies(console)
        await console.pilot.click("#policies", offset=(5, 2))
        await console.still()
        assert cast("Widget", screen(console).focused).id == "policies"
        await console.pilot.click("#policies", offset=(5, 2), times=2)
        await console.still()
        triggers = console.app.screen
        assert isinstance(triggers, TriggersScreen)
        assert triggers.listing.cursor_key == "near"


async def test_a_flow_is_found_behind_a_filter() -> None:
    async with desk(80, 24) as console:
        await console.feed(*some())
        flows = console.app.screen
        assert isinstance(flows, FlowsScreen)
        flows.do_filter("udp")
        await console.press("1")
        await console.press("enter")
        await console.still()
        table = console.table
        assert any("10.0.0.2" in str(cell) for cell in table.source.cells(table.cursor_index))
        assert "udp" not in console.strip


async def test_what_is_lost_or_left_out_is_said_and_marked_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("MAX_NEW_FLOWS", "MAX_FLOWS"):
        monkeypatch.setattr(f"app.console.live.flows.{limit}", 3)
    async with desk(120, 40, first="overview") as console:
        await console.feed(*some())
        assert not any(tone is Tone.LOST for tone in tones(console, "traffic"))
        await console.feed(*some(), losses={**FULL, LossReason.NOT_IP: Loss(3)})
        assert "✕ Probe flow lost 7 packets in its last window: table full" in console.text
        assert "not ip" not in console.text
        assert any(tone is Tone.LOST for tone in tones(console, "traffic"))
        await console.feed(*some())
        assert "▲ 1 flow is too many to show" in console.text
        assert "packets lost in window 2: 7 table full" in line(console, "·")


def tones(console: Desk, name: str) -> list[Tone]:
    """The tones of a block's time lines."""
    source = screen(console).block(name).source
    at = [column.id for column in screen(console).block(name).columns].index("line")
    lines = (cast("Pieces", source.cells(row)[at]) for row in range(source.rows))
    return [tone for pieces in lines for _, tone in pieces]


def fails(plane: FakePlane) -> None:
    plane.fail("flow", "the interface went away")


def slows(plane: FakePlane) -> None:
    plane.late_by = 13


def goes(plane: FakePlane) -> None:
    del plane.running["flow"]


async def test_a_sentence_about_a_probe_leads_to_its_program() -> None:
    named: Callable[[str], ProbeConfig] = config
    async with desk(80, 24, FakePlane(named("flow"), named("path")), first="overview") as console:
        await trace(console, 1)
        object.__setattr__(console.app.time.frame.pulses.probes["path"], "occupancy", 0.9)
        await console.press("space", "shift+tab")
        screen(console).set_focus(screen(console).block("now"))
        assert "▲ The fullest table of probe path is 90.0 % full" in console.text
        await console.press("enter")
        await console.still()
        programs = console.app.screen
        assert isinstance(programs, ProgramsScreen)
        assert programs.listing.cursor_key == Slot("path", "ingress")


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda _: None, "▲ Probe flow is silent: no window for 1h06m"),
        (fails, "✕ Probe flow has ended: the interface went away"),
        (goes, "● Nothing is wrong: 1 probe running"),
        (slows, "▲ The link is slow: windows come 13 s late"),
    ],
)
async def test_a_probe_that_is_missed_is_late_or_has_ended_or_was_removed(
    happens: Callable[[FakePlane], None], said: str
) -> None:
    named: Callable[[str], ProbeConfig] = config
    plane = FakePlane(named("flow"), named("path"))
    async with desk(120, 24, plane, first="overview") as console:
        await console.feed(*some())
        await trace(console, 1)
        assert "2 probes running" in console.text
        happens(plane)
        view = console.app.hosts._states[""]._pulses._view
        object.__setattr__(view.probes["flow"], "came_at", time.monotonic() - 4000)
        screen(console)._poll()
        await console.still()
        await console.still()
        assert said in console.text
        # Old numbers are muted.
        if happens not in (goes, slows):
            source = screen(console).block("traffic").source
            assert Tone.MUTED in source.tones(0)
            assert set(tones(console, "traffic")) == {Tone.MUTED}


async def test_a_view_that_a_slow_link_holds_up_misses_no_probe() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some())
        state, frame = console.app.hosts._states[""], console.app.time.frame
        pulse = frame.pulses.probes["flow"]
        object.__setattr__(frame, "at", frame.at - 4000)
        object.__setattr__(pulse, "came_at", pulse.came_at - 4000)
        screen(console).show()
        assert not screen(console)._late(frame.pulses)
        state.last_at -= 4000
        assert screen(console)._late(frame.pulses) == [pulse]


async def test_a_paused_view_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(120, 40, first="overview") as console:
        await console.feed(*some())
        await console.press("space")
        frozen = console.lines[1:]
        # A paused screen reports no late windows.
        monkeypatch.setattr("app.console.screens.overview.model.LATE", 0.1)
        await console.pilot.pause(0.2)
        await console.feed(*some(), flow(9, 900), losses=FULL)
        screen(console)._poll()
        await console.still()
        assert console.lines[1:] == frozen
        await console.press("space")
        assert "10.0.0.9" in console.text
        assert "lost 7" in console.strip


async def test_without_flows_the_monitor_is_what_is_shown() -> None:
    async with desk(80, 24, first="overview") as console:
        await have_policies(console)
        assert "72.8 Mbit/s" in line(console, "in ")
        assert "Conversations" not in console.text
        assert "near" in console.lines[console.lines.index(line(console, "busy")) + 1]
        assert cast("Widget", screen(console).focused).id != "conversations"
        await console.press("shift+tab", "enter")
        await console.still()
        assert console.app.current_mode in ("programs", "triggers")


@pytest.mark.slow
async def test_it_fits_every_size() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some(), *(flow(n, n) for n in range(5, 60)))
        await trace(console, 3)
        await have_policies(console)
        for width, height in ((40, 10), (60, 12), (120, 40), (200, 60), (300, 20), (80, 24)):
            await console.pilot.resize_terminal(width, height)
            await console.still()
            region = screen(console).query_one("#board").region
            blocks = [
                one for one in screen(console).query(Block) if one.display and one.id != "now"
            ]
            columns = 1 + (width >= 100) + (width >= 160)
            assert len({block.region.x for block in blocks}) == columns
            if height < 20:
                continue
            assert all(region.contains_region(block.region) for block in blocks)
            assert "busy" in console.text
            assert "10.94.6.2" in console.text
            # No line of a block is left empty, and none of the first column.
            assert all(one.source.rows == one.size.height - 1 for one in blocks if one.source.rows)
            hops = screen(console).block("hops")
            assert width < 100 or hops.region.bottom == region.bottom
            assert screen(console).block("events").display == (width >= 100)


async def test_it_is_what_is_looked_at_first() -> None:
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    async with app.run_test():
        await app.ready.wait()
        assert app.current_mode == "overview"
