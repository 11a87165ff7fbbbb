"""Screen 2 as an operator sees it (S3.20): paths, hops, time lines and detail."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from app.console.screens.paths.detail import PathDetail
from app.console.screens.paths.rows import hop_columns
from app.console.screens.paths.screen import PathsScreen
from probes.path.records import PATH, PathRowKind
from tests.app.console.fake import becomes, flow
from tests.app.console.fake_paths import LAB, FakeHop, FakePath, table
from tests.app.console.screens.paths.tracer import UDP, tracer
from tests.support.console.feed import window
from widgets.sparkline import LOST, MARK
from widgets.tones import Tone


async def test_a_row_a_hop_with_every_number() -> None:
    path = FakePath([FakeHop(2.0, ("10.0.0.1",), noise=0), FakeHop(40.0, ("10.0.1.1",), loss=0.25)])
    async with tracer(path, length=2) as t:
        header = " ".join(t.desk.lines[4].replace("─", " ").split())
        titles = "Hop▲ Host Loss Adds ms Last ms Median p95 Jitter Recv/sent last"
        assert header.startswith(titles)
        first, second, end = (t.cells(number) for number in (1, 2, 3))
        names = ("hop", "host", "loss", "adds", "last", "median", "p95", "jitter", "count", "min")
        said = ["1", "10.0.0.1", "0 %", *["2.00"] * 4, "0.000", "200/200", "2.00"]
        assert [first[name] for name in names] == said
        assert (second["host"], second["loss"]) == ("10.0.1.1", "25.0 %")
        assert float(second["median"]) == pytest.approx(40, rel=0.02)
        assert float(second["adds"]) == pytest.approx(38, rel=0.02)
        assert first["share"].strip() == "▍"
        assert second["share"].strip() == "███████▋"
        assert second["count"] == "150/200"
        assert [end[name] for name in names[1:9]] == ["10.94.6.2", *["-"] * 7]
        assert "no round trip" in end["line"]


@pytest.mark.slow
async def test_all_time_lines_share_one_scale_and_time_runs_to_the_right() -> None:
    path = FakePath([FakeHop(10.0, ("10.0.0.1",), noise=0), FakeHop(80.0, ("10.0.1.1",), noise=0)])
    async with tracer(path, length=2) as t:
        assert "up to 100 ms" in t.desk.lines[4]
        # At once, though the columns had other widths.
        t.hops.columns = hop_columns(("x" * 40,), 1.0, 0)
        cast("PathsScreen", t.desk.app.screen)._show_hops()
        (title,) = (each.title for each in t.hops.columns if each.id == "line")
        assert "up to 100 ms" in title
        assert t.line(1).strip() == "▁" * 5
        assert t.line(2).strip() == "▇" * 5
        path.with_hop(1, rtt=80.0)
        await t.play(path, seconds=2)
        assert t.line(1).strip() == "▁" * 5 + "▇"
        assert not t.line(1).endswith(" ")


async def test_a_cell_of_the_past_stays_as_it_is_until_all_move_together() -> None:
    path = FakePath([FakeHop(10.0, ("10.0.0.1",), noise=0)])
    async with tracer(path, length=1, seconds=0) as t:
        for second in range(9):
            path.with_hop(1, rtt=(10.0, 10.0, 90.0, 90.0)[second % 4])
            await t.play(path)
        before = t.line(1)
        assert before.strip() == "▁█▁█▁"
        await t.play(path)
        assert t.line(1) == before
        await t.play(path)
        assert t.line(1)[:-1] == before[1:]


async def test_losses_are_seen_and_those_that_a_later_hop_clears_are_muted() -> None:
    path = FakePath([*LAB[:5], FakeHop(17.3, ("10.94.5.2",), loss=0.1)])
    async with tracer(path) as t:
        assert t.row(4)[1:5] == ["no", "answer", "100", "%"]
        assert set(t.line(4).strip()) == {LOST}
        assert t.tones(4) == {Tone.MUTED}
        assert Tone.LOST not in t.tones(5)
        assert t.tones(6) == {Tone.LOST}
        tones = [t.hops.source.tones(n) for n in (4, 5)]
        assert [tone[2] for tone in tones] == [Tone.MUTED, Tone.BAD]
        path.with_hop(6, loss=1.0)
        await t.play(path, seconds=2)
        assert t.line(6).endswith(LOST)
        assert Tone.BAD in t.tones(6)


async def test_a_change_of_route_is_marked_where_it_happened_and_told() -> None:
    path = FakePath(LAB)
    async with tracer(path) as t:
        path.with_hop(2, routers=("10.94.8.2",))
        at = t.now_ns
        await t.play(path, seconds=4)
        await t.find_out(
            path.change(
                PathRowKind.RESPONDER,
                2,
                at + 10,
                since_ns=at,
                responder="10.94.8.2",
                previous="10.94.1.2",
            )
        )
        assert t.row(2)[1:3] == ["10.94.8.2", "+1"]
        assert t.line(2).index(MARK) == len(t.line(2)) - 2
        assert MARK not in t.line(1) + t.line(3)
        assert "another way 3 s ago, hop 2" in t.desk.lines[2]
        await t.desk.press("j", "enter")
        assert "answered by 10.94.8.2, was 10.94.1.2" in t.detail


async def test_a_queue_is_pointed_out_at_its_hop_until_it_is_over() -> None:
    path = FakePath(LAB)
    async with tracer(path) as t:
        await t.find_out(path.change(PathRowKind.QUEUE, 5, t.now_ns, amount_ns=160_000_000))
        assert "160 ms of queueing at hop 5" in t.desk.lines[2]
        assert t.tones(5) == {Tone.WARN}
        await t.desk.pilot.resize_terminal(80, 24)
        await t.desk.press("enter")
        await becomes(t.desk, lambda: "160 ms of queueing at hop 5" in t.desk.strip)
        assert "Destination or flow" not in t.desk.text
        assert Tone.WARN not in t.tones(6)
        await t.find_out(path.change(PathRowKind.QUEUE_OVER, 5, t.now_ns))
        assert "queueing" not in t.desk.text
        assert Tone.WARN not in t.tones(5)


async def test_flows_are_told_apart_and_chosen_by_key() -> None:
    path = FakePath(LAB)
    other = FakePath((*LAB[:5], FakeHop(99.0, ("10.94.9.2",))), flow=UDP)
    far = FakePath(LAB[:2], destination="10.9.9.9")
    async with tracer(path, other, far) as t:
        names = [" ".join(line.split()[:4]) for line in t.desk.lines[2:6]]
        assert names[0].startswith("10.94.6.2 2 flows")
        assert names[1:3] == ["tcp 40001 to 443", "udp 5004 to 9000"]
        assert names[3].startswith("10.9.9.9")
        assert t.row(6)[1:3] in (["10.94.5.2", "+1"], ["10.94.9.2", "+1"])
        await t.desk.press("n", "n")
        assert t.row(6)[1:3] == ["10.94.9.2", "+1"]
        assert t.cells(6)["median"].startswith("9")
        await t.desk.press("n")
        assert t.hops.source.rows == 7
        await t.desk.press("p", "p", "p", "p")
        assert t.hops.source.cells(1)[1] == "10.94.1.2"
        assert "3 destinations" not in t.desk.strip
        assert "2 destinations" in t.desk.strip


@pytest.mark.slow
async def test_the_detail_tells_routers_labels_totals_and_follows_the_cursor() -> None:
    async with tracer(FakePath(LAB)) as t:
        await t.desk.press("j", "j", "enter")
        for words in (
            "10.94.2.2", "10.94.7.2", "50.0 % of answers", "MPLS label 16004, class 0, TTL 1",
            "200 sent in ", "0 lost (0 %)", "Hop 3", "median 5.", "200 answers",
        ):  # fmt: skip
            assert words in t.detail, words
        await t.desk.press("j")
        assert "no answer" in t.detail
        assert "200 lost (100 %)" in t.detail
        await t.desk.press("j")
        assert "later hops lose none" in t.detail
        await t.desk.press("end")
        assert "10.94.6.2" in t.detail
        assert "no round trip of the flow" in t.detail
        await t.desk.press("escape")
        assert not t.desk.app.screen.query_one(PathDetail).is_open


async def test_branches_are_compared_where_they_part_and_where_they_meet() -> None:
    """S3.20: by the Kolmogorov-Smirnov test."""
    async with tracer(FakePath(LAB), width=200, length=6) as t:
        made = np.zeros(2, PATH)
        made["version"], made["kind"], made["protocol"] = 4, PathRowKind.BRANCH, 6
        made["destination"][:, :4] = (10, 94, 6, 2)
        made["responder"][:, :4], made["previous"][:, :4] = (10, 94, 7, 2), (10, 94, 2, 2)
        made["hop"], made["amount"], made["answered"] = 5, 3, 900
        made["statistic"], made["p_value"] = (0.1, 0.9), (0.5, 0.0)
        made["amount_ns"] = 0, 2_000_000
        await t.find_out(made)
        await t.desk.press("j", "j", "enter")
        words = "hop 5 is 2.00 ms slower by 10.94.7.2"
        assert t.detail.count("Compare") == 1
        assert words in t.detail
        await t.desk.press("j", "j")
        assert words in t.detail
        await t.desk.press("k")
        assert "Compare" not in t.detail


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
async def test_it_fits_with_and_without_detail(width: int, height: int) -> None:
    async with tracer(FakePath(LAB), FakePath(LAB, flow=UDP), width=width, height=height) as t:
        header = t.desk.lines[4]
        for title in ("Hop", "Host", "Loss", "Adds ms", "Median", "p95", "ms"):
            assert title in header
        assert ("Recv/sent" in header) == ("Jitter" in header) == (width >= 100)
        # The way is a picture, and on a tall screen the detail is always there.
        assert " me " in t.desk.lines[3]
        assert "10.94.6.2" in t.desk.lines[3]
        assert t.desk.app.screen.query_one(PathDetail).display == (height >= 30)
        assert t.desk.lines[2].split()[:4] == ["10.94.6.2", "▸", "2", "flows"]
        for word in ("T Trace", "x Stop", "n Next", "space Pause", "? Keys", "q Quit"):
            assert word in t.desk.lines[-1]
        await t.desk.press("enter")
        await t.desk.pilot.pause()
        assert t.hops.size.height >= 8
        assert "median" in t.detail
        assert "answers" in t.detail
        assert "1  10.94.0.254" in t.desk.text


async def test_a_silent_hop_in_front_of_nothing_known_and_a_destination_without_packets() -> None:
    path = FakePath(LAB)
    async with tracer(path, length=0) as t:
        assert t.row(4)[1:3] == ["no", "answer"]
        assert "?  10.94.6.2" in t.desk.text
        t.plane.paths["192.0.2.9"] = replace(t.plane.paths["10.94.6.2"], destination="192.0.2.9")
        await becomes(t.desk, lambda: "waits for packets to it" in t.desk.text)
        await t.desk.press("n")
        assert "nothing has been sent to it since tracing began" in t.desk.text
        of_flow = replace(t.plane.paths["192.0.2.9"], flows=(UDP,))
        t.plane.paths["192.0.2.9"] = of_flow
        await becomes(t.desk, lambda: "idle: no packet yet" in t.desk.text)
        idle = flow(1, 10, proto=17, ago=25)
        idle["destination"][0, :4], idle["destination_port"] = (192, 0, 2, 9), UDP.destination_port
        idle["source_port"] = UDP.source_port
        await t.desk.feed(idle)
        assert "The flow is idle since 25 s." in t.desk.text
        assert "No probe goes out until it sends a packet." in t.desk.text
        t.plane.paths["192.0.2.9"] = replace(of_flow, packets=3, unprobed={"fragments": 3})
        await becomes(t.desk, lambda: "no answer yet to " in t.desk.text)
        assert "no router has answered yet" in t.desk.text
        # The screen drops the numbers of an ended flow.
        t.plane.paths["192.0.2.9"] = replace(t.plane.paths["192.0.2.9"], flows=(UDP,), matched=5)
        await becomes(t.desk, lambda: t.desk.text.count("no packets any more") == 2)


async def test_a_paused_view_stays_and_can_be_looked_at() -> None:
    path = FakePath(LAB)
    async with tracer(path) as t:
        await t.desk.press("space")
        frozen = t.desk.lines[1:]
        path.with_hop(1, rtt=500.0)
        del t.plane.paths[path.destination]
        await t.play(path, seconds=3)
        await t.desk.pilot.pause(0.3)
        assert t.desk.lines[1:] == frozen
        await t.desk.press("j", "enter")
        assert "200 sent" in t.detail
        await t.desk.press("space")
        await becomes(t.desk, lambda: "tracing has ended" in t.desk.text)
        assert "up to 500 ms" in t.desk.text


async def test_results_that_were_overwritten_are_called_so_and_the_flows_window_stays_last() -> (
    None
):
    async with tracer(FakePath(LAB)) as t:
        t.plane.publish(window(flow(1, 10), end_ns=t.now_ns))
        t.plane.publish(table(FakePath(LAB).second(t.now_ns), t.now_ns, window=9, lost=12))
        await t.still()
        await becomes(t.desk, lambda: "lost 12" in t.desk.strip)
        last = t.desk.app.time.frame.last
        assert last is not None
        assert last.probe == "flow"
        await t.desk.press("6")
        assert "results lost in window 9: 12 overrun" in t.desk.text


async def test_losses_marks_and_silence_are_told_apart_without_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    path = FakePath([*LAB[:5], FakeHop(17.3, ("10.94.5.2",), loss=0.1)])
    async with tracer(path) as t:
        strips = t.desk.app.screen._compositor.render_strips()

        def hanging(number: int) -> int:
            """Cells of a hop's time line that are drawn in reverse."""
            y = next(n for n, line in enumerate(t.desk.lines) if line.split()[:1] == [str(number)])
            parts = (
                s for s in strips[y] if s.style and s.style.reverse and "▁" <= s.text[0] <= "█"
            )
            return sum(len(part.text) for part in parts)

        assert hanging(6) == 5
        assert hanging(2) == hanging(5) == 0
        colours = {s.style.color for strip in strips for s in strip if s.style and s.style.color}
        assert all(c.triplet and len(set(c.triplet)) == 1 for c in colours)
