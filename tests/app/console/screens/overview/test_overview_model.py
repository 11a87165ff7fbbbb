"""Contents of the overview: rates, the worst hop, policies, warnings, and lines of each block."""

from __future__ import annotations

import numpy as np
import pytest

from app.console.live.overview_feed import TRAFFIC, WINDOWS, LivePulses
from app.console.live.paths import LivePaths
from app.console.live.state import LiveMonitor
from app.console.screens.overview.model import (
    WorstHops,
    allotted,
    pressing,
    ranked,
    rates,
    span_of,
)
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.screens.triggers.model import Triggers
from bpf.arrays import Array
from probes.flow.records import FLOW
from probes.monitor.state import PolicyState
from probes.path.records import PathRowKind
from probes.path.traced import Traced
from probes.snapshot import Loss, LossReason
from tests.app.console.fake import flow
from tests.app.console.fake_paths import LAB, FakeHop, FakePath, table
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic, monitor, policy
from tests.app.console.screens.overview.traffic import FULL, SECOND_NS, some
from tests.support.console.feed import window

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
    live.add(window(np.concatenate(some(), dtype=FLOW), end_ns=5 * SECOND_NS, losses=FULL), 0.0)
    (row,) = live.view().traffic
    assert (row["in_bytes"], row["out_bytes"]) == (45 * 125, 20 * 125)
    assert row["packets"] == row["in_packets"] + row["out_packets"] == 1 + 4 + 2 + 1
    assert [row[f"{name}_packets"] for name in ("tcp", "udp", "icmp")] == [6, 1, 1]
    assert row["lost"] == 7
    assert live.view().both_ways


def test_the_monitor_tells_of_traffic_where_no_flows_are_counted() -> None:
    live, fake = LivePulses(), FakeMonitor()
    for item in fake.window({}, Traffic(tcp=6, udp=3, icmp=1, other=2, size=100)):
        live.add(item, 0.0)
    view = live.view()
    assert not view.both_ways
    assert view.traffic["in_bytes"].tolist() == [1200]
    live.add(window(np.concatenate(some(), dtype=FLOW)), 0.0)
    assert live.view().traffic is live.view().flows


def test_what_was_shown_stays_and_memory_is_bounded() -> None:
    live = LivePulses()
    rows = flow(1, 8)
    for number in range(1, 3 * WINDOWS):
        live.add(window(rows, number, end_ns=number * SECOND_NS), 0.0)
        if number == WINDOWS:
            before = live.view().traffic
            kept = before.copy()
    assert len(live.view().traffic) == WINDOWS
    assert live.view().traffic["end_ns"].tolist() == [
        n * SECOND_NS for n in range(2 * WINDOWS, 3 * WINDOWS)
    ]
    assert (before == kept).all()
    # A probe that is started anew has no past.
    live.add(window(rows, 1, end_ns=SECOND_NS), 0.0)
    assert len(live.view().traffic) == 1


def test_losses_add_up_and_those_of_the_last_window_are_apart() -> None:
    live = LivePulses()
    for number, losses in enumerate((FULL, {}, {**FULL, LossReason.NOT_IP: Loss(9)}), 1):
        live.add(window(flow(1, 1), number, losses=losses), 0.0)
    (pulse,) = live.view().probes.values()
    assert pulse.lost.packets == 14
    assert pulse.last[LossReason.TABLE_FULL].packets == 7


def test_a_window_of_several_tables_is_one() -> None:
    live = LivePulses()
    end = 100 * SECOND_NS
    for rows in (FakePath(LAB).second(end), FakePath(LAB).summaries(end)):
        live.add(table(rows, end, window=3, lost=4), 0.0)
    assert live.view().probes["path"].last[LossReason.OVERRUN].packets == 8


def test_rates_are_of_the_last_half_second_and_lines_of_whole_cells() -> None:
    rows = traffic((1.0, 1000, 10), (1.0, 3000, 10), (0.25, 500, 4), (0.25, 1000, 6), lost=5)
    one = rates(rows, "in", 3)
    assert (one.bits, one.packets) == (24_000, 20)
    assert np.isnan(one.line[0])
    # Two seconds a cell: 1001 and 1002 end in the first, the short ones in the next.
    assert one.line[1:].tolist() == [16_000, 24_000]
    assert one.lost.tolist() == [False, False, True]
    assert one.peak == (24_000, 20), "at least the present rate"
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


def ranking(live: LivePaths) -> list[tuple[PathKey, int]]:
    taken = Paths()
    taken.take(live.view(), ())
    return [(hop.path, hop.number) for hop in ranked(taken)]


def test_the_worst_hop_loses_and_is_to_blame() -> None:
    def order(live: LivePaths) -> list[int]:
        return [number for _, number in ranking(live)]

    # The silent fourth is none of them; the fifth, which loses most, is only loath to answer.
    assert order(paths()) == [5, 3, 6, 2, 1]
    assert order(paths(loss=0.2))[0] == 2
    assert order(paths(loss=0.2, cleared=True)) == [5, 3, 6, 2, 1]
    live = paths()
    end = 110 * SECOND_NS
    live.add(table(FakePath(LAB).change(PathRowKind.QUEUE, 3, end, amount_ns=20_000_000), end))
    assert order(live)[0] == 3
    assert ranking(live)[0][0] == PathKey("10.94.6.2")
    # A path without probes is no longer bad.
    live.add(table(FakePath(LAB).second(end)[:0], end + 10 * SECOND_NS))
    assert order(live) == []


def test_a_hop_shows_the_delay_by_which_it_is_ranked() -> None:
    """A queue for a fifth of the minute is no part of the median."""
    live, worst = LivePaths(), WorstHops()
    calm = [FakeHop(1.0, ("10.0.0.1",)), FakeHop(2.0, ("10.0.1.1",)), FakeHop(8.0, ("10.0.2.1",))]
    path = FakePath(calm)
    for second in range(1, 11):
        path.with_hop(2, rtt=200.0 if second > 8 else 2.0)
        path.with_hop(3, rtt=206.0 if second > 8 else 8.0)
        live.add(table(path.second(second * SECOND_NS), (second + 1) * SECOND_NS))
    worst.take({"": live.view()}, {})
    _, shown = worst.hops(3, 10)
    assert shown["hop"].tolist() == [2, 3, 1]
    assert shown["adds"][0] == pytest.approx(0.0406, rel=0.1)
    assert shown["adds"].tolist() == sorted(shown["adds"], reverse=True)


def test_the_destinations_number_follows_the_trace_that_tells_it() -> None:
    """A replay shows one moment for long: the trace may become known after the moment."""
    live, worst = LivePaths(), WorstHops()
    path = FakePath([FakeHop(1.0, ("10.0.0.1",))], end=FakeHop(30.0, ("10.94.6.2",)))
    live.add(table(path.second(SECOND_NS), 2 * SECOND_NS))
    for traces, number in (((), -1), ((Traced("10.94.6.2", (), 3, (), (), 9, 9, 9),), 4)):
        worst.take({"": live.view()}, {"": traces})
        assert worst.hops(1, 10)[1]["ttl"].tolist() == [number]


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
