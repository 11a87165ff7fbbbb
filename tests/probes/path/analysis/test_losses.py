"""Certain loss is reported where it begins, and a router's limit on answers is no loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.losses import HOP_LOSS, _found
from probes.path.records import DESTINATION_HOP, HOP_COUNT, MeasuredBy, PathRowKind, QueueSide
from tests.probes.path.analysis.simulated import (
    SECOND,
    START,
    Flow,
    Hop,
    Times,
    analysed,
    answering,
    at,
    events,
    idle,
    of,
    path,
    probes,
    story,
    told,
    unanswered,
)


def lossy(times: Times, share: float, begin: float = 10, end: float = 20) -> Times:
    """Some are lost, each by chance."""

    def some(seconds: Array, rng: np.random.Generator) -> Array:
        lost = (seconds >= begin) & (seconds < end) & (rng.random(len(seconds)) < share)
        return np.where(lost, np.nan, times(seconds, rng))

    return some


def losing(
    number: int, share: float, count: int = 5, begin: float = 10, end: float = 20
) -> list[Hop]:
    """Loss before a hop: for all from there on."""
    return [
        replace(hop, times=lossy(hop.times, share, begin, end)) if at >= number else hop
        for at, hop in enumerate(path(5), 1)
    ]


def limited(a_second: float, burst: int = 6) -> Times:
    """A router's bucket of answers."""

    def some(seconds: Array, rng: np.random.Generator) -> Array:
        times, tokens, before = idle()(seconds, rng), float(burst), 0.0
        for number in np.argsort(seconds).tolist():
            tokens = min(burst, tokens + (seconds[number] - before) * a_second)
            before = seconds[number]
            if tokens < 1:
                times[number] = np.nan
            else:
                tokens -= 1
        return times

    return some


@pytest.mark.parametrize("flows", [1, 4])
@pytest.mark.parametrize("number", [1, 3])
def test_loss_is_told_at_its_hop_in_some_seconds_and_its_end(number: int, flows: int) -> None:
    ports = range(40000, 40000 + flows)
    rows = told(*[Flow(losing(number, 0.05), port, end=35, rate=100 / flows) for port in ports])
    loss, over = events(rows)
    assert (loss["kind"], loss["hop"], loss["other_hop"]) == (PathRowKind.LOSS, number, number - 1)
    assert at(loss) <= 10 + 7.5  # the timeout of 3 s among them
    assert loss["flows"] == flows
    assert 10 <= at(loss, "since_ns") <= 11.5
    assert 0.01 < loss["loss_low"] < 0.05 < loss["loss_high"] < 0.2
    assert (over["kind"], over["hop"]) == (PathRowKind.LOSS_OVER, number)
    assert over["lost"] / (over["lost"] + over["answered"]) == pytest.approx(0.05, abs=0.02)
    assert 23 < at(over) <= 30


def test_many_percent_take_a_second_beside_the_timeout() -> None:
    loss = of(told(Flow(losing(4, 0.3), end=20)), PathRowKind.LOSS)[0]
    assert at(loss) <= 10 + 4.25


@pytest.mark.slow
def test_the_last_link_is_told_by_the_flow_itself() -> None:
    flow = Flow(path(5), end=30, end_to_end=Hop(lossy(idle(), 0.05)))
    loss, over = events(told(flow))
    assert (loss["hop"], loss["other_hop"]) == (DESTINATION_HOP, 5)
    assert over["kind"] == PathRowKind.LOSS_OVER
    text = next(text for _, text in story(flow) if "loss of" in text)
    assert "between 10.94.0.5 (hop 5) and the destination" in text


@pytest.mark.slow
@pytest.mark.parametrize("end_to_end", [None, Hop()])
def test_a_hop_that_loses_alone_is_not_told(end_to_end: Hop | None) -> None:
    """Also the last one: it may answer seldom from now on."""
    for number in (3, 5):
        hops = path(5)
        hops[number - 1] = Hop(lossy(idle(), 0.3))
        assert len(events(told(Flow(hops, end=30, end_to_end=end_to_end)))) == 0


def test_the_destination_clears_routers() -> None:
    """The last routers answer less from a moment on; the flow itself loses nothing."""
    flow = Flow(losing(4, 0.3), end=30, end_to_end=Hop())
    assert len(of(told(flow), PathRowKind.LOSS)) == 0


@pytest.mark.slow
def test_loss_from_the_begin_on_is_told_if_the_flow_has_it_too() -> None:
    """Otherwise routers may limit their answers."""
    hops = losing(3, 0.1, begin=0, end=100)
    assert len(events(told(Flow(hops, end=30)))) == 0
    own = Hop(lossy(idle(), 0.1, 0, 100))
    loss = events(told(Flow(hops, end=30, end_to_end=own)))
    assert loss[["kind", "hop", "other_hop"]].tolist() == [(PathRowKind.LOSS, 3, 2)]


def test_a_limited_router_before_the_loss_is_not_its_begin() -> None:
    hops = losing(4, 0.1)
    hops[2] = Hop(limited(10))
    loss = of(told(Flow(hops, end=30)), PathRowKind.LOSS)
    assert loss[["hop", "other_hop"]].tolist() == [(4, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1, 50])
def test_routers_that_limit_their_answers_lose_nothing(rate: float) -> None:
    """The last three, alike: also when the application begins to send more."""
    hops = [*path(2), *[Hop(limited(rate)) for _ in range(3)]]
    slow = Flow(hops, end=60, rate=min(rate, 10) * 0.8)
    fast = Flow(hops, begin=60, end=90, rate=100)
    assert len(of(told(slow, fast), PathRowKind.LOSS)) == 0


@pytest.mark.slow
def test_loss_is_told_at_a_rate_that_routers_answered_before() -> None:
    hops = [*path(2), *[Hop(lossy(limited(50), 0.1, 60, 90)) for _ in range(3)]]
    loss = of(told(Flow(hops, end=90, rate=20)), PathRowKind.LOSS)
    assert loss["hop"].tolist() == [3]


def test_another_router_must_show_first_that_it_answers() -> None:
    hops = path(5)
    for number in (4, 5):

        def routers(seconds: Array, rng: np.random.Generator, number: int = number) -> Array:
            return np.where(seconds < 10, number, 20 + number)

        slow: Times = lossy(idle(), 0.5, 10, 90)
        hops[number - 1] = Hop(slow, routers)
    assert len(of(told(Flow(hops, end=30)), PathRowKind.LOSS)) == 0


@pytest.mark.parametrize("seconds", [0.2, 1.0, 5.0])
def test_an_outage_is_no_rate_of_loss(seconds: float) -> None:
    hops = [
        replace(hop, times=unanswered(hop.times, 10, 10 + seconds)) if number > 2 else hop
        for number, hop in enumerate(path(), 1)
    ]
    ports = (40000, 40001, 40002)
    rows = told(*[Flow(hops, port, end=25, rate=33) for port in ports])
    assert len(of(rows, PathRowKind.LOSS)) == 0


def test_a_flow_that_is_not_answered_any_more_is_silent_not_lossy() -> None:
    """A firewall stops one of two flows."""
    hops = [
        replace(hop, times=unanswered(hop.times, 10)) if number > 3 else hop
        for number, hop in enumerate(path(), 1)
    ]
    rows = events(told(Flow(hops, 40000, end=25, rate=50), Flow(path(), 40001, end=25, rate=50)))
    assert rows[["kind", "hop", "source_port"]].tolist() == [(PathRowKind.SILENT, 4, 40000)]


@pytest.mark.slow
def test_a_little_loss_is_never_told() -> None:
    hops = [Hop(answering(idle(), 0.997)) for _ in range(6)]
    rows = told(Flow(hops, end=100, end_to_end=Hop(answering(idle(), 0.997))))
    assert len(events(rows)) == 0


def test_a_hop_that_may_lose_is_neither_end_of_the_link() -> None:
    """Hop 4 lost some by chance: it is waited for, and then left out."""
    hops = np.zeros(HOP_COUNT, HOP_LOSS)
    known = [1, 2, 3, 4, 5, DESTINATION_HOP]
    hops["last_ns"][known], hops["rate"][known] = 10**10, 100
    hops["since_ns"], hops["ended"] = 8 * 10**9, 150
    hops["score"][[4, 5, DESTINATION_HOP]] = 3.0, 14.0, 14.0

    def polls(count: int) -> Array:
        """Hops 5 and the destination each lose one of 10 probes, hop 4 one of 40."""
        made = np.zeros((count, 2, HOP_COUNT), "i8")
        made[:, 1, known], made[:, 0, [5, DESTINATION_HOP]], made[::4, 0, 4] = 10, 1, 1
        hops["recent_lost"], hops["recent"] = made.sum(axis=0)
        return made

    assert _found(hops, polls(6)) is None
    loss = _found(hops, polls(12))
    assert loss is not None
    assert (loss.before, loss.hop) == (3, 5)


@pytest.mark.parametrize("seed", [5, 7])
@pytest.mark.parametrize(
    ("trips", "side", "seconds"), [(0.03, QueueSide.THERE, 10), (0.0, QueueSide.BACK, 14)]
)
def test_three_percent_are_told_in_some_seconds_with_their_link_and_way(
    seed: int, trips: float, side: QueueSide, seconds: float
) -> None:
    """20 probes a second of each of six hops; TCP sends data again, but no acknowledgements."""
    hops = [
        replace(hop, times=lossy(hop.times, 0.03, 10, 40)) if number > 3 else hop
        for number, hop in enumerate(path(6), 1)
    ]
    end = Hop(lossy(idle(), trips, 10, 40))
    rows = probes(Flow(hops, end=30, rate=20, end_to_end=end), seed=seed)
    rows["measured_by"][rows["hop"] == DESTINATION_HOP] = MeasuredBy.TCP_ACK
    (loss,) = events(analysed(rows[rows["sent_ns"] < START + 24 * SECOND], 27))
    assert loss[["kind", "hop", "other_hop", "side"]].item() == (PathRowKind.LOSS, 4, 3, side)
    assert at(loss) <= 10 + seconds
