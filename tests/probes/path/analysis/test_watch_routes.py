"""S3.20: routes of whole paths, poll by poll: changes, balancing, silence, pauses."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.records import PATH, PathRowKind
from tests.probes.path.analysis.simulated import (
    DESTINATION,
    SECOND,
    START,
    Flow,
    Hop,
    Times,
    after,
    at,
    events,
    idle,
    in_turn,
    of,
    path,
    plus,
    polls,
    probes,
    raw,
    router,
    said,
    summary_of,
    told,
    unanswered,
)


def detour(moment: float, first: int, hops: int = 7, end: int = 6) -> list[Hop]:
    """Other routers from `moment` and hop `first` on; a longer path if `end` < `hops`."""
    made = path(hops)
    for number in range(first, hops + 1):
        made[number - 1].routers = after(moment, number, 20 + number)
    made[-1].times = unanswered(idle(30), 0, moment) if end < hops else idle(30)
    return made


@pytest.mark.parametrize("moment", [6.0, 6.02, 6.1, 6.2])
def test_a_detour_is_told_at_once_hop_by_hop(moment: float) -> None:
    found = events(told(Flow(detour(moment, 4), end=14)))
    changes = of(found, PathRowKind.RESPONDER)
    assert changes["hop"].tolist() == [4, 5, 6]
    assert [row.tobytes() for row in changes["responder"]] == [router(20 + h) for h in (4, 5, 6)]
    assert [row.tobytes() for row in changes["previous"]] == [router(h) for h in (4, 5, 6)]
    # All in the poll in which there is a second answer of each.
    assert {at(row) for row in changes} == {np.ceil((moment + 0.021) * 4) / 4}
    assert all(moment <= at(row, "since_ns") <= moment + 0.011 for row in changes)
    longer = of(found, PathRowKind.LONGER)
    assert longer[["hop", "amount", "folded"]].tolist() == [(7, 1, 1)]
    assert at(longer[0]) <= moment + 0.5
    route = of(found, PathRowKind.ROUTE)
    assert route[["hop", "other_hop", "flows", "amount", "amount_ns"]].tolist() == [(4, 6, 1, 1, 0)]
    assert at(route[0]) <= moment + 0.8
    assert len(found) == 5


def test_a_detour_of_slow_probes_is_told_by_its_first_answer() -> None:
    hops = detour(30.0, 4, hops=6, end=6)
    rows = told(Flow(hops, end=60, rate=0.7))
    changes = events(rows)
    assert changes[["kind", "hop"]].tolist() == [
        *((PathRowKind.RESPONDER, hop) for hop in (4, 5, 6)),
        (PathRowKind.ROUTE, 4),
    ]
    for change in changes[:3]:
        assert at(change) - at(change, "since_ns") <= 0.25
    assert changes["other_hop"][3] == 6
    assert at(changes[3]) - at(changes[3], "since_ns") <= 4


def test_a_detour_to_a_shorter_path_is_told_and_its_end_is_not_silent() -> None:
    made = path(7)
    for number in (4, 5, 6):
        made[number - 1].routers = after(6.0, 20 + number, number)
    made[6].times = unanswered(idle(30), 6.0)
    found = events(told(Flow(made, end=14)))
    assert of(found, PathRowKind.RESPONDER)["hop"].tolist() == [4, 5, 6]
    assert of(found, PathRowKind.SHORTER)[["hop", "amount", "folded"]].tolist() == [(6, 1, 1)]
    assert of(found, PathRowKind.ROUTE)[["hop", "other_hop", "amount"]].tolist() == [(4, 6, -1)]
    assert len(found) == 5


@pytest.mark.parametrize(("per_answer", "longer"), [(150, 0), (1, 1)])
def test_a_path_grows_by_a_hop_that_answers_not_by_one_that_rarely_does(
    per_answer: int, longer: int
) -> None:
    """Probes beyond the destination are not answered either: no route change tells them apart."""

    def times(seconds: Array, rng: np.random.Generator) -> Array:
        turn = np.arange(len(seconds)) % per_answer == 0
        return np.where((seconds > 6) & turn, 30e3, np.nan)

    found = events(told(Flow([*path(6), Hop(times)], end=14)))
    assert of(found, PathRowKind.LONGER)["hop"].tolist() == [7] * longer
    assert len(found) == longer


@pytest.mark.parametrize("rate", [3, 10, 20, 50, 100])
def test_a_destination_that_begins_to_answer_makes_no_path_longer(rate: float) -> None:
    """Its routers stay silent; its first answers come in one poll, or in several."""
    dark = [Hop(unanswered(idle(), 0)) for _ in range(3)]
    there = int.from_bytes(raw(DESTINATION)[2:4], "big")
    for begin in (6, 6.2):
        last = Hop(unanswered(idle(), 0, begin), routers=there)
        found = told(Flow([*path(2), *dark, last], end=10, rate=rate))
        assert len(events(found)) == 0


def test_a_detour_with_another_delay_is_a_shift_and_no_queue() -> None:
    slower = [
        Hop(
            plus(hop.times, lambda s: np.where(s > 10.1, 8e6, 0.0)),
            after(10.1, number, 20 + number),
        )
        if number >= 4
        else hop
        for number, hop in enumerate(path(), 1)
    ]
    found = events(told(Flow(slower, end=25)))
    assert of(found, PathRowKind.RESPONDER)["hop"].tolist() == [4, 5, 6]
    assert of(found, PathRowKind.SHIFT)[["hop", "folded"]].tolist() == [(4, 1)]
    (amounts,) = of(found, PathRowKind.ROUTE_AMOUNTS)
    assert amounts["amount_ns"] == pytest.approx(8e6, rel=0.05)
    assert at(amounts) <= 10.1 + 3.5
    assert len(found) == 6


def test_a_path_that_ends_at_the_destination_is_shorter_there() -> None:
    rows = probes(Flow(path(7), end=12))
    rows["responder"][rows["hop"] == 7] = np.frombuffer(raw(DESTINATION), "u1")
    early = (rows["hop"] == 6) & (rows["sent_ns"] < START + 6 * SECOND)
    rows["responder"][rows["hop"] == 6] = np.frombuffer(raw(DESTINATION), "u1")
    rows["responder"][early] = np.frombuffer(router(6), "u1")
    analysis = Analysis()
    found = events(np.concatenate([analysis.add(*poll) for poll in polls(rows)], dtype=PATH))
    assert found[["kind", "hop", "amount"]].tolist() == [
        (PathRowKind.RESPONDER, 6, 0),
        (PathRowKind.SHORTER, 6, 1),
        (PathRowKind.ROUTE, 6, -1),
    ]


def test_late_answers_of_the_old_path_are_no_change() -> None:
    """The old path has a queue of 300 ms, the new one none: new answers overtake old ones."""
    slow: Times = plus(idle(), lambda s: np.where(s < 6.0, 300e6, 0.0))
    hops = [*path(3), Hop(slow, after(6.0, 4, 24))]
    found = of(told(Flow(hops, end=10)), PathRowKind.RESPONDER, PathRowKind.BALANCED_PACKETS)
    assert found[["kind", "hop"]].tolist() == [(PathRowKind.RESPONDER, 4)]


def by(way: int, port: int, **others: float) -> Flow:
    """Another router serves hop 3 of this flow than of the others."""
    hops = path()
    hops[2].routers = way
    return Flow(hops, port, **others)  # type: ignore[arg-type]


def test_flows_that_take_different_paths_are_told_once() -> None:
    rows = told(by(3, 40000, end=20), by(30, 40001, end=20), by(3, 40002, end=20, begin=5))
    found = events(rows)
    # Both ways end with the same routers, equally fast.
    found, alike = found[:2], found[2:]
    assert alike["kind"].tolist() == [PathRowKind.BRANCH]
    assert said(alike) == []
    assert found[["kind", "hop", "flows", "alternatives"]].tolist() == [
        (PathRowKind.BALANCED, 3, 1, 2),
        (PathRowKind.BALANCED, 3, 1, 2),
    ]
    assert {row.tobytes() for row in found["responder"]} == {router(3), router(30)}
    assert set(summary_of(rows, 3)["alternatives"]) == {2}
    assert set(summary_of(rows, 2)["alternatives"]) == {1}
    # Each flow has its own router in its own rows.
    for port, way in ((40000, 3), (40001, 30), (40002, 3)):
        for row in summary_of(rows, 3, port):
            assert row["responder"].tobytes() == router(way)


def test_flows_one_after_the_other_are_not_balanced() -> None:
    assert len(events(told(by(3, 40000, end=5), by(30, 40001, begin=5.1, end=15)))) == 0


def test_a_detour_of_several_flows_is_not_balancing() -> None:
    flows = [Flow(detour(6.1, 4, 6, 6), port, end=12, rate=30) for port in range(40000, 40005)]
    found = events(told(*flows))
    assert set(found["kind"]) == {PathRowKind.RESPONDER, PathRowKind.ROUTE}
    assert of(found, PathRowKind.ROUTE)[["hop", "other_hop", "flows"]].tolist() == [(4, 6, 5)]
    assert len(found) == 5 * 3 + 1


def test_many_short_flows_are_not_told() -> None:
    """Twenty side by side at any time, each with four probes a hop."""
    flows = [
        by(3 + number % 2 * 27, 10_000 + number, begin=number / 20, end=number / 20 + 1, rate=4)
        for number in range(100)
    ]
    assert len(events(told(*flows))) == 0


@pytest.mark.parametrize("rate", [100, 5])
def test_balancing_packet_by_packet_is_told_once_and_is_no_route_change(rate: float) -> None:
    hops = [*path(2), Hop(idle(), in_turn(3, 30, 31)), *path(6)[3:]]
    rows = told(Flow(hops, end=60, rate=rate))
    found = of(rows, PathRowKind.BALANCED_PACKETS)
    assert found["hop"].tolist() == [3]
    pair = {found["responder"][0].tobytes(), found["previous"][0].tobytes()}
    assert len(pair & {router(3), router(30), router(31)}) == 2
    assert len(of(rows, PathRowKind.RESPONDER)) <= (0 if rate == 100 else 2)
    assert summary_of(rows, 3)["alternatives"][-1] == 3


def test_a_hop_that_falls_silent_is_told_and_that_it_answers_again() -> None:
    hops = [*path(2), Hop(unanswered(idle(), 5, 12)), *path(6)[3:]]
    silent, back = events(told(Flow(hops, end=16)))
    assert (silent["kind"], silent["hop"], silent["amount"]) == (PathRowKind.SILENT, 3, 1)
    assert at(silent, "since_ns") == pytest.approx(5, abs=0.02)
    assert at(silent) <= 5 + 1.5 + 3 + 0.5  # silence, timeout, two polls
    assert (back["kind"], back["hop"]) == (PathRowKind.ANSWERS, 3)
    assert at(back) <= 12.5
    assert back["amount_ns"] == pytest.approx(7e9, abs=3e7)


def test_a_router_whose_answers_another_flow_gets_is_not_silent() -> None:
    """It limits them. Without any answer it is silent, for each flow."""
    hops = [*path(2), Hop(unanswered(idle(), 5, 12)), *path(6)[3:]]
    assert len(events(told(Flow(hops, 40000, end=16), Flow(path(6), 40001, end=16)))) == 0
    both = events(told(Flow(hops, 40000, end=16), Flow(hops, 40001, end=16)))
    silent = both[both["kind"] == PathRowKind.SILENT]
    assert sorted(silent[["hop", "source_port"]].tolist()) == [(3, 40000), (3, 40001)]


def test_an_outage_is_told_at_its_first_hop_only() -> None:
    hops = [*path(2), *[Hop(unanswered(idle(), 5, 12)) for _ in range(4)]]
    silent, back = events(told(Flow(hops, end=16)))
    assert (silent["kind"], silent["hop"], silent["amount"]) == (PathRowKind.SILENT, 3, 4)
    assert (back["kind"], back["hop"]) == (PathRowKind.ANSWERS, 3)


def test_loss_for_a_second_is_no_silence() -> None:
    hops = [*path(2), *[Hop(unanswered(idle(), 5, 6)) for _ in range(4)]]
    assert len(events(told(Flow(hops, end=12)))) == 0


def test_a_hop_that_never_answered_is_not_told() -> None:
    hops = [*path(2), Hop(unanswered(idle(), 0)), *path(5), Hop(unanswered(idle(), 0))]
    assert len(events(told(Flow(hops, end=12)))) == 0


def test_a_pause_of_the_application_is_told_when_it_is_over() -> None:
    found = events(told(Flow(path(), end=15, pause=(8, 9.5))))
    assert found["kind"].tolist() == [PathRowKind.GAP]
    assert found["amount_ns"][0] == pytest.approx(1.5e9, abs=2e7)
    assert at(found[0], "since_ns") == pytest.approx(8, abs=0.02)
    assert at(found[0]) <= 9.75


def test_usual_pauses_are_none() -> None:
    """One probe in two seconds."""
    slow = told(Flow(path(1), end=80, rate=0.5))
    assert len(of(slow, PathRowKind.GAP)) == 0


def test_an_outage_is_no_pause() -> None:
    """Probes were sent; that they were lost is known by their timeout, after the next answers."""
    hops = [Hop(unanswered(hop.times, 8, 10)) for hop in path()]
    assert len(of(told(Flow(hops, end=20)), PathRowKind.GAP)) == 0


def test_a_pause_of_one_of_two_flows_is_not_certain() -> None:
    """Its packets may have come when no probe was due."""
    rows = told(Flow(path(), 40000, end=16), Flow(path(), 40001, end=16, pause=(8, 9.5)))
    assert len(events(rows)) == 0


def test_a_pause_of_both_of_two_flows_is_told() -> None:
    flows = [Flow(path(), port, end=16, pause=(8, 9.5)) for port in (40000, 40001)]
    found = events(told(*flows))
    assert 1 <= len(of(found, PathRowKind.GAP)) == len(found)
