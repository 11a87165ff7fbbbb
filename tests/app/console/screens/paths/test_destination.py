"""The destination on screens 1 and 2: round trips of the flow itself, below the last router."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP, Altered, MeasuredBy, PathRowKind, ProbeOutcome
from tests.app.console.fake import becomes
from tests.app.console.fake_paths import LAB, SECOND_NS, FakeHop, FakePath, table
from tests.app.console.screens.paths.tracer import UDP, Tracer, tracer
from widgets.table.table import VirtualTable
from widgets.tones import Tone

ROUTERS = (FakeHop(2.0, ("10.0.0.1",), noise=0), FakeHop(40.0, ("10.0.1.1",), loss=0.86))
END = FakeHop(3.0, ("10.94.6.2",), noise=0)


def listed(t: Tracer, row: int = 0) -> dict[str, str]:
    """A row of the list of paths, by column."""
    names = ("path", "node", "hops", "rtt", "loss", "samples", "method", "state")
    return dict(zip(names, map(str, t.listing.source.cells(row)), strict=True))


def never_31(t: Tracer) -> None:
    assert "hop 31" not in t.desk.text.lower()
    assert not any("31" in line.split()[:2] for line in t.desk.lines)


async def test_it_has_a_line_of_its_own_with_the_flows_round_trips() -> None:
    path = FakePath(ROUTERS, end=replace(END, loss=0.25))
    async with tracer(path, length=2, width=160) as t:
        row = listed(t)
        assert (row["rtt"], row["loss"]) == ("3.00", "25.0 %")
        assert (row["samples"], row["method"]) == ("150", "ack")
        end = t.cells(3)
        assert [end[n] for n in ("hop", "host", "loss")] == ["3", "10.94.6.2", "25.0 %"]
        assert (end["last"], end["count"]) == ("3.00", "150/200")
        # The second router answers later than the destination: its slow answers add nothing.
        assert [t.cells(n)["adds"] for n in (1, 2, 3)] == ["2.00", "1.00", "0.000"]
        assert set(t.line(3).strip()) == {"▁"}
        assert t.tones(3) == {Tone.LOST}
        never_31(t)
        await t.desk.press("G", "enter")
        assert "150 round trips by ack" in t.detail
        assert "200 timed in" in t.detail
        assert "50 lost (25.0 %)" in t.detail
        assert "Destination" in t.detail
        assert "median 3.00 ms" in t.detail
        never_31(t)


async def test_answers_without_a_time_are_no_loss() -> None:
    path = FakePath(ROUTERS, end=END)
    async with tracer(path, length=2, width=160, seconds=0) as t:
        rows = path.second(t.now_ns)
        end = np.flatnonzero(rows["hop"] == DESTINATION_HOP)
        rows["received_ns"][end[:15]] = 0
        rows["outcome"][end[-1]], rows["received_ns"][end[-1]] = ProbeOutcome.UNANSWERED, 0
        t.plane.publish(table(rows, t.now_ns + SECOND_NS - 1))
        await t.still()
        row = listed(t)
        assert (row["loss"], row["samples"], row["rtt"]) == ("5.0 %", "4", "3.00")
        cells = t.cells(3)
        assert [cells[n] for n in ("host", "loss", "last")] == ["10.94.6.2", "5.0 %", "3.00"]
        assert cells["count"] == "19/20"


async def test_the_last_routers_numbers_never_stand_under_its_name() -> None:
    """A UDP flow tells nothing; what the last router loses is its own."""
    path = FakePath(ROUTERS, flow=UDP)
    async with tracer(path, length=2, width=160) as t:
        row = listed(t)
        assert (row["rtt"], row["loss"], row["samples"], row["method"]) == ("-", "-", "-", "")
        names = ("host", "loss", "adds", "last", "median", "p95", "jitter", "count")
        assert [t.cells(3)[name] for name in names] == ["10.94.6.2", *["-"] * 7]
        assert "UDP flow: nothing in it tells its round trip" in t.desk.text
        await t.desk.press("G", "enter")
        assert "UDP flow: nothing in it tells its round trip" in t.detail
        assert "0 timed" not in t.detail
        never_31(t)


async def test_flows_that_tell_it_stand_for_the_destination_and_each_for_itself() -> None:
    tcp = FakePath(ROUTERS, end=END)
    echo = FakePath(
        ROUTERS, end=replace(END, rtt=5.0), flow=TracedFlow(1, 7, 8 << 8),
        method=MeasuredBy.ICMP_ECHO,
    )  # fmt: skip
    async with tracer(tcp, echo, FakePath(ROUTERS, flow=UDP), length=2, width=160) as t:
        await t.desk.press("f")
        rows = [listed(t, number) for number in range(4)]
        assert [row["rtt"] for row in rows] == ["4.00", "5.00", "3.00", "-"]
        assert [row["method"] for row in rows] == ["ack, icmp echo", "icmp echo", "ack", ""]
        assert [row["samples"] for row in rows] == ["400", "200", "200", "-"]


async def test_a_destination_that_answers_probes_is_no_router() -> None:
    """Its answers may be limited, so they are no measure of loss."""
    path = FakePath((*ROUTERS, FakeHop(44.0, ("10.94.6.2",), loss=0.9, noise=0)), flow=UDP)
    async with tracer(path, length=2, width=160) as t:
        row = listed(t)
        assert (row["hops"], row["rtt"], row["loss"]) == ("2", "44.0", "0 %")
        assert (row["samples"], row["method"]) == ("20", "probe")
        assert t.hops.source.rows == 3
        end = [t.cells(3)[name] for name in ("hop", "host", "loss", "last")]
        assert end == ["3", "10.94.6.2", "0 %", "44.0"]


async def test_before_any_router_answers_the_flow_itself_is_known() -> None:
    path = FakePath((FakeHop(0.0, ()),), end=END)
    async with tracer(path, length=0) as t:
        assert t.hops.source.rows == 1
        assert t.row("?")[:4] == ["?", "10.94.6.2", "0", "%"]


async def test_a_queue_or_change_on_the_last_link_is_told_by_name() -> None:
    path = FakePath(LAB, end=END)
    async with tracer(path) as t:
        row = path.change(PathRowKind.QUEUE, DESTINATION_HOP, t.now_ns, amount_ns=160_000_000)
        await t.find_out(row)
        assert "160 ms of queueing at destination" in t.desk.lines[2]
        assert t.tones(7) == {Tone.WARN}
        await t.desk.press("G", "enter")
        assert "160 ms here, none before it" in t.detail
        never_31(t)
        await t.desk.press("1")
        await t.still()
        never_31(t)


async def test_overview_has_it_among_the_worst_hops() -> None:
    """A router that limits its answers is cleared by the destination's own loss."""
    routers = (ROUTERS[0], replace(ROUTERS[1], cleared=True))
    async with tracer(FakePath(routers, end=replace(END, loss=0.2)), length=2) as t:
        await t.desk.press("1")
        await becomes(t.desk, lambda: "20.0 %" in t.desk.text)
        lines = [line.split() for line in t.desk.lines]
        at = next(n for n, line in enumerate(lines) if line[:2] == ["²Worst", "hops"])
        end, first, last = lines[at + 1 : at + 4]
        assert end[:5] == ["10.94.6.2", "3", "10.94.6.2", "20.0", "%"]
        # The destination answers sooner than the second router, which thus adds less.
        assert last[:3] == ["10.94.6.2", "2", "10.0.1.1"]
        assert first[:3] == ["10.94.6.2", "1", "10.0.0.1"]
        # Enter leads to its line.
        block = t.desk.app.screen.query_one("#hops", VirtualTable)
        block.focus()
        block.move_to(0)
        await t.desk.press("enter")
        await t.still()
        assert t.hops.cursor_key == DESTINATION_HOP


async def test_the_detail_has_notes_marks_and_changes_by_middleboxes() -> None:
    path = FakePath(LAB, end=END)
    async with tracer(path, width=160) as t:
        t.plane.paths[path.destination] = replace(
            t.plane.paths[path.destination], packets=100, sent=50, unmatched=3, foreign=7,
            notes=("NAT or firewall behind hop 2",), unprobed={"fragments": 4},
        )  # fmt: skip
        rows = path.second(t.now_ns)
        rows["tos"], rows["quoted_tos"] = 46 << 2 | 2, 46 << 2 | 2
        rows["quoted_tos"][rows["hop"] == 2] = 0
        rows["altered"][rows["hop"] == 2] = Altered.IDENTIFICATION | Altered.LENGTH
        t.plane.publish(table(rows, t.now_ns + SECOND_NS - 1))
        await becomes(t.desk, lambda: "NAT or firewall behind hop 2" in t.desk.lines[2])
        await t.desk.press("j", "enter")
        detail = " ".join(t.detail.replace("│", " ").split())
        for words in (
            "DSCP 0 here, sent with DSCP 46 ECT(0)", "changed on the way here:",
            "another tracer is active: 7", "3 answers matched no probe",
            "4 packets could not be probed: fragments (4)",
        ):  # fmt: skip
            assert words.split()[0] in detail, words
        assert "DSCP 0 here" in t.detail
        assert "identification" in t.detail
        await t.desk.press("j")
        assert "DSCP" not in t.detail
        assert "changed on" not in t.detail
        await t.desk.press("G")
        assert "NAT or firewall" in t.detail


async def test_own_probes_are_a_line_of_their_own_on_flows_and_overview() -> None:
    path = FakePath(LAB, end=END)
    async with tracer(path) as t:
        for key in "3", "1":
            await t.desk.press(key)
            await t.still()
            assert "own probes" not in t.desk.text
        await t.find_out(path.own(t.now_ns - SECOND_NS - 1, probes=5, size=28, answer=57))
        for key in "3", "1":
            await t.desk.press(key)
            # Six routers: two take turns at the third hop, none answers at the fourth.
            words = "own probes 6 routers answer, 3.40 kbit/s"
            await becomes(t.desk, lambda: words in " ".join(t.desk.text.split()))  # noqa: B023
        await t.play(path, seconds=4)
        assert "own probes" not in t.desk.text


async def test_it_is_compared_sorted_and_written_like_a_hop(tmp_path: Path) -> None:
    path = FakePath(ROUTERS, end=END)
    async with tracer(path, length=2, width=160) as t:
        await t.desk.app.action_command(f"view.export {tmp_path}/hops.jsonl")
        await becomes(t.desk, (tmp_path / "hops.jsonl").exists)
        rows = [json.loads(line) for line in (tmp_path / "hops.jsonl").read_text().splitlines()]
        assert [row["hop"] for row in rows] == [1, 2, 3]
        assert rows[-1]["host"] == "10.94.6.2"
        assert rows[-1]["median_ms"] == pytest.approx(3.0)
        await t.desk.app.action_command("path.sort median")
        keys = [t.hops.source.key(row) for row in range(3)]
        assert keys == [2, DESTINATION_HOP, 1]
        await t.desk.app.action_command("path.sort hop")
        await t.desk.press("M")
        path.end = replace(END, rtt=9.0)
        await t.play(path, seconds=61)
        table = t.desk.app.screen.query_one("#hop_changes", VirtualTable)
        words = [str(cell) for cell in table.source.cells(2)]
        assert words[:3] == ["3", "10.94.6.2", "+6.00"]
        never_31(t)


async def test_short_windows_are_drawn_together_and_a_pause_shows_the_last() -> None:
    async with tracer(FakePath(ROUTERS, end=END), length=2) as t:

        async def last(rtt: float, passed: float) -> float:
            """A window `passed` seconds into the present second, with another round trip."""
            path = FakePath((replace(ROUTERS[0], rtt=rtt), *ROUTERS[1:]), end=END)
            end_ns = t.now_ns + round(passed * SECOND_NS)
            t.plane.publish(table(path.second(t.now_ns - SECOND_NS), end_ns))
            await t.still()
            return float(t.cells(1)["last"])

        assert await last(4.0, 0.1) == 4.0
        assert await last(5.0, 0.3) == 4.0
        assert await last(6.0, 0.6) == 6.0
        assert await last(7.0, 0.8) == 6.0
        await t.desk.press("space")
        await t.still()
        assert float(t.cells(1)["last"]) == 7.0
