"""One change of a route is one row, with its hops, flows, length and round-trip time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.records import PathRowKind
from tests.probes.path.analysis.simulated import (
    Flow,
    Hop,
    after,
    analysed,
    at,
    events,
    idle,
    in_turn,
    of,
    path,
    plus,
    probes,
    router,
    story,
    told,
    unanswered,
)


def slower(hops: list[Hop], number: int, moment: float, more_ms: float) -> list[Hop]:
    """From a hop on, answers take more time from a moment on."""

    def step(seconds: Array) -> Array:
        return np.where(seconds >= moment, more_ms * 1e6, 0.0)

    return [
        replace(hop, times=plus(hop.times, step, 0.02)) if at >= number else hop
        for at, hop in enumerate(hops, 1)
    ]


def beside(moment: float = 10.1, *, more_ms: float = 0) -> list[Hop]:
    """Routers 3 and 4 are replaced by others; the last routers stay."""
    hops = path()
    for number in (3, 4):
        hops[number - 1] = replace(hops[number - 1], routers=after(moment, number, 20 + number))
    return slower(hops, 3, moment, more_ms) if more_ms else hops


def inserted(moment: float = 10.1, *, more_ms: float = 6.0) -> list[Hop]:
    """One more router at hop 3: later ones move on by a hop."""
    ways = {3: (3, 30), 4: (4, 31), 5: (5, 4), 6: (6, 5)}
    hops = [
        replace(hop, routers=after(moment, *ways[number])) if number in ways else hop
        for number, hop in enumerate(path(), 1)
    ]
    hops = slower(hops, 3, moment, more_ms)
    last = plus(idle(28), lambda seconds: np.full(len(seconds), more_ms * 1e6), 0.02)
    return [*hops, Hop(unanswered(last, 0, moment), 6)]


def test_routers_beside_others_are_one_change_told_at_once() -> None:
    flows = [Flow(beside(), port, end=20, rate=25) for port in range(40000, 40004)]
    found = events(told(*flows))
    (route,) = of(found, PathRowKind.ROUTE)
    assert (route["hop"], route["other_hop"], route["flows"]) == (3, 4, 4)
    assert (route["amount"], route["amount_ns"]) == (0, 0)
    assert at(route) <= 10.1 + 0.55
    assert len(found) == 4 * 2 + 1


@pytest.mark.parametrize("more_ms", [6.0, -6.0])
def test_the_round_trip_time_is_told_with_the_change(more_ms: float) -> None:
    hops = slower(beside(), 3, 0, 10)
    text = [said for _, said in story(Flow(slower(hops, 3, 10.1, more_ms), end=20))]
    assert text == [
        "10.94.6.2: route changed at hops 3-4 for tcp 40000>5201: "
        f"by 10.94.0.23, was 10.94.0.3; {'+6.02' if more_ms > 0 else '-6.00'} ms"
    ]


def test_a_longer_route_is_one_line_with_length_and_time() -> None:
    flows = [Flow(inserted(), port, end=20, rate=25) for port in range(40000, 40004)]
    said = story(*flows)
    assert [text for _, text in said] == [
        "10.94.6.2: route changed at hops 3-6 for 4 flows: "
        "by 10.94.0.30, was 10.94.0.3; one hop longer, +6.02 ms"
    ]
    assert said[0][0] <= 10.1 + 0.8


def test_another_address_of_a_router_is_no_change_of_the_route() -> None:
    hops = path()
    hops[3] = replace(hops[3], routers=after(10.1, 4, 24))
    found = events(told(Flow(hops, 40000, end=20), Flow(hops, 40001, end=20)))
    assert [row["kind"] for row in found[2:]] == [PathRowKind.ALIAS]
    assert (found["hop"][2], found["flows"][2]) == (4, 2)


@pytest.mark.parametrize(
    ("ttls", "kind", "amount"),
    [
        ((60, 60), PathRowKind.ALIAS, 0),
        ((60, 59), PathRowKind.ALIAS, 1),
        ((60, 251), PathRowKind.ROUTE, 0),
    ],
)
def test_a_router_that_starts_with_another_ttl_is_another_one(
    ttls: tuple[int, int], kind: PathRowKind, amount: int
) -> None:
    """The answers of one router start with one TTL; fewer hops are left on a longer way back."""
    hops = path()
    hops[3] = replace(hops[3], routers=after(10.1, 4, 24))
    rows = probes(Flow(hops, end=16))
    old = (rows["responder"] == np.frombuffer(router(4), "u1")).all(axis=1)
    rows["ttl"] = np.where(old, *ttls)
    (found,) = of(analysed(rows), PathRowKind.ROUTE, PathRowKind.ALIAS)
    assert (found["kind"], found["amount"]) == (kind, amount)


def test_another_address_with_another_time_is_a_change() -> None:
    hops = path()
    hops[3] = replace(hops[3], routers=after(10.1, 4, 24))
    found = events(told(Flow(slower(hops, 4, 10.1, 5), end=20)))
    (route,) = of(found, PathRowKind.ROUTE, PathRowKind.ALIAS)
    assert route["kind"] == PathRowKind.ROUTE
    assert route["amount_ns"] == pytest.approx(5e6, rel=0.1)


def test_the_last_router_alone_may_be_another_one() -> None:
    """No later hop shows that it is the same."""
    hops = path()
    hops[5] = replace(hops[5], routers=after(10.1, 6, 26))
    found = events(told(Flow(hops, end=20)))
    assert of(found, PathRowKind.ROUTE)[["hop", "other_hop"]].tolist() == [(6, 6)]


def test_a_flow_that_finds_the_change_late_tells_nothing_new() -> None:
    flows = [Flow(beside(), 40000, end=40), Flow(beside(), 40001, end=40, pause=(9, 15))]
    assert sum("route changed" in text for _, text in story(*flows)) == 1


def test_the_way_back_to_the_old_route_is_a_change_of_its_own() -> None:
    hops = path()
    for number in (3, 4):

        def routers(seconds: Array, rng: np.random.Generator, number: int = number) -> Array:
            return np.where((seconds > 10) & (seconds < 17), 20 + number, number)

        hops[number - 1] = replace(hops[number - 1], routers=routers)
    said = [text for _, text in story(Flow(hops, end=30)) if "route changed" in text]
    assert len(said) == 2
    assert "by 10.94.0.23, was 10.94.0.3" in said[0]
    assert "by 10.94.0.3, was 10.94.0.23" in said[1]


def test_balancing_by_packets_is_no_change_of_the_route() -> None:
    hops = path()
    hops[2] = replace(hops[2], routers=in_turn(3, 30))
    found = events(told(Flow(hops, end=20)))
    assert not len(of(found, PathRowKind.ROUTE, PathRowKind.ALIAS))
