"""Joined windows have the alarms of single windows, because only dull ones are joined."""

from __future__ import annotations

import pytest

from app.run.monitor import SHIPPED, policies_of
from probes.monitor.condition import Condition
from probes.monitor.engine import Engine
from probes.monitor.policy import Policy
from probes.monitor.selected import Estimate, SelectedMetric
from tests.probes.monitor.windows import row

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("packets > 5", True),
        ("packets > 4", False),
        ("rate(bytes) > 8kB/s", True),
        ("rate(bytes) > 7kB/s", False),
        ("packets < 1", False),
        ("not (sources on udp > 9)", False),
        ("packets on udp > 3 * baseline(60s, 2)", True),
        ("packets on udp > 3 * baseline(60s)", False),
        ("packets / flows > 2", False),
        ("packets / flows > 2 and flows > 7", True),
        ("packets / flows > 2 or flows > 7", False),
        ("min(packets, 10s) > 5", True),
        ("max(packets, 10s) > 5", False),
        ("recent_ports on tcp > 12", True),
        ("recent_ports on tcp > 11", False),
        ("top_source on tcp > 50%", False),
    ],
)
def test_a_condition_knows_whether_few_packets_can_fulfil_it(text: str, never: bool) -> None:
    assert Condition.parse(text).never_holds(5, 12) is never


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("udp_packets / packets > 80%", True),
        ("rate(packets on udp) > baseline(10s, 1/s)", True),
        ("packets < 1", False),
        ("packets == 0 and flows > 0", True),
    ],
)
def test_a_condition_knows_whether_silence_can_fulfil_it(text: str, never: bool) -> None:
    assert Condition.parse(text).never_holds(0, 0) is never


def test_no_shipped_policy_cares_for_a_quiet_window() -> None:
    engine = Engine()
    for policy in policies_of(SHIPPED, (), ())[0].policies:
        engine.set(policy, 0)
    assert engine.is_dull(5, 15)
    # A slow scan has more ports than that within a minute.
    assert not engine.is_dull(5, 16)


def test_a_policy_that_runs_or_cools_down_is_not_dull() -> None:
    engine = Engine()
    engine.set(Policy.parse_short("few: packets > 9 hold 1s cooldown 2s -> dns"), 0)
    dull = []
    for number in range(1, 7):
        dull.append(engine.is_dull(5, 0))
        engine.window(row(packets=20 if number == 2 else 1), number * SECOND, 1.0, {})
    assert dull == [True, True, False, False, False, True]


def test_joined_windows_are_as_many_with_their_mean() -> None:
    """Baselines, sums, values and shares are the same as with single windows."""
    texts = (
        "a: packets > 3 * baseline(20s, 1) -> dns",
        "b: sum(packets, 10s) > 30 and top_source on udp > 70% -> dns",
        "c: rate(packets on udp) > 8/s -> dns",
    )
    share, udp = SelectedMetric("top_source", "udp"), SelectedMetric("packets", "udp")
    told: list[list[str]] = []
    rows = []
    for joined in (1, 10):
        engine, moved = Engine(), []
        for text in texts:
            engine.set(Policy.parse_short(text), 0)
        for end in range(joined, 31, joined):
            known = {udp: Estimate(*(2.0 * joined,) * 3), share: Estimate(0.8, 0.7, 0.9)}
            moved += engine.window(row(packets=2 * joined), end * SECOND, joined, known, joined)
        known = {udp: Estimate(9, 9, 9), share: Estimate(0.8, 0.7, 0.9)}
        moved += engine.window(row(packets=14), 31 * SECOND, 1.0, known)
        told.append([f"{each.policy} {each.at_ns} {each.cause}" for each in moved])
        rows.append(engine.rows().tobytes())
    assert told[0] == told[1]
    assert rows[0] == rows[1]
    assert [each.split()[0] for each in told[0]] == ["a", "b", "c"]
