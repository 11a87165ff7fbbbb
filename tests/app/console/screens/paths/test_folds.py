"""Flows of the same way are one row of screen 2, and no flow is lost by that."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from app.console.live.paths import LivePaths
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.screens.paths.rows import path_state
from probes.path.options import TracedFlow
from probes.path.records import PathRowKind
from probes.path.traced import Traced
from tests.app.console.fake import becomes
from tests.app.console.fake_paths import LAB, FakeHop, FakePath, table
from tests.app.console.screens.paths.tracer import Tracer, tracer

OTHER = FakeHop(9.0, ("10.94.9.2",))
SILENT = FakeHop(9.0, ())


def on(port: int, *changes: tuple[int, FakeHop]) -> FakePath:
    """A flow from a port, with other hops at some numbers."""
    hops = [*LAB]
    for number, hop in changes:
        hops[number - 1] = hop
    return FakePath(hops, flow=TracedFlow(6, port, 443))


def ways(*paths: FakePath) -> list[tuple[list[int], str]]:
    """Source ports of the flows of each way, and its branch."""
    live, model = LivePaths(), Paths()
    for path in paths:
        live.add(table(path.second(10**9), 2 * 10**9))
    model.take(live.view(), ())
    found = model.ways(paths[0].destination)
    return [([flow.source_port for flow in way.flows], way.branch) for way in found]


def test_flows_take_the_same_way_if_no_hop_contradicts() -> None:
    turns = replace(LAB[2], routers=(*LAB[2].routers, "10.94.8.2"))
    assert ways(on(1), on(2), on(3, (4, SILENT))) == [([1, 2, 3], "")]
    assert ways(on(1), on(2, (3, turns))) == [([1, 2], "")]
    apart = ways(on(1), on(2, (3, OTHER)), on(3), on(4, (3, OTHER)), on(5, (3, SILENT)))
    assert apart == [([1, 3, 5], "hop 3 10.94.2.2"), ([2, 4], "hop 3 10.94.9.2")]


def test_flows_without_an_answer_are_a_way_of_their_own() -> None:
    silent = [(number, SILENT) for number in range(1, len(LAB) + 1)]
    assert ways(on(1, *silent), on(2), on(3), on(4, *silent)) == [
        ([1, 4], "no answer"),
        ([2, 3], ""),
    ]


def listed(t: Tracer) -> list[str]:
    source = t.listing.source
    return [" ".join(str(source.cells(at)[0]).split()) for at in range(source.rows)]


@pytest.mark.slow
async def test_one_row_a_way_that_a_key_opens_and_closes(tmp_path: Path) -> None:
    async with tracer(on(1), on(2), on(3, (3, OTHER)), on(4)) as t:
        head, way, other = "10.94.6.2 4 flows, 2 ways", "3 flows, hop 3 10.94.2.2", "tcp 3 to 443"
        flows = [f"tcp {port} to 443" for port in (1, 2, 4)]
        assert listed(t) == [head, f"▸ {way}", other]
        samples = [t.listing.source.cells(at)[4] for at in range(3)]
        # Each flow is a step; its way is open for so long.
        seen = []
        for _ in range(6):
            await t.desk.press("n")
            seen.append(t.desk.app.screen.choice)  # type: ignore[attr-defined]
        keys = [PathKey("10.94.6.2", TracedFlow(6, port, 443)) for port in (1, 2, 4, 3)]
        assert seen == [replace(keys[0], is_way=True), *keys, PathKey("10.94.6.2")]
        assert listed(t) == [head, f"▸ {way}", other]
        await t.desk.press("p", "p")
        assert listed(t) == [head, f"▾ {way}", *flows, other]
        assert t.row(3)[1] == "10.94.2.2"
        await t.desk.press("f")
        assert listed(t) == [head, f"▸ {way}", other]
        await t.desk.press("f", "n", "n", "n", "n")
        assert listed(t) == [head, f"▾ {way}", *flows, other]
        assert t.row(3)[1] == "10.94.9.2"
        await t.desk.press("f")
        await t.desk.still()
        assert t.desk.complaints == ["no other flow takes the same way"]
        await t.desk.press("p", "f")
        # A file has every flow, and no way.
        t.desk.app.screen.set_focus(t.listing)
        await t.still()
        await t.desk.app.action_command(f"view.export {tmp_path}/paths.csv")
        await becomes(t.desk, (tmp_path / "paths.csv").exists)
        rows = list(csv.DictReader((tmp_path / "paths.csv").open()))
        assert [row["path"] for row in rows] == ["10.94.6.2  4 flows", *flows[:2], other, flows[2]]
        # The way's numbers combine its flows.
        assert samples == [t.listing.source.cells(at)[4] for at in range(3)]
        await t.desk.app.action_command("path.filter sport:2,3")
        assert listed(t) == [head, flows[1], other]


async def test_the_destination_stands_for_its_only_way() -> None:
    async with tracer(on(1), on(2)) as t:
        assert listed(t) == ["10.94.6.2 ▸ 2 flows"]
        t.desk.app.screen.set_focus(t.listing)
        await t.desk.press("enter")
        assert listed(t) == ["10.94.6.2 ▾ 2 flows", "tcp 1 to 443", "tcp 2 to 443"]
        await t.desk.press("j", "enter", "p", "f")
        assert listed(t) == ["10.94.6.2 ▸ 2 flows"]


def test_a_loop_and_a_flap_are_the_state_of_a_path_until_they_are_over() -> None:
    path, live, model = on(1), LivePaths(), Paths()
    traced = (Traced(path.destination, (), 4, (), (), packets=9, sent=9, matched=9),)
    states = []
    for second, (kind, values) in enumerate(
        (
            (PathRowKind.LOOP, {"other_hop": 4, "amount": 2}),
            (PathRowKind.LOOP_OVER, {}),
            (PathRowKind.FLAP, {"amount": 3, "amount_ns": 2 * 10**9}),
            (PathRowKind.FLAP_OVER, {}),
        ),
        1,
    ):
        at = second * 10**9
        live.add(table(path.second(at), at + 10**9))
        row = path.change(kind, 3, at, responder="10.94.2.2", previous="10.94.3.2", **values)
        live.add(table(row, at + 10**9))
        model.take(live.view(), traced)
        states.append(path_state(model, PathKey(path.destination))[0])
    assert states == [
        "routing loop between 10.94.2.2 (hop 3) and 10.94.3.2 (hop 4)",
        "",
        "hop 3 flaps between 10.94.2.2 and 10.94.3.2, every 2.0 s",
        "",
    ]
