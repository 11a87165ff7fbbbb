"""S3.20: what is told of whole paths, poll by poll; nothing is told where nothing happens."""

from __future__ import annotations

import numpy as np
import pytest

from probes.path.analysis import Analysis
from probes.path.analysis.flows import MAX_FLOWS_OF_DESTINATION
from probes.path.records import HOP, PATH, Array, Kind, Outcome
from tests.probes.path.analysis.simulated import (
    DESTINATION,
    SECOND,
    START,
    Flow,
    Hop,
    Times,
    after,
    answering,
    at,
    ends,
    events,
    idle,
    in_turn,
    of,
    path,
    plus,
    polls,
    probes,
    queue_at,
    raw,
    router,
    sawtooth,
    told,
    unanswered,
    wide_area,
)


def summary_of(rows: Array, hop: int, port: int = 40000) -> Array:
    mine = of(rows, Kind.SUMMARY)
    chosen: Array = mine[(mine["hop"] == hop) & (mine["source_port"] == port)]
    return chosen


# Nothing happens


@pytest.mark.parametrize(
    ("hops", "seconds", "rate"),
    [
        (path(), 40, 100),
        (path(times=idle(outliers=0.05)), 60, 20),
        (path(times=idle(outliers=0.02)), 200, 1),
        (path(10, wide_area()), 60, 20),
        (path(10, wide_area(30, 5)), 60, 10),
        (path(times=answering(idle(), 0.9)), 60, 20),
    ],
    ids=["idle", "outliers", "slow", "wide area", "much jitter", "loss"],
)
def test_where_nothing_happens_nothing_is_told(
    hops: list[Hop], seconds: float, rate: float
) -> None:
    """In longer runs of such series neither: no false alarm in 43 hours of idle ones (at 100, 10 and
    1 probes/s), in 80 hours with jitter and drift, in 6 hours with loss and limited rates. By the
    rule of three: less than one in 14, 26 and 2 hours of a series. Made from these distributions,
    each time independent of the last one; not of every network.
    """
    rows = told(Flow(hops, end=seconds, rate=rate))
    assert len(events(rows)) == 0
    assert len(of(rows, Kind.SUMMARY)) > 0


# Summaries


def test_summaries_hold_every_probe_once_and_its_times() -> None:
    flow = Flow([*path(3), Hop(answering(idle(), 0.8))], end=5, rate=100)
    rows = probes(flow)
    found = told(flow)
    for hop in (1, 4):
        mine, given = summary_of(found, hop), rows[rows["hop"] == hop]
        answered = given["outcome"] == Outcome.ANSWERED
        rtts = (given["received_ns"] - given["sent_ns"])[answered]
        assert mine["sent"].sum() == len(given)
        assert mine["answered"].sum() == answered.sum()
        assert mine["lost"].sum() == (~answered).sum()
        assert mine["max_ns"].max() == rtts.max()
        assert mine["min_ns"][mine["answered"] > 0].min() == rtts.min()
        assert (np.diff(mine["at_ns"]) >= SECOND).all()
        assert (mine["responder"] == np.frombuffer(router(hop), "u1")).all()


def test_a_summary_is_of_its_own_second() -> None:
    flow = Flow(path(1), end=4, rate=50)
    rows = probes(flow)
    second = summary_of(told(flow), 1)[1]
    inside = rows[(ends(rows) > second["since_ns"]) & (ends(rows) <= second["at_ns"])]
    rtts = inside["received_ns"] - inside["sent_ns"]
    before = rows[ends(rows) <= second["since_ns"]][-1:]
    chain = np.concatenate((before["received_ns"] - before["sent_ns"], rtts))
    assert second["sent"] == len(rtts)
    assert second["last_ns"] == rtts[-1]
    assert second["median_ns"] == np.sort(rtts)[(len(rtts) - 1) // 2]
    assert second["jitter_ns"] == np.abs(np.diff(chain)).mean().astype("i8")


def test_what_was_not_sent_or_is_not_known_is_no_loss() -> None:
    rows = probes(Flow(path(1), end=1.0, rate=100))
    rows["outcome"][:10] = Outcome.DROPPED
    rows["outcome"][10:30] = Outcome.OVERRUN
    rows["outcome"][30:40] = Outcome.IN_FLIGHT
    analysis = Analysis()
    analysis.add(rows[:0], START)
    found = analysis.add(rows, START + SECOND)
    assert found[["sent", "answered", "lost", "dropped"]].tolist() == [(70, 60, 0, 10)]
    assert found["loss_low"][0] == 0


def test_a_hop_without_answers_has_no_times() -> None:
    found = summary_of(told(Flow([Hop(unanswered(idle(), 0))], end=2)), 1)
    for name in ("last_ns", "min_ns", "median_ns", "p95_ns", "max_ns", "jitter_ns"):
        assert (found[name] == -1).all()
    assert (found["loss_high"] == 1).all()
    assert not found["responder"].any()


def test_a_rate_limited_hop_is_cleared_and_a_lossy_path_is_not() -> None:
    limited = told(Flow([*path(2), Hop(answering(idle(), 0.1)), *path(6)[3:]], end=12))
    losing = [mine for mine in summary_of(limited, 3) if mine["lost"]]
    assert all(mine["cleared"] for mine in losing[1:])
    assert len(events(limited)) == 0
    lossy = told(Flow([*path(2), *[Hop(answering(idle(), 0.7)) for _ in range(4)]], end=12))
    late = of(lossy, Kind.SUMMARY)
    late = late[late["at_ns"] > START + 6 * SECOND]
    assert np.mean(late["cleared"]) < 0.1


def test_labels_are_those_of_the_last_answer() -> None:
    rows = probes(Flow(path(1), end=1))
    rows["label_count"][-1], rows["labels"][-1, 0] = 1, 0x18A1FF
    analysis = Analysis()
    analysis.add(rows[:0], START)
    found = analysis.add(rows, START + SECOND)
    assert found["label_count"][0] == 1
    assert found["labels"][0].tolist() == [0x18A1FF, 0, 0, 0]


def test_what_is_left_at_the_end_can_be_summarised() -> None:
    rows = probes(Flow(path(2), end=0.4))
    analysis = Analysis()
    assert len(analysis.add(rows, START + SECOND)) == 0
    assert analysis.summarise(START + SECOND + 1)["sent"].tolist() == [40, 40]
    assert len(analysis.summarise(START + SECOND + 2)) == 0


def test_rows_are_as_declared_and_so_are_those_that_come() -> None:
    """np.concatenate, left alone, turns ports to this machine's byte order."""
    rows = probes(Flow(path(1), 40001, end=1))
    native = np.concatenate([rows, rows[:0]])
    assert native.dtype != HOP
    analysis = Analysis()
    analysis.add(native[:0], START)
    found = analysis.add(native, START + SECOND)
    assert found.dtype == PATH
    assert found["source_port"].tolist() == [40001]


def test_rows_keep_their_dtype_and_addresses_of_ipv6() -> None:
    rows = told(Flow(path(), 40001, "fd94::6:2", end=3))
    assert rows.dtype == PATH
    assert set(rows["version"]) == {6}
    assert {row.tobytes() for row in rows["destination"]} == {raw("fd94::6:2")}
    assert set(rows["source_port"].tolist()) == {40001}


# Queues and levels


@pytest.mark.parametrize("number", [1, 4, 6])
@pytest.mark.parametrize("rate", [100, 5])
def test_a_queue_is_told_at_its_hop_with_begin_and_end(number: int, rate: float) -> None:
    begin, end = (6, 12) if rate == 100 else (20, 40)
    hops = queue_at(path(), number, lambda s: sawtooth(s, begin, end))
    rows = told(Flow(hops, end=end + 8, rate=rate))
    queue, over = events(rows)
    assert (queue["kind"], queue["hop"]) == (Kind.QUEUE, number)
    assert (over["kind"], over["hop"]) == (Kind.QUEUE_OVER, number)
    block = max(5 / rate, 0.5) + 0.25
    assert begin - block <= at(queue, "since_ns") <= begin + 0.6 + block
    assert at(queue) <= begin + 0.6 + 3 * block
    assert 40e6 < queue["amount_ns"] <= 205e6
    assert end + 3 - block <= at(over) <= end + 3 + 3 * block
    assert 150e6 < over["amount_ns"] <= 205e6
    during = of(rows, Kind.SUMMARY)
    during = during[(during["at_ns"] > queue["at_ns"]) & (during["at_ns"] < START + end * SECOND)]
    there = during[during["hop"] == number]["amount_ns"]
    assert 80e6 < np.median(there) < 205e6
    assert (during[during["hop"] != number]["amount_ns"] > 20e6).mean() < 0.02


def test_a_queue_far_away_is_told_at_its_hop() -> None:
    hops = queue_at(path(10, wide_area()), 7, lambda s: sawtooth(s, 20, 40))
    found = events(told(Flow(hops, end=50, rate=50)))
    assert found[["kind", "hop"]].tolist() == [(Kind.QUEUE, 7), (Kind.QUEUE_OVER, 7)]


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
    assert found[["kind", "hop"]].tolist() == [(Kind.QUEUE, 5), (Kind.QUEUE_OVER, 5)]


def test_a_hop_that_fell_silent_before_clears_no_queue() -> None:
    """What it answered last, it answered when there was none."""
    hops = queue_at(path(), 4, lambda s: sawtooth(s, 10))
    hops[4] = Hop(unanswered(idle(), 4))
    found = events(told(Flow(hops, end=16)))
    assert found[["kind", "hop"]].tolist() == [(Kind.SILENT, 5), (Kind.QUEUE, 4)]


@pytest.mark.parametrize("rate", [100, 5])
def test_the_end_of_a_queue_from_before_the_flow_is_no_shift(rate: float) -> None:
    hops = queue_at(path(), 4, lambda s: sawtooth(s, -5, 15))
    found = events(told(Flow(hops, end=28, rate=rate)))
    assert found[["kind", "hop"]].tolist() == [(Kind.QUEUE, 4), (Kind.QUEUE_OVER, 4)]


def test_a_flow_that_begins_in_a_queue_is_told_by_what_others_know() -> None:
    hops = queue_at(path(), 4, lambda s: sawtooth(s, 10))
    rows = told(Flow(hops, 40000, end=9), Flow(hops, 40001, begin=12, end=20))
    found = of(rows, Kind.QUEUE)
    assert found[["source_port", "hop"]].tolist() == [(40001, 4)]
    assert found["amount_ns"][0] > 70e6
    alone = of(told(Flow(hops, 40001, begin=12, end=13.9)), Kind.QUEUE)
    assert len(alone) == 0


@pytest.mark.parametrize("amount", [5, -5])
def test_another_level_is_told_at_the_first_hop_that_has_it(amount: float) -> None:
    def step(seconds: Array) -> Array:
        return np.where((seconds > 15.1) == (amount > 0), abs(amount) * 1e6, 0.0)

    found = events(told(Flow(queue_at(path(), 4, step, noise_ms=0.02), end=30)))
    assert found[["kind", "hop"]].tolist() == [(Kind.SHIFT, 4)]
    assert found["amount_ns"][0] == pytest.approx(amount * 1e6, abs=2e5)
    assert 14.5 <= at(found[0], "since_ns") <= 15.8
    assert at(found[0]) <= 19


# Routes


def detour(moment: float, first: int, hops: int = 7, end: int = 6) -> list[Hop]:
    """From `moment` on, other routers from hop `first` on, and one hop more (or, if it has none,
    one less before that)."""
    made = path(hops)
    for number in range(first, hops + 1):
        made[number - 1].routers = after(moment, number, 20 + number)
    made[-1].times = unanswered(idle(30), 0, moment) if end < hops else idle(30)
    return made


@pytest.mark.parametrize("moment", [6.0, 6.02, 6.1, 6.2])
def test_a_detour_is_told_at_once_hop_by_hop(moment: float) -> None:
    found = events(told(Flow(detour(moment, 4), end=14)))
    changes = of(found, Kind.RESPONDER)
    assert changes["hop"].tolist() == [4, 5, 6]
    assert [row.tobytes() for row in changes["responder"]] == [router(20 + h) for h in (4, 5, 6)]
    assert [row.tobytes() for row in changes["previous"]] == [router(h) for h in (4, 5, 6)]
    # All in the poll in which there is a second answer of each.
    assert {at(row) for row in changes} == {np.ceil((moment + 0.021) * 4) / 4}
    assert all(moment <= at(row, "since_ns") <= moment + 0.011 for row in changes)
    longer = of(found, Kind.LONGER)
    assert longer[["hop", "amount"]].tolist() == [(7, 1)]
    assert at(longer[0]) <= moment + 0.5
    assert len(found) == 4


def test_a_detour_of_slow_probes_is_told_by_its_first_answer() -> None:
    hops = detour(30.0, 4, hops=6, end=6)
    rows = told(Flow(hops, end=60, rate=0.7))
    changes = events(rows)
    assert changes[["kind", "hop"]].tolist() == [(Kind.RESPONDER, hop) for hop in (4, 5, 6)]
    for change in changes:
        assert at(change) - at(change, "since_ns") <= 0.25


def test_a_detour_to_a_shorter_path_is_told_and_its_end_is_not_silent() -> None:
    made = path(7)
    for number in (4, 5, 6):
        made[number - 1].routers = after(6.0, 20 + number, number)
    made[6].times = unanswered(idle(30), 6.0)
    found = events(told(Flow(made, end=14)))
    assert of(found, Kind.RESPONDER)["hop"].tolist() == [4, 5, 6]
    assert of(found, Kind.SHORTER)[["hop", "amount"]].tolist() == [(6, 1)]
    assert len(found) == 4


@pytest.mark.parametrize(("per_answer", "longer"), [(150, 0), (1, 1)])
def test_a_path_grows_by_a_hop_that_answers_not_by_one_that_rarely_does(
    per_answer: int, longer: int
) -> None:
    """Probes beyond the destination are not answered either: no route change tells them apart."""

    def times(seconds: Array, rng: np.random.Generator) -> Array:
        turn = np.arange(len(seconds)) % per_answer == 0
        return np.where((seconds > 6) & turn, 30e3, np.nan)

    found = events(told(Flow([*path(6), Hop(times)], end=14)))
    assert of(found, Kind.LONGER)["hop"].tolist() == [7] * longer
    assert len(found) == longer


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
    assert of(found, Kind.RESPONDER)["hop"].tolist() == [4, 5, 6]
    assert of(found, Kind.SHIFT)["hop"].tolist() == [4]
    assert len(found) == 4


def test_a_path_that_ends_at_the_destination_is_shorter_there() -> None:
    rows = probes(Flow(path(7), end=12))
    rows["responder"][rows["hop"] == 7] = np.frombuffer(raw(DESTINATION), "u1")
    early = (rows["hop"] == 6) & (rows["sent_ns"] < START + 6 * SECOND)
    rows["responder"][rows["hop"] == 6] = np.frombuffer(raw(DESTINATION), "u1")
    rows["responder"][early] = np.frombuffer(router(6), "u1")
    analysis = Analysis()
    found = events(np.concatenate([analysis.add(*poll) for poll in polls(rows)], dtype=PATH))
    assert found[["kind", "hop"]].tolist() == [(Kind.RESPONDER, 6), (Kind.SHORTER, 6)]


def test_late_answers_of_the_old_path_are_no_change() -> None:
    """The old path has a queue of 300 ms, the new one none: new answers overtake old ones."""
    slow: Times = plus(idle(), lambda s: np.where(s < 6.0, 300e6, 0.0))
    hops = [*path(3), Hop(slow, after(6.0, 4, 24))]
    found = of(told(Flow(hops, end=10)), Kind.RESPONDER, Kind.BALANCED_PACKETS)
    assert found[["kind", "hop"]].tolist() == [(Kind.RESPONDER, 4)]


# Balancing


def by(way: int, port: int, **others: float) -> Flow:
    """A flow of which hop 3 is served by another router than others' hop 3."""
    hops = path()
    hops[2].routers = way
    return Flow(hops, port, **others)  # type: ignore[arg-type]


def test_flows_that_take_different_paths_are_told_once() -> None:
    rows = told(by(3, 40000, end=20), by(30, 40001, end=20), by(3, 40002, end=20, begin=5))
    found = events(rows)
    assert found[["kind", "hop", "source_port"]].tolist() == [(Kind.BALANCED, 3, 40001)]
    assert found["responder"][0].tobytes() == router(30)
    assert found["previous"][0].tobytes() == router(3)
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
    assert set(found["kind"]) == {Kind.RESPONDER}
    assert len(found) == 5 * 3


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
    found = of(rows, Kind.BALANCED_PACKETS)
    assert found["hop"].tolist() == [3]
    pair = {found["responder"][0].tobytes(), found["previous"][0].tobytes()}
    assert len(pair & {router(3), router(30), router(31)}) == 2
    assert len(of(rows, Kind.RESPONDER)) <= (0 if rate == 100 else 2)
    assert summary_of(rows, 3)["alternatives"][-1] == 3


# Silence and pauses


def test_a_hop_that_falls_silent_is_told_and_that_it_answers_again() -> None:
    hops = [*path(2), Hop(unanswered(idle(), 5, 12)), *path(6)[3:]]
    silent, back = events(told(Flow(hops, end=16)))
    assert (silent["kind"], silent["hop"], silent["amount"]) == (Kind.SILENT, 3, 1)
    assert at(silent, "since_ns") == pytest.approx(5, abs=0.02)
    assert at(silent) <= 5 + 1.5 + 3 + 0.5  # silence, timeout, two polls
    assert (back["kind"], back["hop"]) == (Kind.ANSWERS, 3)
    assert at(back) <= 12.5
    assert back["amount_ns"] == pytest.approx(7e9, abs=3e7)


def test_an_outage_is_told_at_its_first_hop_only() -> None:
    hops = [*path(2), *[Hop(unanswered(idle(), 5, 12)) for _ in range(4)]]
    silent, back = events(told(Flow(hops, end=16)))
    assert (silent["kind"], silent["hop"], silent["amount"]) == (Kind.SILENT, 3, 4)
    assert (back["kind"], back["hop"]) == (Kind.ANSWERS, 3)


def test_loss_for_a_second_is_no_silence() -> None:
    hops = [*path(2), *[Hop(unanswered(idle(), 5, 6)) for _ in range(4)]]
    assert len(events(told(Flow(hops, end=12)))) == 0


def test_a_hop_that_never_answered_is_not_told() -> None:
    hops = [*path(2), Hop(unanswered(idle(), 0)), *path(5), Hop(unanswered(idle(), 0))]
    assert len(events(told(Flow(hops, end=12)))) == 0


def test_a_pause_of_the_application_is_told_when_it_is_over() -> None:
    found = events(told(Flow(path(), end=15, pause=(8, 9.5))))
    assert found["kind"].tolist() == [Kind.GAP]
    assert found["amount_ns"][0] == pytest.approx(1.5e9, abs=2e7)
    assert at(found[0], "since_ns") == pytest.approx(8, abs=0.02)
    assert at(found[0]) <= 9.75


def test_usual_pauses_are_none() -> None:
    """One probe in two seconds."""
    slow = told(Flow(path(1), end=80, rate=0.5))
    assert len(of(slow, Kind.GAP)) == 0


def test_an_outage_is_no_pause() -> None:
    """Probes were sent; that they were lost is known by their timeout, after the next answers."""
    hops = [Hop(unanswered(hop.times, 8, 10)) for hop in path()]
    assert len(of(told(Flow(hops, end=20)), Kind.GAP)) == 0


def test_a_pause_of_one_of_two_flows_is_told_after_the_timeout() -> None:
    rows = told(Flow(path(), 40000, end=16), Flow(path(), 40001, end=16, pause=(8, 9.5)))
    found = events(rows)
    assert found[["kind", "source_port"]].tolist() == [(Kind.GAP, 40001)]
    assert 9.5 + 3 <= at(found[0]) <= 9.5 + 4


# Bounds


def test_flows_of_a_destination_are_bounded_and_the_rest_is_counted() -> None:
    flows = [Flow(path(1), 1000 + number, end=0.9, rate=10) for number in range(400)]
    analysis = Analysis()
    rows = probes(*flows, Flow(path(1), 7, "10.94.7.1", end=0.9, rate=10))
    found = [analysis.add(*poll) for poll in polls(rows, 2)]
    summaries = of(np.concatenate(found, dtype=PATH), Kind.SUMMARY)
    ports = summaries["source_port"].tolist()
    assert len(set(ports) - {7}) == MAX_FLOWS_OF_DESTINATION
    assert 7 in ports
    assert analysis.left_out > 0


def test_new_flows_take_the_places_of_those_that_ended() -> None:
    flows = [
        Flow(path(1), 1000 + number, begin=number // 200 * 2, end=number // 200 * 2 + 0.5, rate=10)
        for number in range(1000)
    ]
    rows = told(*flows)
    assert set(of(rows, Kind.SUMMARY)["source_port"].tolist()) == set(range(1000, 2000))
    assert len(events(rows)) == 0


def test_a_flow_that_took_another_ones_place_inherits_nothing() -> None:
    """Else its routers would be route changes, and its times queues."""
    first = [Flow(path(3), 1000 + number, end=2, rate=10) for number in range(256)]
    other = [Hop(idle(90_000), 90 + number) for number in range(3)]
    second = [Flow(other, 5000 + number, begin=4, end=8, rate=10) for number in range(256)]
    assert len(events(told(*first, *second))) == 0


def test_a_forgotten_destination_is_gone_and_others_stay() -> None:
    other = "10.94.7.1"
    rows = probes(Flow(path(2), end=2.1), Flow(path(2), destination=other, end=2.1))
    analysis = Analysis()
    for poll in polls(rows, 2):
        analysis.add(*poll)
    analysis.forget(raw(other))
    left = analysis.add(rows[:0], START + 4 * SECOND)
    assert {row.tobytes() for row in left["destination"]} <= {raw(DESTINATION)}
    # Traced again, by other routers, it is a new path and not a route change.
    later = [Hop(idle(), 80), Hop(idle(), 81)]
    again = probes(Flow(path(2), begin=5, end=8), Flow(later, destination=other, begin=5, end=8))
    told_of = [analysis.add(*poll) for poll in polls(again) if poll[1] > START + 5 * SECOND]
    found = np.concatenate(told_of, dtype=PATH)
    mine = found[(found["destination"] == np.frombuffer(raw(other), "u1")).all(axis=1)]
    assert len(of(mine, Kind.SUMMARY)) > 0
    assert len(events(mine)) == 0
    assert set(mine["alternatives"]) == {1}


def test_a_minute_after_its_end_a_flow_is_dropped() -> None:
    analysis = Analysis()
    for poll in polls(probes(Flow(path(1), end=1))):
        analysis.add(*poll)
    assert analysis._flows.used.sum() == 1
    analysis.add(np.empty(0, HOP), START + 62 * SECOND)
    analysis.add(np.empty(0, HOP), START + 64 * SECOND)
    assert analysis._flows.used.sum() == 0


def test_of_a_flow_with_few_probes_a_queue_is_told_where_it_is_or_not_at_all() -> None:
    """Six probes a second and hop: the turn of a later hop comes before that of an earlier one."""
    hops = queue_at(path(), 4, lambda s: sawtooth(s % 15, 5, 11))
    found = []
    for seed in range(6):
        rows = probes(Flow(hops, end=60), seed=seed)
        rows = rows[np.random.default_rng(seed).random(len(rows)) < 0.06]
        analysis = Analysis()
        for part, now_ns in polls(rows):
            found += of(analysis.add(part, now_ns), Kind.QUEUE)["hop"].tolist()
    assert set(found) == {4}
    assert len(found) > 20
