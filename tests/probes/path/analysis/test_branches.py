"""Whole paths by branch (S3.20): flows that a router sends different ways, and their times."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.events.words import describe
from probes.path.records import DESTINATION_HOP, PATH, PathRowKind
from tests.probes.path.analysis.simulated import (
    Flow,
    Hop,
    idle,
    of,
    path,
    plus,
    polls,
    probes,
    said,
    told,
)

PARTED = (103, 203)
"""Numbers of the two routers of hop 3."""


def flows_by(*levels_us: float, seconds: float = 25.0, rate: float = 5.0) -> list[Flow]:
    """Eight flows over two routers at hop 3. Behind it `levels_us` are added for each router."""
    made = []
    for number in range(8):
        way = number % 2
        hops = path(5)
        hops[2] = Hop(idle(30.0), PARTED[way])
        hops[3:] = [Hop(idle(300.0 + levels_us[way])) for _ in hops[3:]]
        made.append(Flow(hops, port=40000 + number, end=seconds, rate=rate))
    return made


def compared(*flows: Flow, seed: int = 1) -> Array:
    return of(told(*flows, seed=seed), PathRowKind.BRANCH)


@pytest.mark.slow
def test_a_slower_branch_is_told_once_with_its_size_at_the_farthest_hop() -> None:
    rows = compared(*flows_by(0.0, 1000.0, seconds=60))
    assert len(rows) == 1
    (row,) = rows
    assert (row["hop"], row["amount"], row["flows"]) == (5, 3, 4)
    assert abs(abs(int(row["amount_ns"])) - 1_000_000) < 20_000
    assert row["statistic"] > 0.95
    assert row["p_value"] < 1e-9
    ((severity, text),) = said(rows)
    assert severity == "info"
    assert text.startswith("10.94.6.2 from hop 3 on: hop 5 is 1.00 ms ")
    assert ", p < 1e-9, " in text


@pytest.mark.slow
def test_branches_of_one_speed_are_a_row_without_an_event() -> None:
    for seed in range(3):
        (row,) = compared(*flows_by(0.0, 0.0, seconds=40), seed=seed)
        assert row["statistic"] < 0.2
        assert not said(np.array([row], PATH))
        assert ": hop 5 is as far by" in describe(row)[1]


@pytest.mark.slow
def test_a_branch_that_becomes_slower_is_told_again() -> None:
    fast, slow = flows_by(0.0, 0.0, seconds=80, rate=20)[:2]
    step = plus(idle(300.0), lambda seconds: np.where(seconds > 40, 3e6, 0), noise_ms=0)
    slow.hops[3:] = [Hop(step), Hop(step)]
    rows = compared(fast, slow)
    assert [row["statistic"] > 0.2 for row in rows] == [False, True]


def test_the_flows_own_round_trips_are_compared_first() -> None:
    flows = flows_by(0.0, 0.0)
    for flow, level in zip(flows, (500.0, 900.0) * 4, strict=True):
        flow.hops[4] = Hop(idle(level), 6)
    rows = probes(*flows)
    rows["hop"][rows["hop"] == 5] = DESTINATION_HOP
    analysis = Analysis()
    found = np.concatenate([analysis.add(some, now_ns) for some, now_ns in polls(rows)])
    (row,) = of(found, PathRowKind.BRANCH)
    assert row["hop"] == DESTINATION_HOP
    assert abs(abs(int(row["amount_ns"])) - 400_000) < 20_000
    assert "the destination is 400 us " in said(np.array([row], PATH))[0][1]


def test_one_way_has_no_branches() -> None:
    assert not len(compared(*(Flow(path(5), port=40000 + n, end=25) for n in range(4))))


def test_a_destination_that_answers_probes_is_no_router_of_a_branch() -> None:
    flows = [Flow(path(6), port=40000 + number, end=25) for number in range(4)]
    rows = probes(*flows)
    at_end = (rows["hop"] == 6) & (rows["source_port"] == 40003)
    rows["responder"][at_end] = rows["destination"][at_end]
    analysis = Analysis()
    found = np.concatenate([analysis.add(some, now_ns) for some, now_ns in polls(rows)])
    assert not len(of(found, PathRowKind.BRANCH, PathRowKind.BALANCED))
