"""The grouped views of screen 3: rows, sums, opening a group, and leading to a row."""

from __future__ import annotations

import csv
from operator import itemgetter
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from app.api.server.windows import TopFlows
from app.commands.flow_view import GROUPED, LABEL_KINDS, Grouping
from app.console.live.flows import LiveFlows
from app.console.screens.flows.group_columns import GROUPS
from app.console.screens.flows.rows import GroupedFlows, live_table
from app.console.screens.flows.screen import FlowsScreen, shown_rows
from app.console.screens.flows.selection import GroupKey, Opened
from app.console.screens.overview.blocks import SPECS, Busiest
from bpf.arrays import Array
from bpf.errors import UsageError
from probes.flow import grouping
from probes.flow.grouping import KINDS
from probes.flow.records import FLOW, FlowDirection
from probes.snapshot import Snapshot
from tests.app.console.fake import Desk, conversation, desk, flow
from tests.app.console.fake_plane import FakePlane
from tests.support.console.feed import Flows, window

SECOND = 10**9
BUSY = (
    conversation(1, 300, 30), conversation(2, 100, 2000, port=873), conversation(3, 5, 4, port=53),
    conversation(3, 50, 1), conversation(4, 0, 20),
)  # fmt: skip


def screen(console: Desk) -> FlowsScreen:
    return cast("FlowsScreen", console.app.screen)


def state(console: Desk, name: str) -> object:
    return console.app.tapes.state_of(name)


def rows(console: Desk) -> list[list[str]]:
    """Words of the rows of the table."""
    end = next(n for n, line in enumerate(console.lines) if line.startswith(" total in"))
    return [line.split() for line in console.lines[2:end] if line.strip()]


def mixed(seed: int = 1) -> GroupedFlows:
    """Conversations of a random view: both directions, both IP versions, ICMP echo."""
    random, found = np.random.default_rng(seed), Flows(1500, seed=seed).next(SECOND)
    found["source"][:, 1:3] = found["destination"][:, 1:3] = 0
    found["source_port"] = random.integers(1, 100, len(found))
    found["version"][::3] = 6
    found["protocol"][::7], found["version"][::7] = 1, 4
    found["destination_port"][::7] = random.choice([0, 8 << 8], len(found[::7]))
    back = found[::2].copy()
    for field in ("", "_port"):
        ends = f"source{field}", f"destination{field}"
        for end, other in zip(ends, reversed(ends), strict=True):
            back[end] = found[other][::2]
    back["direction"] = 1 - back["direction"]
    # Echo replies have the identifier of their requests.
    is_icmp = back["protocol"] == 1
    back["source_port"][is_icmp] = found["source_port"][::2][is_icmp]
    back["destination_port"][is_icmp] = (8 << 8) - found["destination_port"][::2][is_icmp]
    found = np.concatenate((found, back))
    lives = LiveFlows()
    for number in (1, 2):
        lives.add(window(found, number, end_ns=number * SECOND))
    view = lives.view()
    return GroupedFlows(view, np.arange(len(view.rows)), Grouping(), live_table(view))


def test_views_are_the_kinds_of_groups_and_directions() -> None:
    assert (*KINDS, *LABEL_KINDS) == GROUPED
    assert tuple(spec.name for spec in GROUPS) == (*KINDS, "owners")


@pytest.mark.parametrize(
    "by", [Grouping(kind) for kind in KINDS] + [Grouping("hosts", near=True),
           Grouping("networks", near=True, prefixes=(12, 9))], ids=str,
)  # fmt: skip
def test_columns_are_sums_of_the_flows_and_an_opened_group_has_exactly_its_flows(
    by: Grouping,
) -> None:
    view = mixed().view
    flows = view.rows
    groups = GroupedFlows(view, np.arange(len(flows)), by, live_table(view))
    assert len(groups.rows) < len(flows)
    for way, direction in (("in", FlowDirection.INGRESS), ("out", FlowDirection.EGRESS)):
        of_way = flows[flows["direction"] == direction]
        assert groups.column(way).sum() == pytest.approx(of_way["bit_rate"].sum())
        packet_rate = groups.column(f"{way}_packet_rate").sum()
        assert packet_rate == pytest.approx(of_way["packet_rate"].sum())
    assert groups.column("packets").sum() == flows["packets"].sum()
    assert groups.column("bytes").sum() == flows["bytes"].sum()
    lines = [groups.line(at)[-1] for at in range(len(groups.rows))]
    assert sum(lines) * 2 == pytest.approx(flows["bytes"].sum() * 8, rel=1e-5)
    assert groups.column("mean").sum() * 2 == pytest.approx(flows["bytes"].sum() * 8, rel=1e-5)
    for at in np.linspace(0, len(groups.rows) - 1, 20).astype(int).tolist():
        opened = Opened(by, groups.rows[at : at + 1], "")
        assert (opened.mask(flows, groups.table.owned) == (groups.of == at)).all()
    # Each column has a cell, an order and a value for each row.
    shown = shown_rows(groups)
    for place, column in enumerate(shown.spec.columns):
        assert shown.cells(0)[place] is not None
        if not column.drawn:
            for descending in (False, True):
                assert shown.ordered(place, descending=descending).rows == shown.rows
            assert len(shown.values(place)) == shown.rows


def test_the_overview_finds_conversations_once_for_all_its_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, found = mixed().view, Busiest()
    asked: list[int] = []
    whole = {kind: GroupedFlows(view, np.arange(len(view.rows)), Grouping(kind), live_table(view))
             for kind in SPECS}  # fmt: skip
    merge = grouping._single

    def single(rows: Array) -> Array:
        asked.append(len(rows))
        return merge(rows)

    monkeypatch.setattr(grouping, "_single", single)
    for _ in range(2):
        found.take(view)
    assert asked == [len(view.rows)]
    for kind, groups in whole.items():
        assert (found._grouped[kind].rows == groups.rows).all()
        assert (found._grouped[kind].column("rate") == groups.column("rate")).all()


def test_groups_of_a_subset_have_only_its_flows() -> None:
    view = mixed().view
    places = np.flatnonzero(view.rows["version"] == 6)
    groups = GroupedFlows(view, places, Grouping("hosts"), live_table(view))
    assert groups.column("bytes").sum() == view.rows["bytes"][places].sum()
    assert groups.line(0)[-1] > 0
    assert (groups.rows["version"] == 6).all()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("conversations", Grouping()),
        ("hosts", Grouping("hosts")),
        ("hosts local", Grouping("hosts", near=True)),
        ("networks 16", Grouping("networks", prefixes=(16, 64))),
        ("networks /48", Grouping("networks", prefixes=(24, 48))),
        ("networks remote 8 32", Grouping("networks", prefixes=(8, 32))),
        ("networks local 16", Grouping("networks", near=True, prefixes=(16, 64))),
    ],
)
def test_a_view_is_parsed_and_written(text: str, found: Grouping) -> None:
    assert Grouping.parse(text) == found
    assert Grouping.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["host", "services local", "hosts 16", "networks x", "networks 33 64", "networks 1 2 3"]
)
def test_a_wrong_view_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Grouping.parse(text)


def test_rates_of_windows_that_lack_flows_are_lower_bounds() -> None:
    """A host's stream of its two largest flows: its service on port 443 has three in truth."""
    lives, top = LiveFlows(), TopFlows(2)
    for second in (1, 2, 3):
        small = flow(1, 500 if second == 1 else 80)
        rows = np.concatenate((small, flow(2, 300), flow(3, 200)), dtype=FLOW)
        rows["first_ns"] = rows["last_ns"] = second * SECOND - 1
        lives.add(cast(Snapshot, top.of(window(rows, second, end_ns=second * SECOND))))
    view = lives.view()
    assert view.idle_ns(view.rows["last_ns"]).max() <= 1
    for kind, rates in (("services", ["≥500 k"]), ("conversations", ["?", "≥200 k", "≥300 k"])):
        groups = GroupedFlows(view, np.arange(3), Grouping(kind), live_table(view))
        shown = shown_rows(groups)
        for name in ("rate", "in"):
            cells = shown.column_cells(shown.spec.names.index(name))
            texts = (
                one if isinstance(one, str) else "".join(map(itemgetter(0), one)) for one in cells
            )
            assert sorted(text.strip() for text in texts) == rates


async def test_both_directions_are_one_row_with_sums_and_service() -> None:
    async with desk(view="conversations") as console:
        await console.feed(*BUSY)
        assert rows(console)[:2] == [
            ["rsync", ":40002", "10.0.0.2:873", "100", "k", "2.00", "M", "2.10", "M", "▆",
             "262", "256", "KiB"],
            ["https", ":40001", "10.0.0.1:443", "300", "k", "30.0", "k", "330", "k", "▆",
             "42", "40.3", "KiB"],
        ]  # fmt: skip
        # A direction without packets has a dot.
        assert rows(console)[3][2:5] == ["10.0.0.4:443", "·", "20.0"]
        assert "total in 455 kbit/s │ out 2.06 Mbit/s │ 5 conversations │ 10 flows" in console.text
        assert state(console, "flow.count") == 10
        assert state(console, "flow.group") == "rsync 10.0.0.2:873 ↔ :40002"
        assert state(console, "flow.destination") == "10.0.0.2:873"
        assert state(console, "flow.rate") == pytest.approx(2.1e6)


async def test_v_turns_through_the_views_and_each_keeps_its_order() -> None:
    async with desk(view="conversations") as console:
        await console.feed(*BUSY)
        seen = []
        for _ in (*KINDS, "directions"):
            seen.append(state(console, "flow.view"))
            await console.press("v")
        assert seen == ["conversations", "hosts", "services", "networks 24 64", "directions"]
        await console.app.action_command("flow.sort in")
        await console.press("v")
        assert state(console, "flow.sort") == "rate"
        await console.press("V")
        assert state(console, "flow.view") == "conversations"
        assert state(console, "flow.sort") == "in"
        assert rows(console)[0][2] == "10.0.0.1:443"


async def test_h_shows_the_host_that_talks_most_from_any_screen() -> None:
    async with desk(first="overview") as console:
        await console.feed(*BUSY)
        await console.press("h")
        assert [row[0] for row in rows(console)] == [f"10.0.0.{n}" for n in (2, 1, 3, 4)]
        assert rows(console)[2][:6] == ["10.0.0.3", "2", "55.0", "k", "5.00", "k"]


async def test_a_group_opens_and_closes_where_the_cursor_was() -> None:
    async with desk(view="hosts") as console:
        await console.feed(*BUSY)
        await console.press("j", "j", "enter")
        assert [row[2] for row in rows(console)] == ["10.0.0.3:443", "10.0.0.3:53"]
        assert "host 10.0.0.3" in console.strip
        assert "4 of 10 flows" in console.strip
        assert state(console, "flow.opened") == "10.0.0.3"
        await console.press("V")
        assert len(console.sources) == 2
        await console.press("v", "escape")
        assert state(console, "flow.view") == "hosts"
        assert state(console, "flow.group") == "10.0.0.3"
        assert len(rows(console)) == 4


async def test_a_filter_is_of_the_opened_group_until_a_view_is_named() -> None:
    async with desk(view="hosts") as console:
        await console.feed(*BUSY)
        await console.press("enter")
        await console.app.action_command("flow.filter port:443")
        await console.still()
        assert "no flow passes the filter" in console.text
        await console.app.action_command("flow.view conversations")
        await console.still()
        assert state(console, "flow.opened") == ""
        assert [row[0] for row in rows(console)] == ["https"] * 3
        await console.app.action_command("flow.view services")
        await console.still()
        assert rows(console)[0][:3] == ["https", "tcp/443", "3"]


async def test_a_second_click_asks_before_it_sends_packets() -> None:
    plane = FakePlane()
    async with desk(view="conversations", controller=plane) as console:
        await console.feed(*BUSY)
        await console.pilot.click("#conversations", offset=(5, 1), times=2)
        await console.still()
        assert "double-click again" in console.complaints[-1]
        assert not plane.asked
        await console.pilot.click("#conversations", offset=(5, 1), times=2)
        await console.app.workers.wait_for_complete()
        await console.still()
        assert plane.asked[-1][0] == "trace"


async def test_a_trace_of_an_idle_flow_says_so_at_once() -> None:
    plane = FakePlane()
    async with desk(view="conversations", controller=plane) as console:
        await console.feed(*BUSY)
        for _ in range(5):
            await console.feed()
        await console.press("enter")
        await console.app.workers.wait_for_complete()
        assert any("idle for 5 s: probes go out only with" in text for text in console.complaints)
        assert plane.asked[-1][0] == "trace"


async def test_moments_compare_in_groups() -> None:
    async with desk(view="hosts") as console:
        await console.feed(*BUSY)
        await console.press("M")
        await console.feed(conversation(1, 300, 30), conversation(2, 50, 100, port=873),
                           conversation(9, 8, 8))  # fmt: skip
        found = {row[0]: row[1:] for row in rows(console)}
        assert found["10.0.0.2"][:7] == [
            "-1.95",
            "Mbit/s",
            "150",
            "kbit/s",
            "2.10",
            "Mbit/s",
            "+18",
        ]
        assert found["10.0.0.9"][-1] == "new"
        assert found["10.0.0.3"][:4] == ["-60.0", "kbit/s", "0", "bit/s"]
        assert next(iter(found)) == "10.0.0.2"
        await console.press("S", "S", "s")
        await console.press("M")
        assert state(console, "flow.view") == "hosts"


async def test_files_have_values_of_groups(tmp_path: Path) -> None:
    async with desk(view="conversations") as console:
        await console.feed(*BUSY)
        await console.app.action_command("view.columns service local remote in out rate packets")
        await console.app.action_command(f"view.export {tmp_path}/c.csv")
        await console.app.workers.wait_for_complete()
        await console.still()
    (row, *_) = csv.DictReader((tmp_path / "c.csv").open())
    assert row == {
        "service": "rsync", "local": "192.0.2.1:40002", "remote": "10.0.0.2:873",
        "in_bps": "100000.0", "out_bps": "2000000.0", "rate_bps": "2100000.0", "packets": "262",
    }  # fmt: skip


async def test_the_detail_has_both_directions_and_follows_the_view() -> None:
    async with desk(view="conversations") as console:
        await console.feed(*BUSY)
        await console.feed(*BUSY)
        await console.press("d")
        for words in (
            "rsync, tcp over IPv4", "192.0.2.1:40002", "10.0.0.2:873",
            "100 kbit/s, 12 pkt/s; 24.4 KiB in 24 packets", "━━ in 100 kbit/s",
            "━━ out 2.00 Mbit/s",
        ):  # fmt: skip
            assert words in console.detail, words
        await console.press("v", "j", "j")
        assert "Host         10.0.0.3" in console.detail
        assert "2 conversations" in console.detail
        assert "━━ in 55.0 kbit/s" in console.detail


async def test_a_layout_keeps_the_view() -> None:
    async with desk(view="networks local 16") as console:
        kept = screen(console).keep()
    async with desk(view="conversations") as console:
        screen(console).restore(kept)
        screen(console).show()
        await console.feed(*BUSY)
        assert state(console, "flow.view") == "networks local 16 64"
        assert rows(console)[0][0] == "192.0.0.0/16"


async def test_other_screens_lead_to_a_flow_or_a_group() -> None:
    async with desk(view="hosts") as console:
        await console.feed(*BUSY)
        flows = console.app.time.frame.flows.rows
        (small,) = flows["id"][flows["bytes"] == 625]
        await console.app.turn_to("flows", int(small))
        assert state(console, "flow.group") == "dns 10.0.0.3:53 ↔ :40003"
        hosts = GroupedFlows(
            console.app.time.frame.flows, np.arange(len(flows)), Grouping("hosts"),
            live_table(console.app.time.frame.flows),
        ).rows  # fmt: skip
        await console.app.action_command("flow.filter port:1")
        (last,) = hosts["id"][hosts["flows"] == 2]
        await console.app.turn_to("flows", GroupKey(Grouping("hosts"), int(last)))
        assert state(console, "flow.group") == "10.0.0.3"
        assert state(console, "flow.filter") == ""


async def test_the_past_shows_its_groups_and_lines_exactly() -> None:
    async with desk(view="conversations") as console:
        await console.feed(*BUSY)
        await console.press("space")
        frozen = console.lines[1:-1]
        for _ in range(6):
            await console.feed(conversation(1, 3, 3))
        assert console.lines[1:-1] == frozen
        await console.press("space")
        assert console.lines[1:-1] != frozen
        await console.app.action_command("time.back 6")
        await console.still()
        assert console.lines[1:-1] == frozen


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, "Service Local Remote In bit/s Out Both▼ 1 min"),
        (120, "Service Local Remote In bit/s Out Both▼ 1 min Idle Packets Bytes"),
        (200, "Service Local Remote In bit/s Out Both▼ 1 min Idle Packets Bytes Age In pkt/s"
              " Out pkt/s TCP flags Proto"),
    ],
)  # fmt: skip
async def test_wider_screens_have_more_columns(width: int, titles: str) -> None:
    async with desk(width, 24, view="conversations") as console:
        await console.feed(*BUSY, flow(7, 1))
        assert " ".join(console.header).startswith(titles)
        # Most conversations have this host's address, but a multicast group is not this host's.
        other = flow(8, 9000)
        other["destination"][0, :4] = (224, 0, 0, 251)
        await console.feed(*BUSY, other)
        assert width == 80 or "224.0.0.251:443" in rows(console)[0][1]
