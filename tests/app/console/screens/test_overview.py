"""Screen 1 as an operator sees it: what it says first, and where each part of it leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from textual.widget import Widget

from app.console.app import ConsoleApp
from app.console.live.monitor import LiveMonitor
from app.console.live.overview_feed import TRAFFIC, WINDOWS, LivePulses, Pulse, Pulses
from app.console.live.paths import LivePaths
from app.console.screens.events.screen import EventsScreen
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.overview.model import (
    allotted,
    pressing,
    ranked,
    rates,
    span_of,
    warnings_of,
)
from app.console.screens.overview.rows import health_items
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.model import PathKey
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.triggers.model import Triggers
from app.console.screens.triggers.screen import TriggersScreen
from probes.config.model import ProbeConfig
from probes.control_plane import ControlPlane
from probes.flow.records import FLOW, Array, FlowDirection
from probes.monitor.state import PolicyState
from probes.path.records import PathRowKind
from probes.snapshot import Event, Loss, LossReason
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_paths import LAB, FakePath, table
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic, monitor, policy
from tests.support.console.feed import window
from widgets.table.block import Block
from widgets.table.rows import Pieces
from widgets.tones import Tone

SECOND_NS = 10**9
FULL = {LossReason.TABLE_FULL: Loss(7)}


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a test is, its probes are not late."""
    monkeypatch.setattr("app.console.screens.overview.model.LATE", 1000)


def out(rows: Array) -> Array:
    """The same flow, out of this host."""
    rows["direction"] = FlowDirection.EGRESS
    return rows


def some() -> list[Array]:
    return [flow(1, 10, proto=17), flow(2, 30), out(flow(3, 20)), flow(4, 5, proto=58)]


def screen(console: Desk) -> OverviewScreen:
    assert isinstance(console.app.screen, OverviewScreen)
    return console.app.screen


def line(console: Desk, begin: str) -> str:
    """The line that begins so."""
    return next(line for line in console.lines if line.removeprefix(" ").startswith(begin))


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


# Kept windows


def traffic(*windows: tuple[float, int, int], lost: int = 0) -> Array:
    """Windows of seconds, bytes in, packets in, one after the other; all lost in the last."""
    rows = np.zeros(len(windows), TRAFFIC)
    for name, values in zip(
        ("seconds", "in_bytes", "in_packets"), zip(*windows, strict=True), strict=True
    ):
        rows[name] = values
    rows["end_ns"] = 1000 * SECOND_NS + np.cumsum(rows["seconds"]) * SECOND_NS
    rows["lost"][-1] = lost
    return rows


def test_windows_are_told_apart_by_direction_and_protocol() -> None:
    live = LivePulses()
    live.add(window(np.concatenate(some(), dtype=FLOW), end_ns=5 * SECOND_NS, losses=FULL))
    (row,) = live.view().traffic
    assert (row["in_bytes"], row["out_bytes"]) == (45 * 125, 20 * 125)
    assert row["packets"] == row["in_packets"] + row["out_packets"] == 1 + 4 + 2 + 1
    assert [row[f"{name}_packets"] for name in ("tcp", "udp", "icmp")] == [6, 1, 1]
    assert row["lost"] == 7
    assert live.view().both_ways


def test_the_monitor_tells_of_traffic_where_no_flows_are_counted() -> None:
    live, fake = LivePulses(), FakeMonitor()
    for item in fake.window({}, Traffic(tcp=6, udp=3, icmp=1, other=2, size=100)):
        live.add(item)
    view = live.view()
    assert not view.both_ways
    assert view.traffic["in_bytes"].tolist() == [1200]
    live.add(window(np.concatenate(some(), dtype=FLOW)))
    assert live.view().traffic is live.view().flows


def test_what_was_shown_stays_and_memory_is_bounded() -> None:
    live = LivePulses()
    rows = flow(1, 8)
    for number in range(1, 3 * WINDOWS):
        live.add(window(rows, number, end_ns=number * SECOND_NS))
        if number == WINDOWS:
            before = live.view().traffic
            kept = before.copy()
    assert len(live.view().traffic) == WINDOWS
    assert live.view().traffic["end_ns"].tolist() == [
        n * SECOND_NS for n in range(2 * WINDOWS, 3 * WINDOWS)
    ]
    assert (before == kept).all()
    # A probe that is started anew has no past.
    live.add(window(rows, 1, end_ns=SECOND_NS))
    assert len(live.view().traffic) == 1


def test_losses_add_up_and_those_of_the_last_window_are_apart() -> None:
    live = LivePulses()
    for number, losses in enumerate((FULL, {}, {**FULL, LossReason.NOT_IP: Loss(9)}), 1):
        live.add(window(flow(1, 1), number, losses=losses))
    (pulse,) = live.view().probes.values()
    assert pulse.lost.packets == 14
    assert pulse.last[LossReason.TABLE_FULL].packets == 7


def test_a_window_of_several_tables_is_one() -> None:
    live = LivePulses()
    end = 100 * SECOND_NS
    for rows in (FakePath(LAB).second(end), FakePath(LAB).summaries(end)):
        live.add(table(rows, end, window=3, lost=4))
    assert live.view().probes["path"].last[LossReason.OVERRUN].packets == 8


# Their rows


def test_rates_are_of_the_last_half_second_and_lines_of_whole_cells() -> None:
    rows = traffic((1.0, 1000, 10), (1.0, 3000, 10), (0.25, 500, 4), (0.25, 1000, 6), lost=5)
    one = rates(rows, "in", 3)
    assert (one.bits, one.packets) == (24_000, 20)
    assert np.isnan(one.line[0])
    # Two seconds a cell: 1001 and 1002 end in the first, the short ones in the next.
    assert one.line[1:].tolist() == [16_000, 24_000]
    assert one.lost.tolist() == [False, False, True]
    assert one.peak == (24_000, 12)
    empty = rates(rows[:0], "in", 3)
    assert np.isnan(empty.bits)
    assert np.isnan(empty.line).all()


@pytest.mark.parametrize(("seconds", "cell"), [(0.1, 2), (1.0, 2), (2.001, 2), (5.0, 6), (60, 60)])
def test_no_window_is_longer_than_a_cell(seconds: float, cell: int) -> None:
    rows = traffic(*[(seconds, 100, 1)] * 12)
    assert span_of(rows) == cell
    assert not np.isnan(rates(rows, "in", 2).line[1:]).any()


def paths(**changes: object) -> LivePaths:
    """A minute of the lab's path; hop 2 is changed."""
    live, path = LivePaths(), FakePath(LAB)
    path.with_hop(2, **changes)
    end = 100 * SECOND_NS
    for second in range(10):
        at = end + second * SECOND_NS
        live.add(table(path.second(at - SECOND_NS), at))
    live.add(table(path.summaries(at), at))
    return live


def test_the_worst_hop_loses_and_is_to_blame() -> None:
    def order(live: LivePaths) -> list[int]:
        return [number for _, number in ranked(live.view())]

    # The silent fourth is none of them; the fifth, which loses most, is only loath to answer.
    assert order(paths()) == [6, 5, 3, 2, 1]
    assert order(paths(loss=0.2))[0] == 2
    assert order(paths(loss=0.2, cleared=True)) == [6, 5, 3, 2, 1]
    live = paths()
    end = 110 * SECOND_NS
    live.add(table(FakePath(LAB).change(PathRowKind.QUEUE, 3, end, amount_ns=20_000_000), end))
    assert order(live)[0] == 3
    assert ranked(live.view())[0][0] == PathKey("10.94.6.2")
    # A path without probes is no longer bad.
    live.add(table(FakePath(LAB).second(end)[:0], end + 10 * SECOND_NS))
    assert order(live) == []


def test_policies_that_act_come_first_and_then_those_near_their_threshold() -> None:
    live, fake = LiveMonitor(), FakeMonitor()
    says = {"far": Said(1, 10), "near": Said(9, 10), "busy": Said(3, 1)}
    for item in fake.window(says):
        live.add(item)
    info = monitor(
        policy("off: operator -> dns", PolicyState.OFF),
        policy("all: always -> dns", PolicyState.ACTIVE),
        policy("far: flows > 10 -> dns"), policy("near: flows > 10 -> dns"),
        policy("cooling: flows > 1 -> dns", PolicyState.COOLDOWN),
        policy("busy: flows > 1 -> dns", PolicyState.ACTIVE),
    )  # fmt: skip
    found = pressing(Triggers(live.view(), info), 3)
    assert [one.name for one in found] == ["busy", "cooling", "near", "far", "all", "off"]


def test_warnings_that_differ_in_numbers_are_one() -> None:
    events = [
        Event(n, severity, "flow", text)
        for n, (severity, text) in enumerate(
            [("warning", "7 lost in 9"), ("info", "no"), ("warning", "12 lost in 8"),
             ("error", "gone"), ("warning", "9 lost in 10")]
        )
    ]  # fmt: skip
    found = warnings_of(events, 9)
    assert [(one.event.text, one.times) for one in found] == [("7 lost in 9", 3), ("gone", 1)]
    assert len(warnings_of(events, 1)) == 1


@pytest.mark.parametrize(
    ("lines", "wanted", "heights"),
    [
        (17, {"a": 99, "b": 99, "c": 99, "d": 99}, [7, 4, 3, 3]),
        (17, {"a": 99, "b": 0, "c": 1, "d": 0}, [13, 1, 2, 1]),
        (9, {"b": 2, "c": 2}, [3, 3]),
        (3, {"a": 5, "b": 5, "c": 5, "d": 5}, [1, 1, 1, 1]),
    ],
)
def test_lines_go_round_until_every_want_is_met(
    lines: int, wanted: dict[str, int], heights: list[int]
) -> None:
    assert list(allotted(lines, wanted, {"a": 2}).values()) == heights


def pulse(**changes: object) -> Pulse:
    usual = {
        "name": "flow", "generation": 1, "interval": 1.0, "poll": 0.01, "occupancy": 0.0,
        "came_at": 0.0, "end_utc_ns": 0, "window": 1, "last": {}, "losses": {},
    }  # fmt: skip
    return Pulse(**(usual | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said", "tone"),
    [
        ({}, "<10 ms / 1.0 s", Tone.NORMAL),
        ({"generation": 3, "occupancy": 0.06}, "<10 ms / 1.0 s, map 6.0 %, gen 3", Tone.NORMAL),
        ({"poll": 0.3}, "300 ms / 1.0 s", Tone.WARN),
        ({"poll": 0.9}, "900 ms / 1.0 s", Tone.BAD),
        ({"occupancy": 0.7}, "<10 ms / 1.0 s, map 70.0 %", Tone.WARN),
    ],
)
def test_a_probe_that_can_hardly_keep_up_is_marked(
    changes: dict[str, object], said: str, tone: Tone
) -> None:
    one = pulse(**changes)
    item = health_items(Pulses({one.name: one}), [], {}, 0, 0.0)[-1]
    assert (item.label, item.text, item.tone) == ("flow", said, tone)


# What is seen


async def test_it_says_how_to_begin_and_then_what_passes() -> None:
    async with desk(80, 24, first="overview") as console:
        assert "STARTING" in console.strip
        assert "waiting for packets" in console.text
        assert "enter on a flow" in line(console, "Worst hops")
        assert "a on 4 adds one" in line(console, "Policies")
        assert "Traffic" not in console.text
        await console.feed(*some())
        await console.feed(*some())
        assert "● 1 probe measures │ nothing lost │ flow <10 ms / 1.0 s" in console.lines[1]
        assert "45.0 kbit/s" in line(console, "in ")
        assert "20.0 kbit/s" in line(console, "out ")
        assert "TCP 75.0 %" in console.text
        assert "other 0 %" in console.text
        rows = [text.split()[2] for text in console.lines if " kbit/s" in text and ":443" in text]
        assert rows == ["10.0.0.2:40002", "10.0.0.3:40003", "10.0.0.1:40001"]
        assert "no loss, no warning, no error" in line(console, "Warnings")
        for digit in "23456":
            assert f" {digit} " in console.lines[-1]
        nasty = "[/red] \x1b[31m \u202e \udc80"
        console.controller.publish(Event.now("error", nasty, nasty))
        await console.still()
        assert "[/red] ·[31m" in console.text
        assert "\x1b" not in console.text
        assert console.lines[-1].rstrip().endswith("q Quit")


async def test_each_block_leads_to_its_screen_and_its_row() -> None:
    async with desk(120, 40, first="overview") as console:
        await console.feed(*some())
        await trace(console)
        await have_policies(console)
        warned = Event.now("error", "hello", "it ended")
        console.controller.publish(warned)
        console.controller.publish(Event.now("info", "eth0", "xdp: native"))
        await console.still()

        async def opened(name: str, row: int) -> Widget:
            if console.app.current_mode != "overview":
                await console.press("1")
            block = screen(console).block(name)
            screen(console).set_focus(block)
            block.move_to(row)
            await console.press("enter")
            return console.app.screen

        flows = await opened("flows", 1)
        assert isinstance(flows, FlowsScreen)
        assert "10.0.0.3" in console.under_cursor
        hops = await opened("hops", 1)
        assert isinstance(hops, PathsScreen)
        assert hops.table.cursor_key == 5
        assert hops.listing.cursor_key == PathKey("10.94.6.2")
        triggers = await opened("policies", 1)
        assert isinstance(triggers, TriggersScreen)
        assert triggers.listing.cursor_key == "near"
        events = await opened("warnings", 0)
        assert isinstance(events, EventsScreen)
        assert events.table.cursor_key == warned
        await opened("traffic", 0)
        assert console.app.current_mode == "flows"
        await console.press("1", "up", "up", "enter")
        assert console.app.current_mode == "programs"


async def test_the_cursor_goes_from_block_to_block_and_stays_at_the_ends() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some())

        async def at(*keys: str) -> tuple[str | None, int]:
            await console.press(*keys)
            focused = cast("Widget", screen(console).focused)
            return focused.id, focused.cursor_index if isinstance(focused, Block) else 0

        assert await at() == ("flows", 0)
        assert await at("up") == ("traffic", 1)
        assert await at("k", "up") == ("health", 0)
        assert await at("up") == ("health", 0)
        assert await at("tab", "down", "j") == ("flows", 0)
        assert await at("end") == ("flows", 3)
        # The block below has no rows.
        assert await at("down") == ("flows", 3)


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
        flows.do_flow_filter("udp")
        await console.press("1")
        await console.press("enter")
        await console.still()
        assert "10.0.0.2" in console.under_cursor
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
        assert "lost 7, 7 of them in the last window" in console.lines[1]
        assert "7 table full, 7 of them now" in line(console, "lost")
        assert "not ip" not in console.text
        assert any(tone is Tone.LOST for tone in tones(console, "traffic"))
        await console.feed(*some())
        assert "│ lost 7 │ 1 flows too many to show │" in console.lines[1]
        assert line(console, "lost").split()[1:] == ["flow", "7", "table", "full"]


def tones(console: Desk, name: str) -> list[Tone]:
    """The tones of a block's time lines."""
    source = screen(console).block(name).source
    lines = (cast("Pieces", source.cells(row)[-1]) for row in range(source.rows))
    return [tone for pieces in lines for _, tone in pieces]


def fails(plane: FakePlane) -> None:
    plane.fail("flow", "the interface went away")


def goes(plane: FakePlane) -> None:
    del plane.running["flow"]


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda _: None, "flow no window for 1h06m"),
        (fails, "flow ended: the interface went away"),
        (goes, "● 1 probe measures"),
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
        assert "● 2 probes measure" in console.lines[1]
        happens(plane)
        view = console.app.time.state._pulses._view
        object.__setattr__(view.probes["flow"], "came_at", time.monotonic() - 4000)
        screen(console)._poll()
        await console.still()
        await console.still()
        assert said in console.lines[1]
        assert ("silent" in console.lines[1]) == (happens is not goes)
        # Old numbers are muted.
        if happens is not goes:
            source = screen(console).block("traffic").source
            assert Tone.MUTED in source.tones(0)
            assert set(tones(console, "traffic")) == {Tone.MUTED}


async def test_a_view_that_a_slow_link_holds_up_misses_no_probe() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some())
        state, frame = console.app.time.state, console.app.frame
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
        assert "lost 7" in console.lines[1]


async def test_without_flows_the_monitor_is_what_is_shown() -> None:
    async with desk(80, 24, first="overview") as console:
        await have_policies(console)
        assert "72.8 Mbit/s" in line(console, "in ")
        assert "Flows" not in console.text
        assert "near" in console.lines[console.lines.index(line(console, "busy")) + 1]
        assert cast("Widget", screen(console).focused).id != "flows"
        await console.press("shift+tab", "enter")
        await console.still()
        assert console.app.current_mode in ("programs", "triggers")


async def test_it_fits_every_size() -> None:
    async with desk(80, 24, first="overview") as console:
        await console.feed(*some(), *(flow(n, n) for n in range(5, 60)))
        await trace(console, 3)
        await have_policies(console)
        for width, height in ((40, 10), (60, 12), (120, 40), (200, 60), (300, 20), (80, 24)):
            await console.pilot.resize_terminal(width, height)
            await console.still()
            region = screen(console).query_one("#board").region
            blocks = [block for block in screen(console).query(Block) if block.display]
            assert (len({block.region.x for block in blocks}) == 2) == (width >= 160)
            if height < 20:
                continue
            assert all(region.contains_region(block.region) for block in blocks)
            assert "busy" in console.text
            assert "10.94.6.2" in console.text
            # No line of the flows' block is left empty.
            flows = screen(console).block("flows")
            assert flows.source.rows == flows.size.height - 1
            # Nor what is left over beside many flows: there is the log.
            events = screen(console).block("events")
            assert events.display == (width >= 160)
            assert not events.display or events.region.bottom == region.bottom


async def test_it_is_what_is_looked_at_first() -> None:
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    async with app.run_test():
        await app.ready.wait()
        assert app.current_mode == "overview"
