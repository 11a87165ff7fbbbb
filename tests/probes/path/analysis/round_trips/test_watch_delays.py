"""S3.20: queues and levels of whole paths, poll by poll."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.records import PathRowKind
from tests.probes.path.analysis.simulated import (
    SECOND,
    START,
    Flow,
    Hop,
    Times,
    at,
    events,
    idle,
    of,
    path,
    plus,
    queue_at,
    router,
    sawtooth,
    told,
    unanswered,
    wide_area,
)


@pytest.mark.parametrize("number", [1, 4, 6])
@pytest.mark.parametrize("rate", [100, 5])
def test_a_queue_is_told_at_its_hop_with_begin_and_end(number: int, rate: float) -> None:
    begin, end = (6, 12) if rate == 100 else (20, 40)
    hops = queue_at(path(), number, lambda s: sawtooth(s, begin, end))
    rows = told(Flow(hops, end=end + 8, rate=rate))
    queue, over = events(rows)
    assert (queue["kind"], queue["hop"]) == (PathRowKind.QUEUE, number)
    assert queue["other_hop"] == number - 1
    assert queue["previous"].tobytes() == (router(number - 1) if number > 1 else bytes(16))
    assert (over["kind"], over["hop"]) == (PathRowKind.QUEUE_OVER, number)
    block = max(5 / rate, 0.5) + 0.25
    assert begin - block <= at(queue, "since_ns") <= begin + 0.6 + block
    assert at(queue) <= begin + 0.6 + 3 * block
    assert 40e6 < queue["amount_ns"] <= 205e6
    assert end + 3 - block <= at(over) <= end + 3 + 3 * block
    assert 150e6 < over["amount_ns"] <= 205e6
    during = of(rows, PathRowKind.SUMMARY)
    during = during[(during["at_ns"] > queue["at_ns"]) & (during["at_ns"] < START + end * SECOND)]
    there = during[during["hop"] == number]["amount_ns"]
    assert 80e6 < np.median(there) < 205e6
    assert (during[during["hop"] != number]["amount_ns"] > 20e6).mean() < 0.02


@pytest.mark.slow
def test_a_queue_far_away_is_told_at_its_hop() -> None:
    hops = queue_at(path(10, wide_area()), 7, lambda s: sawtooth(s, 20, 40))
    found = events(told(Flow(hops, end=50, rate=50)))
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.QUEUE, 7), (PathRowKind.QUEUE_OVER, 7)]


def test_a_hop_that_is_slow_to_answer_is_no_queue() -> None:
    """Its control plane is: hops behind it are as quick as ever."""

    def busy(seconds: Array) -> Array:
        return np.where((seconds > 8) & (seconds < 30), 30e6 * (1 + np.sin(seconds)), 0.0)

    hops = [*path(2), Hop(plus(idle(), busy)), *path(6)[3:]]
    assert len(events(told(Flow(hops, end=40)))) == 0


def test_the_hop_before_a_queue_may_be_silent() -> None:
    hops = queue_at(path(), 4, lambda s: sawtooth(s, 5, 15))
    hops[3] = Hop(unanswered(idle(), 0))
    found = events(told(Flow(hops, end=22)))
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.QUEUE, 5), (PathRowKind.QUEUE_OVER, 5)]
    assert found["other_hop"][0] == 3


def test_a_hop_that_fell_silent_before_clears_no_queue() -> None:
    """The hop's last answer is older than the queue."""
    hops = queue_at(path(), 4, lambda s: sawtooth(s, 10))
    hops[4] = Hop(unanswered(idle(), 4))
    found = events(told(Flow(hops, end=16)))
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.SILENT, 5), (PathRowKind.QUEUE, 4)]


@pytest.mark.parametrize(("rate", "end"), [(100, 30), (2, 120)])
def test_the_end_of_a_queue_from_before_the_flow_is_no_shift(rate: float, end: float) -> None:
    """It had 50 ms when the flow began; more came, and all of it went."""

    def delay(seconds: Array) -> Array:
        return np.where(seconds < end, 50e6, 0.0) + sawtooth(seconds, end / 2, end)

    found = events(told(Flow(queue_at(path(), 4, delay), end=1.3 * end, rate=rate)))
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.QUEUE, 4), (PathRowKind.QUEUE_OVER, 4)]


def test_a_flow_that_begins_in_a_queue_is_told_by_what_others_know() -> None:
    hops = queue_at(path(), 4, lambda s: sawtooth(s, 10))
    rows = told(Flow(hops, 40000, end=9), Flow(hops, 40001, begin=12, end=20))
    found = of(rows, PathRowKind.QUEUE)
    assert found[["source_port", "hop"]].tolist() == [(40001, 4)]
    assert found["amount_ns"][0] > 70e6
    alone = of(told(Flow(hops, 40001, begin=12, end=13.9)), PathRowKind.QUEUE)
    assert len(alone) == 0


@pytest.mark.parametrize("amount", [5, -5])
def test_another_level_is_told_at_the_first_hop_that_has_it(amount: float) -> None:
    def step(seconds: Array) -> Array:
        return np.where((seconds > 15.1) == (amount > 0), abs(amount) * 1e6, 0.0)

    found = events(told(Flow(queue_at(path(), 4, step, noise_ms=0.02), end=30)))
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.SHIFT, 4)]
    assert found["amount_ns"][0] == pytest.approx(amount * 1e6, abs=2e5)
    assert 14.5 <= at(found[0], "since_ns") <= 15.8
    assert at(found[0]) <= 19


def cable(level_ms: float, tail_us: float, outliers: float) -> Times:
    """Through programs that busy hosts schedule late now and then."""

    def times(seconds: Array, rng: np.random.Generator) -> Array:
        made: Array = level_ms * 1e6 + rng.gamma(2, tail_us / 6, len(seconds)) * 1e3
        late = rng.random(len(seconds)) < 0.3
        made[late] += rng.exponential(tail_us, int(late.sum())) * 1e3
        late = rng.random(len(seconds)) < outliers
        made[late] += rng.uniform(5e5, 5e6, int(late.sum()))
        return made

    return times


def cables(tail_us: float = 150, outliers: float = 0.01) -> list[Hop]:
    return [Hop(cable(level, tail_us, outliers)) for level in (0.02, 1, 3, 7, 13.4)]


@pytest.mark.parametrize("amount", [1, 1.2, 5])
@pytest.mark.parametrize(("tail", "outliers", "seed"), [(150, 0.01, 0), (600, 0.05, 1)])
def test_a_constant_step_is_never_a_queue(
    amount: float, tail: float, outliers: float, seed: int
) -> None:
    def step(seconds: Array) -> Array:
        return np.where((seconds > 12.13) & (seconds < 25), amount * 1e6, 0.0)

    hops = queue_at(cables(tail, outliers), 4, step, noise_ms=0)
    found = events(told(Flow(hops, end=35), seed=seed))
    assert {(kind, hop) for kind, hop in found[["kind", "hop"]].tolist()} <= {
        (PathRowKind.SHIFT, 4)
    }
    assert len(found) == 2 or amount < 2


@pytest.mark.parametrize("rate", [12, 25, 100])
def test_a_flow_that_fills_a_queue_from_its_begin_on_tells_no_later_one(rate: float) -> None:
    for seed in range(2):
        hops = queue_at(cables(), 4, lambda s, seed=seed: sawtooth(s, 0.02 * seed, 30))  # type: ignore[misc]
        found = events(told(Flow(hops, end=12, rate=rate), seed=seed))
        assert found[["kind", "hop"]].tolist() == [(PathRowKind.QUEUE, 4)]
