"""Owners and sockets on screen 3: columns, groups, filters, detail; of the present and the past."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.commands.flow_view import OWNER_KINDS, Grouping
from app.console.dialogs.explain import _shortened
from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame
from app.console.live.owners import LIVE_SOCKET, LiveOwners, OwnerView, owned
from app.console.live.paths import LivePaths
from app.console.screens.flows.rows import GroupedFlows, live_table
from app.console.screens.flows.screen import FlowsScreen, shown_rows
from app.console.screens.flows.selection import Opened
from app.console.screens.paths.untraced import untraced
from app.explain.model import ExplainedHop, ExplainedPlace, Explanation
from app.outputs.filtering import flow_table
from bpf.arrays import Array
from bpf.errors import TextError
from probes.filter.owners import LIMITS, OWNER_FIELDS, needs_owners
from probes.flow.filter import FlowFilter
from probes.flow.grouping import group
from probes.flow.records import FLOW
from probes.snapshot import REMOVED, Event, Rest
from probes.sockets.records import SOCKETS_TABLE, By, Limit, Reason
from tests.app.console.fake import Desk, becomes, conversation, desk
from tests.app.console.fake_plane import FakePlane
from tests.support.console.feed import Flows, window
from tests.support.console.owners import POSTGRES, WEB, Process, owner_tables, sockets_for

SECOND = 10**9
CRON = Process("cron", 77, "cron.service")
PROCESSES = WEB, WEB._replace(pid=813), POSTGRES, CRON


def made(count: int = 600, seed: int = 1) -> tuple[Array, Array]:
    """Flows of dtype FLOW, and sockets of most of them: owned, or not for several reasons."""
    rows = Flows(count, paired=True, seed=seed).next(SECOND)
    talks = group(rows, "conversations").rows
    choice = np.random.default_rng(seed).choice(
        [1, 2, 3, 4, -int(Reason.REFUSED), -int(Reason.FORWARDED)], len(talks)
    )
    sockets = sockets_for(
        rows, choice, rtt_us=4000, limit=Limit.RECEIVER, segments=100, retransmitted=2
    )
    return rows, sockets[:-20]


def views(rows: Array, sockets: Array) -> tuple[LiveFlows, OwnerView]:
    flows, owners = LiveFlows(), LiveOwners()
    taken = window(rows, end_ns=SECOND)
    flows.add(taken)
    for table in owner_tables(taken, sockets, PROCESSES):
        owners.add(table)
    return flows, owners.view()


def test_words_of_limits_are_those_of_the_sockets() -> None:
    assert tuple(limit.label for limit in Limit if limit) == LIMITS


@pytest.mark.parametrize("kind", OWNER_KINDS)
def test_groups_by_owner_are_exact_sums_with_rows_for_each_reason(kind: str) -> None:
    rows, sockets = made()
    flows, owners = views(rows, sockets)
    view = flows.view()
    table = live_table(view, owners=owners)
    groups = GroupedFlows(view, np.arange(len(view.rows)), Grouping(kind), table)
    assert groups.column("bytes").sum() == rows["bytes"].sum()
    assert groups.column("packets").sum() == rows["packets"].sum()
    assert groups.rows["flows"].sum() == len(group(rows, "conversations").rows)
    texts = shown_rows(groups).texts()
    assert {"no owner: refused", "no owner: forwarded", "no owner yet"} <= set(texts)
    known = {"processes": 3, "units": 3, "containers": 2, "pods": 2, "users": 3}[kind]
    assert len(texts) == len(set(texts)) == known + 3
    for at in range(len(groups.rows)):
        opened = Opened(groups.by, groups.rows[at : at + 1], texts[at])
        assert (opened.mask(view.rows, table.owned) == (groups.of == at)).all()
    shown = shown_rows(groups)
    for place, column in enumerate(shown.spec.columns):
        if not column.drawn:
            assert shown.ordered(place, descending=True).rows == len(shown.values(place))


@pytest.mark.parametrize(
    ("text", "owners"),
    [("proc:nginx", {1, 2}), ("process:NGINX", {1, 2}), ("proc:/^post/", {3}), ("pid:813", {2}),
     ("user:postgres", {3}), ("unit:cron.service", {4}), ("container:db", {3}), ("pod:shop", {3}),
     ("!proc:nginx pid>0", {3, 4}), ("limit:receiver proc:cron", {4}), ("limit:loss", set()),
     ("retrans>1% pid:77", {4}), ("retrans>2%", set()), ("rtt>3.9ms rtt<5 pid:901", {3})],
)  # fmt: skip
def test_filters_find_the_flows_of_an_owner(text: str, owners: set[int]) -> None:
    rows, sockets = made()
    flows, known = views(rows, sockets)
    table = live_table(flows.view(), owners=known)
    passed = FlowFilter.parse(text).mask(table)
    numbers = table.owned.field("owner")
    assert set(numbers[passed].tolist()) == owners
    assert passed.sum() == np.isin(numbers, list(owners)).sum()


OF_OWNERS = {
    "proc": "x", "process": "/x/", "pid": "1", "user": "root", "unit": "x", "container": "x",
    "pod": "x", "limit": "loss", "retrans": "0-1", "rtt": "1ms",
}  # fmt: skip


@pytest.mark.parametrize("field", OWNER_FIELDS)
def test_no_flow_passes_before_an_owner_is_known(field: str) -> None:
    shown = FlowFilter.parse(f"{field}:{OF_OWNERS[field]}")
    rows, _ = made()
    for kept in (rows, rows[:0]):
        flows = LiveFlows()
        flows.add(window(kept, end_ns=SECOND))
        for table in (live_table(flows.view()), flow_table(window(kept))):
            assert not shown.mask(table).any()


def test_a_capture_and_a_policy_cannot_know_owners() -> None:
    found = FlowFilter.parse("tcp proc:nginx")
    assert needs_owners(found.root) == "proc:nginx"
    assert not needs_owners(FlowFilter.parse("tcp rtt>1").root)
    with pytest.raises(TextError, match="'proc:nginx' can't choose what is captured"):
        found.to_c()
    with pytest.raises(TextError, match="can't select packets"):
        found.conjunctions()


def test_a_socket_stays_for_a_minute_and_is_idle_without_packets() -> None:
    rows, sockets = made(100)
    owners = LiveOwners()
    first, later, last = sockets.copy(), sockets[:1].copy(), sockets[:0]
    later["retransmitted"], later["rtt_us"] = 50, 9000
    for number, (end, part) in enumerate(((1, first), (6, later), (62, last)), 1):
        taken = window(rows, number, seconds=1, end_ns=end * SECOND)
        for table in owner_tables(taken, part, PROCESSES):
            owners.add(table)
        view = owners.view()
        by_seen = dict(zip(*np.unique(view.sockets["seen_ns"] // SECOND, return_counts=True),
                           strict=True))  # fmt: skip
        assert by_seen == [{1: len(sockets)}, {1: len(sockets) - 1, 6: 1}, {6: 1}][number - 1]
        newest = view.sockets["seen_ns"] == 6 * SECOND
        if number == 2:
            assert (view.sockets["limit"][~newest] == Limit.IDLE).all()
            assert view.sockets["limit"][newest] == Limit.RECEIVER
            shares = view.sockets["recent_retransmitted"] / view.sockets["recent_segments"]
            assert shares[~newest] == pytest.approx(0.02)
            assert 0.02 < shares[newest] < 0.5
    assert len(view.owners) == len(set(view.sockets["owner"].tolist()) - {0})
    assert (np.diff(view.sockets["id"].astype("f8")) >= 0).all()


@pytest.mark.parametrize("lacking", [{}, {"cut": True}, {"rest": (Rest("egress", 1, 1, 60),)}])
def test_a_socket_that_is_left_out_is_not_idle(lacking: Mapping[str, Any]) -> None:
    """Nobody asked for it, or a stream sends only the sockets of the largest flows."""
    rows, sockets = made(100)
    owners = LiveOwners()
    for number in range(1, 6):
        later, taken = number > 1, window(rows, number, end_ns=number * SECOND)
        for table in owner_tables(taken, sockets[: 0 if later else None], PROCESSES):
            lacks = lacking if later and table.metric == SOCKETS_TABLE else {}
            owners.add(replace(table, **lacks))
    view = owners.view()
    frame = Frame(LiveFlows().view(), LivePaths().view(), (), owners=view)
    assert (view.sockets["limit"] == Limit.IDLE).any() == (not lacking)
    assert any(one.idle for one in untraced(frame)) == (not lacking)


def test_a_join_of_ten_thousand_flows_takes_little_and_is_made_once_a_frame() -> None:
    rows, sockets = made(10_000)
    flows, owners = views(rows, sockets)
    view = flows.view()
    taken = []
    for _ in range(5):
        owned.cache_clear()
        begun = time.thread_time()
        found = owned(view, owners)
        taken.append(time.thread_time() - begun)
    assert owned(view, owners) is found
    assert (found.at >= 0).sum() > 9_900
    print(f"join of 10,000 flows: {min(taken) * 1e3:.2f} ms")
    # Three times what a quiet machine takes.
    assert min(taken) < 0.006
    assert LIVE_SOCKET.itemsize <= 240


async def fed(console: Desk, *flows: Array, choice: list[int], **numbers: object) -> None:
    """Publish a window of flows, and the owners of their conversations."""
    await console.feed(*flows)
    taken = next(s for s in reversed(console.controller.history.snapshots("flow")))
    sockets = sockets_for(taken.rows, np.array(choice), **numbers)
    for table in owner_tables(taken, sockets, PROCESSES):
        console.controller.publish(table)
    console.app.refresh_view()
    await console.still()


def in_order(*flows: Array) -> list[int]:
    """Last bytes of the far addresses of conversations, in the order of their sockets."""
    rows = np.concatenate(flows, dtype=FLOW)
    return [int(row[3]) for row in group(rows, "conversations").rows["far"]]


@pytest.mark.slow
async def test_process_and_limit_are_columns_where_there_is_room() -> None:
    talks = conversation(1, 300, 30), conversation(2, 100, 10), conversation(3, 50, 5)
    owner = {1: 1, 2: -int(Reason.FORWARDED), 3: 3}
    choice = [owner[number] for number in in_order(*talks)]
    async with desk(width=140, view="conversations") as console:
        await console.feed(*talks)
        assert "Process" not in console.lines[1]
        await fed(console, *talks, choice=choice, limit=Limit.QUEUE, holders=3)
        assert "Process" in console.lines[1]
        assert "Limited by" in console.lines[1]
        found = "\n".join(console.lines[2:5])
        assert "nginx+2" in found
        assert "(forwarded)" in found
        assert "postgres+2" in found
        assert "queue" in found
        await console.press("f1")
        assert "Owned" in console.text
        await console.press("escape")
        await console.type("/proc:nginx")
        await console.press("enter")
        assert "nginx" in console.lines[2]
        assert "postgres" not in console.text
        # Every view of owners, by the command in the singular, or by v.
        await console.press("escape")
        await console.type(":flow.group process")
        await console.press("enter")
        assert console.lines[1].split()[0] == "Process"
        found = "\n".join(console.lines[2:6])
        assert "no owner: forwarded" in found
        # Texts begin at the left edge of their column.
        assert all(
            line.startswith((" ", "n", "p")) and not line.startswith("   ")
            for line in console.lines[2:5]
        )
        assert "nginx" in found
        await console.app.action_command("flow.open")
        await console.still()
        screen = cast("FlowsScreen", console.app.screen)
        assert screen.shown.opened is not None
        assert screen.shown.opened.text == "nginx"
        assert console.app.tapes.state_of("flow.process") == "nginx"
        assert console.app.tapes.state_of("flow.limit") == "queue"
    async with desk(width=80, height=24, view="conversations") as console:
        await fed(console, *talks, choice=choice)
        assert "Process" in console.lines[1]
        assert "Limited by" not in console.lines[1]
        await console.press("1")
        assert "Process" in console.text
        assert "nginx" in console.text


async def test_the_past_has_its_own_owners() -> None:
    talk = conversation(1, 300, 30)
    async with desk(width=140, view="conversations") as console:
        await fed(console, talk, choice=[1])
        await fed(console, talk, choice=[3])
        assert "postgres" in console.text
        assert "nginx" not in console.text
        await console.press("left_square_bracket")
        assert "nginx" in console.text
        assert "postgres" not in console.text


async def test_a_filter_of_owners_says_that_nobody_looks_for_them() -> None:
    async with desk(width=140, view="conversations") as console:
        await console.feed(conversation(1, 300, 30))
        await console.type("/proc:nginx")
        await console.press("enter")
        assert "proc:nginx needs owners: :owners.look on" in console.strip


async def test_the_detail_names_owner_certainty_verdict_and_round_trips() -> None:
    talk = conversation(1, 300, 30)
    numbers = {
        "limit": Limit.QUEUE, "limit_s": 12, "queue_us": 80_000, "rwnd": 0.02, "busy": 0.98,
        "segments": 1000, "retransmitted": 3, "cwnd": 42, "delivery_rate": 1_250_000,
        "holders": 2,
    }  # fmt: skip
    async with desk(width=140, view="conversations") as console:
        for rtt in (20_000, 40_000, 84_000):
            await fed(console, talk, choice=[1], cookie=9, rtt_us=rtt, **numbers)
        await console.press("d")
        for said in (
            "nginx+1 pid 812, web.service, by its open descriptor",
            "queue +80.0 ms, since 12 s: packets wait",
            "84.0 ms, 80.0 ms above the least",
            "10.0 Mbit/s delivered, cwnd 42, 0.3 % retransmitted",
            "had data 98.0 %; waited: receiver 2.0 %, buffer 0 %",
        ):  # fmt: skip
            assert said in console.detail
        bars = next(line for line in console.detail.splitlines() if "above the least" in line)
        assert set(bars) & set("▃▄▅▆▇█")
        await fed(console, talk, choice=[1], cookie=9, reason=Reason.SEVERAL, by=By.LISTENER)
        assert "perhaps nginx pid 812, web.service, which listens" in console.detail
        # A group by owner has rates by its last windows.
        await console.type(":flow.group unit")
        await console.press("enter")
        assert "Unit         web.service" in console.detail


async def test_the_overview_has_the_worst_verdicts_and_the_owned_share() -> None:
    talks = conversation(1, 300, 30), conversation(2, 100, 10), conversation(3, 50, 5)
    owner = {1: 1, 2: 1, 3: 3}
    choice = [owner[number] for number in in_order(*talks)]
    limit = {1: Limit.QUEUE, 2: Limit.QUEUE, 3: Limit.APPLICATION}
    limits = [limit[number] for number in in_order(*talks)]
    sent = [number * -1000 + 9000 for number in in_order(*talks)]
    async with desk(width=120, first="overview") as console:
        numbers = {"limit": limits, "queue_us": 80_000, "sent": sent, "limit_s": 12}
        await fed(console, *talks, choice=choice, **numbers)
        said = "nginx (web.service) waits for 10.0.0.1: queue +80.0 ms, for 12 s"
        await becomes(console, lambda: said in console.text)
        assert "and 1 other connection" in console.text
        assert "postgres" not in console.lines[2]
        assert "owned 100 %" in console.strip
        # A listener whose queue is full.
        full = {"state": 10, "near_port": 443, "rqueue": 129, "wqueue": 128}
        await fed(console, talks[0], choice=[1], **full)
        await becomes(console, lambda: "the queue of port 443 is full" in console.text)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_enter_explains_a_flow_and_begins_to_trace_its_path(width: int, height: int) -> None:
    talk = conversation(1, 300, 30)
    plane = FakePlane()
    async with desk(width=width, height=height, view="conversations", controller=plane) as console:
        numbers = {"cookie": 9, "rtt_us": 84_000, "limit_s": 12, "queue_us": 80_000}
        await fed(console, talk, choice=[1], limit=Limit.QUEUE, segments=100, **numbers)
        await console.press("enter")
        await becomes(console, lambda: "queue" in console.text and "Why" in console.text)
        sentence = str(console.app.tapes.state_of("flow.explanation"))
        assert sentence.startswith("nginx (web.service)")
        assert ("trace", "10.0.0.1 (6, 40001, 443)") in plane.asked
        text = console.text
        for said in ("Who", "Why", "Where", "Lost", "pid 812", "esc closes"):
            assert said in text, text
        # The page follows the windows.
        await fed(console, talk, choice=[3], limit=Limit.RECEIVER, rwnd=1.0, **numbers)
        await becomes(console, lambda: "postgres (shop) is limited by the receiver" in console.text)
        await console.press("escape")
        assert not console.app.tapes.state_of("flow.explanation")
        assert isinstance(console.app.screen, FlowsScreen)


async def test_a_read_only_console_explains_without_a_trace() -> None:
    plane = FakePlane()
    plane.read_only = "changes are refused here"
    async with desk(width=100, view="conversations", controller=plane) as console:
        await fed(console, conversation(1, 300, 30), choice=[1])
        await console.press("enter")
        await becomes(console, lambda: "changes are refused here" in console.text)
        assert not [asked for asked in plane.asked if asked[0] == "trace"]
        await console.press("T")
        assert console.complaints == ["changes are refused here"]


def test_a_page_without_room_keeps_the_hops_around_the_queue() -> None:
    place = ExplainedPlace(hop=7, hops=tuple(map(_hop, range(1, 10))))
    found = cast("Explanation", SimpleNamespace(where=place))
    lines = ["sentence", *(f"hop {hop.hop}" for hop in place.hops)]
    assert list(_shortened(lines, found, 11)) == lines
    shown = ["sentence", "hop 6", "hop 7", "hop 8", "6 more hops: T shows the path"]
    assert list(_shortened(lines, found, 5)) == shown


def _hop(number: int) -> ExplainedHop:
    return ExplainedHop(number, "", "", None, 0.0, 1, 0)


@pytest.mark.parametrize("view", ["conversations", "directions"])
async def test_owners_that_nobody_looks_for_leave_the_screen(view: str) -> None:
    talk = conversation(1, 300, 30)
    async with desk(width=140, view=view) as console:
        await fed(console, talk, choice=[1])
        assert "nginx" in console.text
        console.controller.publish(Event.now("info", "sockets", REMOVED))
        await becomes(console, lambda: "nginx" not in console.text)
        assert "Process" not in console.lines[1]
