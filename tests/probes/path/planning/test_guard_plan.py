"""Which probes are whole, in networks where guarded ones pass or fail."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.options import MAX_HOPS, Guard, Guarded, PathOptions
from probes.path.planning.extent import GuardPlan
from probes.path.probing_plan import hops_of, mask_within
from probes.path.records import HOP, MeasuredBy, ProbeOutcome

SECOND = 1_000_000_000
START = 100 * SECOND
TCP, UDP = 6, 17
EVERY = mask_within(1, MAX_HOPS)


def rows(protocol: int, hops: range, count: int, *, whole: bool, answered: bool) -> Array:
    made = np.zeros(len(hops) * count, HOP)
    made["hop"] = np.repeat(np.array(hops), count)
    made["protocol"], made["whole"] = protocol, whole
    made["outcome"] = ProbeOutcome.ANSWERED if answered else ProbeOutcome.UNANSWERED
    return made


def test_tries_beyond_the_path_are_whole_and_guarded_in_turn() -> None:
    plan = GuardPlan(PathOptions())
    turns = []
    for _ in range(4):
        plan.decide(0b11 << 3, 2, START)
        turns.append(hops_of(plan.whole))
    assert turns == [(1, 2, 3, 4), (1, 2), (1, 2, 3, 4), (1, 2)]


@pytest.mark.parametrize(
    ("options", "mask"),
    [(PathOptions(guarded=Guarded.ALL), 0), (PathOptions(guard=Guard.NONE), EVERY)],
)
def test_options_fix_the_masks(options: PathOptions, mask: int) -> None:
    plan = GuardPlan(options)
    plan.take(rows(TCP, range(1, 6), 30, whole=False, answered=True), START)
    plan.decide(1 << 7, 5, START)
    assert plan.whole == mask


def behind(hop: int, protocol: int, answered: int = 30) -> GuardPlan:
    """Guarded probes of a protocol fail behind a hop; `answered` whole TCP probes do not."""
    plan = GuardPlan(PathOptions())
    plan.take(rows(protocol, range(1, hop + 1), 30, whole=False, answered=True), START)
    plan.take(rows(protocol, range(hop + 1, 6), 30, whole=False, answered=False), START)
    plan.take(rows(TCP, range(1, 6), answered, whole=True, answered=True), START)
    plan.decide(0, 5, START)
    return plan


def test_whole_probes_of_tcp_tell_where_guarded_datagrams_fail() -> None:
    assert behind(2, UDP).stateful_hop == 2


def test_a_router_that_seldom_answers_is_no_firewall() -> None:
    """No guarded probe got one of its few answers, by chance."""
    assert behind(4, UDP, answered=3).stateful_hop == 0
    plan = behind(4, UDP)
    assert plan.stateful_hop == 4
    plan.take(rows(UDP, range(5, 6), 1, whole=False, answered=True), START + 2 * SECOND)
    plan.take(rows(UDP, range(5, 6), 90, whole=False, answered=False), START + 3 * SECOND)
    plan.take(rows(TCP, range(5, 6), 90, whole=True, answered=True), START + 3 * SECOND)
    plan.decide(0, 5, START + 3 * SECOND)
    assert plan.stateful_hop == 0


def test_answers_to_the_finder_tell_where_guarded_datagrams_fail() -> None:
    plan = GuardPlan(PathOptions())
    plan.take(rows(UDP, range(1, 3), 30, whole=False, answered=True), START)
    plan.take(rows(UDP, range(3, 8), 30, whole=False, answered=False), START)
    assert plan.stateful_hop == 0
    found = rows(UDP, range(3, 6), 10, whole=True, answered=True)
    found["measured_by"] = MeasuredBy.ECHO_BESIDE_THE_FLOW
    plan.take(found, START)
    assert plan.stateful_hop == 2


def test_guarded_probes_are_tried_again_where_they_failed() -> None:
    plan = behind(2, TCP)
    assert hops_of(plan.whole) == (1, 2, 3, 4, 5)
    plan.decide(0, 5, 132 * SECOND)
    assert hops_of(plan.whole) == (1, 2, 3, 4)
    plan.take(rows(TCP, range(5, 6), 1, whole=False, answered=True), 132 * SECOND)
    plan.decide(0, 5, 133 * SECOND)
    assert hops_of(plan.whole) == (1, 2, 3, 4, 5)
    assert plan.stateful_hop == 0


def test_guarded_probes_fail_only_after_half_a_minute_without_an_answer() -> None:
    """A router answers few probes: a run of luck for whole ones is no firewall."""
    plan = GuardPlan(PathOptions())
    plan.take(rows(UDP, range(1, 6), 30, whole=False, answered=True), START)
    lost = rows(UDP, range(4, 6), 90, whole=False, answered=False)
    whole = rows(TCP, range(4, 6), 90, whole=True, answered=True)
    for seconds, failing in ((29, 0), (31, 3)):
        now = START + seconds * SECOND
        plan.take(np.concatenate([lost, whole], dtype=HOP), now)
        plan.decide(0, 5, now)
        assert plan.stateful_hop == failing


def test_an_unanswered_guarded_probe_tells_nothing_where_none_was_answered() -> None:
    plan = behind(2, UDP)
    lost = rows(UDP, range(1, 6), 1, whole=False, answered=False)
    assert plan.say_nothing(lost).tolist() == [False, False, True, True, True]
    lost["whole"] = 1
    assert not plan.say_nothing(lost).any()
