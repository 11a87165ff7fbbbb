"""Filters as an operator has them: of flows and their RTT, paths and hops, and events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.commands.path_filter import parse
from app.config.model import Settings
from app.console.host_names import Names
from app.console.live.flows import LIVE, LiveView
from app.console.live.paths import LivePaths, PathView
from app.console.screens.flows.columns import FLOWS
from app.console.screens.flows.paths import flow_rtts, path_medians
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.hosts import PathHosts, shown_hops, shown_paths
from app.console.screens.paths.model import Paths
from bpf.arrays import Array
from bpf.errors import TextError
from probes.flow.records import FlowDirection
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP
from probes.path.traced import Traced
from probes.snapshot import Event
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_paths import LAB, SECOND_NS, SOURCE, FakeHop, FakePath, packed, table
from tests.app.console.fake_plane import FakePlane
from tests.app.console.screens.shown import flow_rows

NEAR = tuple(FakeHop(rtt, (f"10.95.{n}.1",)) for n, rtt in enumerate((0.3, 2.0), 1))
END = FakeHop(17.3, ("10.94.6.2",))
ECHO = TracedFlow(1, 77, 8 << 8)


def measured(*paths: FakePath, seconds: int = 5) -> PathView:
    live = LivePaths()
    start = time.monotonic_ns() // SECOND_NS * SECOND_NS
    for number in range(seconds):
        begin = start + number * SECOND_NS
        for path in paths:
            live.add(table(path.second(begin), begin + SECOND_NS - 1))
            live.add(table(path.summaries(begin), begin + SECOND_NS - 1))
    return live.view()


def row_of(path: FakePath, direction: FlowDirection) -> Array:
    """The flow of a path, dtype LIVE (1,), as it leaves this host, or its answers."""
    row = np.zeros(1, LIVE)
    near, far = ("source", "destination")[:: 1 if direction == FlowDirection.EGRESS else -1]
    row[near][:, :4], row[far] = SOURCE, packed(path.destination)
    row["protocol"], sport, dport = path.flow
    row[f"{near}_port"], row[f"{far}_port"] = sport, dport
    row["version"], row["direction"] = path.version, direction
    return row


def echo_row(kind: int, direction: FlowDirection) -> Array:
    row = row_of(FakePath(NEAR, flow=ECHO), direction)
    row["source_port"], row["destination_port"] = 0, kind << 8
    return row


def test_a_flow_has_the_rtt_of_its_way_to_the_other_end_in_either_direction() -> None:
    """By the flow itself, or by the destination's answers to probes; never by the last router."""
    far = FakePath(LAB, end=FakeHop(17.3, ("10.94.6.2",)))
    arrived = (*NEAR, FakeHop(2.0, ("10.95.9.9",)))
    near = FakePath(arrived, destination="10.95.9.9", flow=TracedFlow(17, 5000, 53))
    echo = FakePath(NEAR, flow=ECHO, end=FakeHop(2.0, ("10.94.6.2",)))
    routers_only = FakePath(NEAR, flow=TracedFlow(17, 5001, 53))
    view = measured(far, near, echo, routers_only)
    other = row_of(far, FlowDirection.EGRESS)
    other["source_port"] = 40002
    rows = np.concatenate(
        [
            row_of(far, FlowDirection.EGRESS), row_of(far, FlowDirection.INGRESS), other,
            row_of(near, FlowDirection.EGRESS), row_of(near, FlowDirection.INGRESS),
            echo_row(8, FlowDirection.EGRESS), echo_row(0, FlowDirection.INGRESS),
            echo_row(3, FlowDirection.INGRESS), row_of(routers_only, FlowDirection.EGRESS),
        ],
        dtype=LIVE,
    )  # fmt: skip
    milli = flow_rtts(rows, *path_medians(view)) * 1e3
    expected = [17.3, 17.3, np.nan, 2.0, 2.0, 2.0, 2.0, np.nan, np.nan]
    assert milli == pytest.approx(expected, rel=0.02, nan_ok=True)
    assert np.isnan(flow_rtts(rows, *path_medians(LivePaths().view()))).all()


def test_flows_are_sorted_by_rtt_and_what_is_not_traced_comes_last_either_way() -> None:
    far = FakePath(LAB, end=FakeHop(17.3, ("10.94.6.2",)))
    near = FakePath(NEAR, destination="10.95.9.9", end=FakeHop(2.0, ("10.95.9.9",)))
    nowhere = FakePath((), destination="10.0.0.1")
    rows = np.concatenate(
        [row_of(p, FlowDirection.EGRESS) for p in (near, far, nowhere)], dtype=LIVE
    )
    rows["id"] = [1, 2, 3]
    view = LiveView(rows, 0, 0)
    paths = measured(far, near)
    every = flow_rows(view, paths=paths)
    at = FLOWS.names.index("rtt")
    for descending, order in ((True, [2, 1, 3]), (False, [1, 2, 3])):
        shown = every.ordered(at, descending=descending)
        assert [shown.key(place) for place in range(3)] == order
        assert shown.cells(2)[at] == "-"
        assert float(str(shown.cells(order.index(2))[at])) == pytest.approx(17.3, rel=0.02)
    slow = flow_rows(view, "rtt>10", paths)
    assert [slow.key(place) for place in range(slow.rows)] == [2]


def screen_two(*paths: FakePath, running: Sequence[FakePath] = ()) -> Paths:
    found = Paths()
    traced = [
        Traced(path.destination, (), len(path.hops), (), (), packets=0, sent=0, matched=0)
        for path in running or paths
    ]
    found.take(measured(*paths), tuple({one.destination: one for one in traced}.values()))
    return found


NO_NAMES = Names(lambda: None, enabled=False)


@pytest.mark.parametrize(
    ("text", "destinations", "flows"),
    [
        ("", {"10.94.6.2", "10.95.9.9"}, 2),
        ("rtt>10", {"10.94.6.2"}, 2),
        ("dst:10.95.0.0/16", {"10.95.9.9"}, 0),
        ("udp", {"10.94.6.2", "10.95.9.9"}, 1),
        ("udp dport:53", {"10.95.9.9"}, 0),
        ("hops<3", {"10.95.9.9"}, 0),
        ("!tcp !udp", set(), 0),
        (r"/^10\.94/ sport:40001", {"10.94.6.2"}, 1),
        ("loss>50% rtt<1ms", set(), 0),
        ("loss>50% hop<6 dst:10.95.9.9", {"10.95.9.9"}, 0),
    ],
)
def test_paths_are_filtered_by_destination_flow_and_numbers(
    text: str, destinations: set[str], flows: int
) -> None:
    paths = screen_two(
        FakePath(LAB, end=END), FakePath(LAB, flow=TracedFlow(17, 1, 2), end=END),
        FakePath(NEAR, destination="10.95.9.9", flow=TracedFlow(17, 5000, 53)),
    )  # fmt: skip
    of_paths, _ = parse(text, {})
    shown = shown_paths(PathHosts({"": paths}), of_paths, NO_NAMES)
    assert {choice.destination for choice in shown} == destinations
    assert sum(choice.flow is not None for choice in shown) == flows


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("hop<=2", [1, 2]),
        ("ttl:5-6", [5, 6]),
        ("rtt>10", [5, 6]),
        ("loss>50%", [4, 5]),
        ("rtt<10 hop>=2", [2, 3]),
        ("router:10.94.1.0/24", [2]),
        ("dst:10.94.6.2", [1, 2, 3, 4, 5, 6, DESTINATION_HOP]),
        ("hop>=7", [DESTINATION_HOP]),
        ("router:10.94.6.2", [DESTINATION_HOP]),
    ],
)
def test_hops_are_filtered_by_what_they_know(text: str, numbers: list[int]) -> None:
    paths = screen_two(FakePath(LAB))
    of_hops = parse(text, {})[1]
    hops = paths.hops(PathKey("10.94.6.2"), 30)
    assert shown_hops(hops, "10.94.6.2", of_hops, NO_NAMES)["hop"].tolist() == numbers


def test_what_neither_knows_is_refused() -> None:
    with pytest.raises(TextError, match=r"paths have no 'prot' \(column 7\); did you mean proto"):
        parse("rtt>5 prot:in", {})


async def ask(console: Desk, text: str) -> None:
    await console.press("slash", "ctrl+u")
    await console.type(text)
    await console.press("enter")


async def test_rtt_is_a_column_as_soon_as_a_path_is_traced() -> None:
    plane = FakePlane()
    end = FakeHop(2.0, ("192.0.2.1",))
    path = FakePath(NEAR, destination="192.0.2.1", flow=TracedFlow(6, 443, 40001), end=end)
    async with desk(160, controller=plane) as console:
        one = flow(1, 10)
        one["source"][:, :4], one["destination"][:, :4] = (192, 0, 2, 1), SOURCE
        one["source_port"], one["destination_port"] = 40001, 443
        await console.feed(one, flow(2, 5))
        assert "RTT ms" not in console.lines[1]
        start = time.monotonic_ns()
        plane.publish(table(path.second(start), start + SECOND_NS))
        await console.feed(one, flow(2, 5))
        assert "RTT ms" in console.lines[1]
        assert "-" in console.lines[3].split()
        at = console.lines[1].index("RTT ms")
        assert float(console.lines[2][at : at + 6]) == pytest.approx(2.0, rel=0.05)
        await ask(console, "rtt>1ms dport:443")
        assert "1 of 2 flows" in console.strip


@pytest.mark.slow
async def test_paths_and_events_have_a_filter_that_escape_clears() -> None:
    plane = FakePlane()
    path = FakePath(LAB)
    async with desk(controller=plane) as console:
        start = time.monotonic_ns() // SECOND_NS * SECOND_NS
        plane.publish(table(path.second(start), start + SECOND_NS))
        plane.publish(Event.now("info", "flow", "it began"))
        plane.publish(Event.now("error", "eth0", "it went away"))
        await console.press("2")
        await console.still()
        assert "10.94.5.2" in console.text
        await ask(console, "hop<=2")
        assert "filter hop<=2" in console.strip
        assert "10.94.1.2" in console.text
        assert "10.94.5.2" not in console.text
        await console.press("escape")
        assert "10.94.5.2" in console.text
        await ask(console, "dst:192.0.2.9")
        assert "0 of 1 destination" in console.strip
        assert "nothing passes the filter" in console.text
        await console.press("escape")
        assert "10.94.5.2" in console.text

        await console.press("6")
        await ask(console, "severity:error /WENT/")
        assert "1 of 2 groups" in console.strip
        assert "it went away" in console.text
        assert "it began" not in console.text
        await ask(console, "source:x")
        assert "no event passes the filter" in console.text
        await console.press("escape")
        assert "it began" in console.text


async def test_a_saved_filter_is_named_and_what_is_wrong_is_marked_where_it_is() -> None:
    settings = replace(Settings(), filters={"web": "dport:80,443", "bad": "udp prot:x"})
    async with desk(80, 24, settings=settings) as console:
        udp = flow(2, 5, proto=17)
        udp["destination_port"] = 53
        await console.feed(flow(1, 10), udp)
        await ask(console, "@web")
        assert console.sources == [1]
        assert "filter @web" in console.strip
        await ask(console, "tcp port:80x")
        lines = console.lines
        assert "'80x' is not a port" in console.text
        typed = next(line for line in lines if "tcp port:80x" in line)
        caret = next(line for line in lines if line.strip() == "▼")
        assert caret.index("▼") == typed.index("80x")
        assert console.sources == [1]
        await console.press("escape")
        await ask(console, "udp @bad")
        assert "in @bad, 'udp prot:x': flows have no 'prot'" in console.text


async def test_tab_completes_fields_and_values_that_there_are() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("slash")
        await console.type("dpo")
        await console.press("tab")
        await console.type("4")
        await console.press("tab", "enter")
        assert "filter dport:443" in console.strip
        assert console.sources == [1]


async def _shows(console: Desk, sources: list[int]) -> None:
    for _ in range(40):
        if console.sources == sources:
            break
        await console.pilot.pause(0.025)
    assert console.sources == sources


async def test_a_filter_shows_its_result_while_one_types() -> None:
    """Half a filter keeps the last one; escape restores the one before, and enter keeps it."""
    settings = Settings(filters={"udp": "proto:udp"})
    async with desk(120, 24, settings=settings) as console:
        await console.feed(flow(1, 30), flow(2, 20, proto=17), flow(3, 10))
        await console.press("slash")
        await console.type("tcp")
        await _shows(console, [1, 3])
        await console.type(" po")
        await console.pilot.pause(0.15)
        await _shows(console, [1, 3])
        assert not console.complaints
        await console.press("escape")
        await _shows(console, [1, 2, 3])
        await console.press("slash")
        await console.type("@ud")
        await console.press("tab")
        await _shows(console, [2])
        await console.press("enter", "slash")
        await console.type(" tcp")
        await _shows(console, [])
        await console.press("escape")
        await _shows(console, [2])


@pytest.mark.parametrize(("key", "text"), [("2", "loss>1%"), ("6", "severity:error")])
async def test_filters_of_paths_and_events_show_and_restore(key: str, text: str) -> None:
    async with desk(120, 24) as console:
        await console.feed(flow(1, 30))
        await console.press(key, "slash")
        console.app.screen.query_one("PromptInput").value = text  # type: ignore[attr-defined]
        for _ in range(40):
            await console.pilot.pause(0.025)
            if text in console.strip:
                break
        assert f"filter {text}" in console.strip
        await console.press("escape")
        assert text not in console.text
