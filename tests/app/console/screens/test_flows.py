"""Screen 3 as an operator sees it: order, filter, cursor, pause and detail."""

from __future__ import annotations

import re
from typing import cast

import pytest

from app.console.screens.flows.columns import FLOWS
from app.console.tables.sorted_table import SortedTable
from bpf.arrays import Array
from bpf.errors import ProbedeckError
from probes.snapshot import Loss, LossReason
from probes.tunnels import TUNNELS
from tests.app.console.fake import Desk, becomes, desk, flow


def three(first: float = 10, second: float = 30, third: float = 20) -> list[Array]:
    return [flow(1, first, proto=17), flow(2, second), flow(3, third)]


async def test_the_fastest_flow_is_first_and_every_number_is_right() -> None:
    async with desk() as console:
        assert "STARTING" in console.strip
        assert "waiting for packets" in console.text
        await console.feed(*three())
        await console.feed(*three())
        assert console.lines[2].split() == [
            "in", "tcp", "10.0.0.2:40002", "192.0.2.1:443", "30.0", "kbit/s", "4", "8",
            "7.32", "KiB", "1", "s",
        ]  # fmt: skip
        assert console.sources == [2, 3, 1]
        assert "LIVE" in console.strip
        assert "3 flows" in console.strip


_SHOWN = [column.id for column in FLOWS.columns if not column.hidden]
SORTED = _SHOWN[_SHOWN.index("rate") :] + _SHOWN[: _SHOWN.index("rate")]
"""The sort columns of key `s`, in its order: from the rate on to the right, then from the left."""


async def test_sorting_goes_through_each_column_and_can_be_reversed() -> None:
    async with desk(width=80, height=24) as console:
        await console.feed(*three())
        titles = {column.id: column.title for column in FLOWS.columns}
        for sort in (*SORTED[1:], SORTED[0]):
            await console.press("s")
            largest = FLOWS.begins_with_largest(sort)
            # Also where the table has no room for it otherwise.
            assert titles[sort] + ("▼" if largest else "▲") in console.lines[1]
        assert console.sources == [2, 3, 1]
        await console.press("S")
        assert console.sources == [1, 3, 2]
        assert "Rate▲" in console.header


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("rate", [2, 3, 1]), ("packet_rate", [1, 3, 2]), ("packets", [1, 3, 2]),
        ("bytes", [2, 3, 1]), ("source", [1, 2, 3]), ("protocol", [2, 1, 3]),
    ],
)  # fmt: skip
async def test_each_column_has_its_order(sort: str, order: list[int]) -> None:
    flows = [
        flow(1, 10, proto=17, size=50),
        flow(2, 30, size=1500),
        flow(3, 20, proto=132, size=500),
    ]
    async with desk() as console:
        await console.feed(*flows)
        for _ in range(SORTED.index(sort)):
            await console.press("s")
        assert console.sources == order


async def test_where_nothing_is_traced_an_order_by_rtt_says_how_it_is_known() -> None:
    async with desk() as console:
        await console.feed(*three())
        cast("SortedTable", console.table).order_first("rtt")
        await console.feed(*three())
        assert "no RTT is known yet: Enter traces a flow" in console.strip
        await console.press("s")
        await console.feed(*three())
        assert "no RTT" not in console.strip


async def test_vlans_and_tunnels_have_columns_while_a_flow_has_one() -> None:
    async with desk(width=160) as console:
        await console.feed(*three())
        assert "VLAN" not in console.header
        assert "Tunnel" not in console.header
        tagged, tunnelled = flow(4, 40), flow(5, 50)
        tagged["vlan"] = 7
        await console.feed(*three(), tagged)
        assert "VLAN" in console.header
        assert "Tunnel" not in console.header
        tunnelled["tunnel"], tunnelled["tunnel_id"] = TUNNELS["vxlan"], 4711
        await console.feed(*three(), tagged, tunnelled)
        assert "Tunnel id" in console.lines[1]
        assert console.lines[2].split()[-2:] == ["vxlan", "4711"]
        assert console.lines[3].split()[-1] == "7"


async def test_a_click_on_a_title_sorts_and_another_reverses() -> None:
    async with desk() as console:
        await console.feed(*three())
        at = (console.lines[1].index("Source"), 0)
        await console.pilot.click("#flows", offset=at)
        await console.pilot.pause()
        assert console.sources == [1, 2, 3]
        await console.pilot.click("#flows", offset=at)
        await console.pilot.pause()
        assert console.sources == [3, 2, 1]


async def test_the_cursor_stays_on_its_flow_wherever_it_goes() -> None:
    async with desk() as console:
        await console.feed(*three())
        await console.press("j")
        assert console.under_cursor == "10.0.0.3:40003"
        await console.feed(*three(third=99))
        assert console.sources[0] == 3
        assert console.under_cursor == "10.0.0.3:40003"
        await console.feed(*three(third=1))
        assert console.sources[-1] == 3
        assert console.under_cursor == "10.0.0.3:40003"
        await console.press("home")
        await console.feed(*three(first=500))
        assert console.under_cursor == "10.0.0.1:40001"


@pytest.mark.parametrize("keys", ["j", "j enter escape", "j j k enter escape g", "d j escape"])
async def test_the_list_stays_at_its_top_when_the_flow_under_the_cursor_ends(keys: str) -> None:
    async with desk(height=24) as console:
        rates = {number: 1000.0 - number for number in range(1, 81)}

        async def feed() -> None:
            await console.feed(*(flow(number, kbit) for number, kbit in rates.items()))

        await feed()
        await console.press(*keys.split())
        row, ended = console.table.cursor_index, console.table.cursor_key
        assert row < 3
        number = int(console.under_cursor.split(":")[0].split(".")[-1])
        for other in (number, *range(60, 70)):
            del rates[other]
        await feed()
        assert console.sources[:3] == list(rates)[:3]
        assert (console.table.cursor_index, console.table.cursor_key != ended) == (row, True)
        # Also afterwards: each window has other fastest flows.
        for step, number in enumerate(list(rates)[-5:], 5):
            rates[number] += 1000 * step
            await feed()
            assert console.sources[0] == number
            assert console.table.cursor_index in console.table.in_view


async def test_an_open_detail_goes_on_with_its_flow_when_the_list_does_not() -> None:
    async with desk(height=24) as console:
        flows = [flow(number, 1000 - number) for number in range(1, 81)]
        await console.feed(*flows)
        await console.press("d", "j")
        await console.feed(*flows[:1], *flows[2:])
        assert console.sources[:3] == [1, 3, 4]
        assert "10.0.0.2:40002" in console.detail
        await console.press("escape")
        assert console.table.cursor_index in console.table.in_view


async def test_another_order_leaves_the_cursor_on_its_flow_or_at_the_top() -> None:
    async with desk() as console:
        await console.feed(*three())
        await console.press("S")
        assert console.under_cursor == "10.0.0.1:40001"
        await console.press("j", "j", "S")
        assert console.under_cursor == "10.0.0.2:40002"
        assert console.table.cursor_index == 0


async def ask(console: Desk, key: str, text: str) -> None:
    await console.press(key)
    await console.press("ctrl+u")
    await console.type(text)
    await console.press("enter")


async def test_a_filter_hides_flows_and_is_named_until_it_is_cleared() -> None:
    async with desk() as console:
        await console.feed(*three())
        await ask(console, "slash", "udp")
        assert console.sources == [1]
        assert "1 of 3 flows" in console.strip
        assert "filter udp" in console.strip
        await ask(console, "slash", "port:9")
        assert "no flow passes the filter" in console.text
        await console.press("escape")
        assert console.sources == [2, 3, 1]
        assert "filter" not in console.strip


async def test_the_prompt_says_what_it_asks_and_which_keys_end_it() -> None:
    async with desk(width=80, height=24) as console:
        await console.press("slash")
        assert console.lines[-2].startswith(" Show only ")
        assert "Apply" in console.lines[-1]
        assert "Cancel" in console.lines[-1]
        assert "Sort" not in console.lines[-1]
        # Keys that are commands elsewhere are text here.
        await console.press("1", "slash", "C", "s", "q")
        assert console.lines[-2].startswith(" Show only 1/Csq")
        await console.press("escape", "C")
        assert console.lines[-2].startswith(" Count only ")


@pytest.mark.slow
@pytest.mark.timing
async def test_pause_freezes_rows_counts_and_detail_while_counting_goes_on() -> None:
    async with desk() as console:
        await console.feed(*three())
        await console.press("d", "space")
        frozen = console.lines[1:]
        await console.feed(
            *three(500, 600, 700), flow(4, 900), losses={LossReason.MALFORMED: Loss(7)}
        )
        assert console.lines[1:] == frozen
        assert re.search(r"PAUSED \d\d:\d\d:\d\d UTC .* 0 s ago", console.strip)
        assert "3 flows" in console.strip
        # Losses appear at once, also while paused.
        await console.pilot.pause(2.0)
        assert re.search(" [123] s ago", console.strip)
        assert "lost 7" in console.strip
        # Neither help, nor another screen, nor another order thaws it.
        await console.press("question_mark", "escape", "6", "3")
        # The footer of a screen that was just turned to comes a moment later.
        await becomes(console, lambda: console.lines[1:] == frozen)
        await console.press("escape", "S")
        assert console.sources == [1, 3, 2]
        assert "10.0 kbit/s" in console.lines[2]
        await console.press("space")
        assert console.sources == [1, 2, 3, 4]
        assert "4 flows" in console.strip


async def test_the_detail_tells_all_and_follows_the_cursor() -> None:
    async with desk() as console:
        await console.feed(*three())
        await console.feed(*three())
        await console.press("d")
        for words in (
            "tcp over IPv4, into this host", "10.0.0.2:40002", "192.0.2.1:443",
            "30.0 kbit/s, 4 packets/s", "7.32 KiB in 8 packets, 938 B each",
            "first 1 s ago, last 0 s ago", ".S..A...", "━━ rate 30.0 kbit/s", "now",
        ):  # fmt: skip
            assert words in console.detail, words
        await console.press("j")
        assert "10.0.0.3:40003" in console.detail
        assert "rate 20.0 kbit/s" in console.detail
        await console.feed(*three(), flow(4, 5))
        await console.press("G")
        assert "625 B in 1 packet, 625 B each" in console.detail
        await console.press("escape")
        assert not console.detail


@pytest.mark.parametrize(("width", "chart"), [(80, False), (120, True), (200, True)])
async def test_the_detail_leaves_room_for_the_table(width: int, chart: bool) -> None:
    async with desk(width, 24) as console:
        await console.feed(*three())
        await console.press("d")
        assert ("━━ rate" in console.detail) == chart
        assert console.table.size.height >= 13


async def test_the_detail_of_a_flow_without_rate_has_a_sound_scale() -> None:
    async with desk() as console:
        await console.feed(flow(1, 0))
        await console.feed(flow(1, 0))
        await console.press("d")
        assert "1.00 bit/s" not in console.detail
        assert "e-" not in console.detail
        assert "0 bit/s" in console.detail


async def test_an_idle_flow_is_marked_and_leaves_after_a_minute() -> None:
    async with desk() as console:
        await console.feed(flow(1, 10), flow(2, 5))
        await console.press("j", "d")
        for _ in range(4):
            await console.feed(flow(1, 10))
        assert console.lines[3].split()[-2:] == ["4", "s"]
        assert "0 bit/s" in console.lines[3]
        console.windows += 60
        await console.feed(flow(1, 10))
        assert console.sources == [1]


async def test_old_data_and_the_end_are_marked_with_the_reason() -> None:
    async with desk(width=80, height=24) as console:
        await console.feed(*three())
        console.app.hosts._states[""].last_at -= 3665
        console.app.show_status()
        await console.pilot.pause()
        assert "NO DATA FOR 1h01m" in console.strip
        console.controller.late_by = 13.0
        console.app.show_status()
        await console.pilot.pause()
        assert "SLOW LINK: 13 s LATE" in console.strip
        console.controller.late_by = 0.0
        console.controller.ended = ProbedeckError("interface eth0 went away")
        await console.feed()
        assert "ENDED" in console.strip
        assert "interface eth0 went away" in console.strip


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_filter_finds_a_small_flow_in_a_flood_and_marks_its_totals_as_lower_bounds(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """A flow with a row counts on, whatever else comes."""
    monkeypatch.setattr("app.console.live.flows.MAX_NEW_FLOWS", 2)
    flood = [flow(number, 5000 + number) for number in range(20, 40)]
    async with desk(*size) as console:
        await console.feed(flow(1, 10), *flood)
        assert "19 more not shown" in console.strip
        assert "10.0.0.1" not in console.text
        await console.press("slash")
        await console.type("host:10.0.0.1")
        await console.press("enter")
        assert "no flow with a row passes the filter yet" in console.text
        assert "19 more not shown" in console.strip
        for _ in range(3):
            await console.feed(flow(1, 10), *[one.copy() for one in flood])
        assert "1 of " in console.strip
        (row,) = (line for line in console.lines if "10.0.0.1:" in line)
        if size[0] > 80:  # at 80 columns there is no room for totals
            assert re.search(r" ≥3 +≥3\.66 KiB ", row)
            assert "at least" in row


async def test_flows_that_there_is_no_room_for_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.console.live.flows.MAX_NEW_FLOWS", 2)
    async with desk() as console:
        await console.feed(*three())
        assert "2 flows" in console.strip
        assert "1 more not shown" in console.strip
