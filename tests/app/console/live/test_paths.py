"""Probes and findings as they add up for a screen: counts, bins, samples, routers, leaving."""

from __future__ import annotations

import ipaddress

import numpy as np
import pytest

from app.console.live import paths as module
from app.console.live.paths import IDLE_NS, LivePaths, PathView, RecentTimes
from bpf.arrays import Array
from probes.path.options import TracedFlow
from probes.path.records import HOP, PathRowKind, ProbeOutcome, no_rows
from tests.app.console.fake_paths import LAB, SECOND_NS, FakeHop, FakePath, table

START = 1000 * SECOND_NS


def played(*paths: FakePath, seconds: int = 5, lives: LivePaths | None = None) -> LivePaths:
    lives = lives or LivePaths()
    for second in range(seconds):
        start = START + second * SECOND_NS
        for path in paths:
            lives.add(table(path.second(start), start + SECOND_NS - 1))
    return lives


def at_hop(view: PathView, number: int) -> Array:
    return np.flatnonzero(view.series["hop"] == number)


def test_what_came_to_its_end_is_counted_by_hop() -> None:
    view = played(FakePath(LAB)).view()
    assert sorted(view.series["hop"]) == [1, 2, 3, 4, 5, 6]
    first, silent, seldom = (view.series[at_hop(view, n)[0]] for n in (1, 4, 5))
    assert (first["answered"], first["lost"], first["dropped"]) == (100, 0, 0)
    assert (silent["answered"], silent["lost"], silent["last_ns"]) == (0, 100, -1)
    assert (seldom["answered"], seldom["lost"]) == (15, 85)
    assert first["last_ns"] == pytest.approx(210_000, rel=0.5)
    assert bytes(first["destination"][:4]) == ipaddress.ip_address("10.94.6.2").packed
    assert (first["source_port"], first["destination_port"]) == (40001, 443)


def test_what_says_nothing_of_the_network_is_no_sample() -> None:
    path = FakePath(LAB[:1])
    rows = path.second(START)
    rows["outcome"][:6] = (
        [ProbeOutcome.DROPPED] * 2 + [ProbeOutcome.OVERRUN] * 2 + [ProbeOutcome.IN_FLIGHT] * 2
    )
    rows["received_ns"][:6] = 0
    lives = LivePaths()
    lives.add(table(rows, START + SECOND_NS))
    view = lives.view()
    assert view.series[["answered", "lost", "dropped"]].tolist() == [(14, 0, 2)]
    assert len(view.samples(view.series["id"])) == 14


def test_a_loss_known_late_is_in_the_second_in_which_it_was_sent() -> None:
    path, lives = FakePath([FakeHop(2.0, ("10.0.0.1",))]), LivePaths()
    rows = path.second(START)
    rows["outcome"][5], rows["received_ns"][5] = ProbeOutcome.UNANSWERED, 0
    late = np.arange(20) == 5
    lives.add(table(rows[~late], START + SECOND_NS - 1))
    lives.add(table(rows[late], START + 3 * SECOND_NS + SECOND_NS - 1))
    view = lives.view()
    bins = view.recent(at_hop(view, 1), 5)[0]
    assert bins["lost"].tolist() == [0, 1, 0, 0, 0]
    assert bins["answered"].tolist() == [0, 19, 0, 0, 0]
    assert bins["rtt_ns"][1] / 19 == pytest.approx(2e6, rel=0.02)


def test_bins_are_of_absolute_seconds_and_old_ones_are_empty_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_NS", 1000 * SECOND_NS)
    path, lives = FakePath([FakeHop(2.0, ("10.0.0.1",))]), LivePaths()
    played(path, seconds=1, lives=lives)
    later = START + (module.SECONDS + 3) * SECOND_NS
    lives.add(table(no_rows(HOP), START + 30 * SECOND_NS))
    assert lives.view().recent(np.array([0]), 31)["answered"].sum() == 20
    lives.add(table(path.second(later), later + SECOND_NS - 1))
    view = lives.view()
    assert view.recent(np.array([0]), module.SECONDS)["answered"].sum() == 20
    # Seconds beyond the kept ones do not repeat the newest.
    assert view.recent(np.array([0]), module.SECONDS + 60)["answered"].sum() == 20


def test_samples_are_each_series_own_in_order_and_of_the_last_minute() -> None:
    path, lives = FakePath(LAB), LivePaths()
    played(path, seconds=3, lives=lives)
    view = lives.view()
    identity = view.series["id"][at_hop(view, 2)]
    samples = view.samples(identity)
    assert len(samples) == 60
    assert (samples["id"] == identity).all()
    assert (np.diff(samples["sent_ns"]) > 0).all()
    assert np.median(samples["rtt_ns"]) == pytest.approx(1.4e6, rel=0.1)
    lives.add(table(path.second(START + IDLE_NS), START + IDLE_NS + 2 * SECOND_NS))
    assert len(lives.view().samples(identity)) == 40


def test_times_of_several_series_are_in_order_and_those_of_the_newest_view() -> None:
    path, lives = FakePath(LAB), LivePaths()
    played(path, seconds=2, lives=lives)
    series = lives.view().series
    ids = series["id"][series["hop"] <= 3]
    recent = RecentTimes(ids)
    for end in (START + 2 * SECOND_NS, START + 4 * SECOND_NS, START + IDLE_NS + 2 * SECOND_NS):
        view = lives.view()
        samples = view.samples(ids)
        for identity in ids:
            own = samples["sent_ns"][samples["id"] == identity]
            assert (np.diff(own) > 0).all()
        assert (np.diff(samples["id"].astype("O")) >= 0).all()
        times, places = recent.of(view)
        assert (times == samples["rtt_ns"]).all()
        assert (ids[places] == samples["id"]).all()
        lives.add(table(path.second(end), end + SECOND_NS - 1))


def test_everyone_who_answers_at_a_hop_is_known_with_labels() -> None:
    view = played(FakePath(LAB)).view()
    series = view.series["id"][at_hop(view, 3)]
    routers = view.responders[np.isin(view.responders["series"], series)]
    found = {bytes(row["responder"][:4]): row for row in routers}
    assert set(found) == {bytes((10, 94, 2, 2)), bytes((10, 94, 7, 2))}
    assert all(row["answers"] == 50 for row in found.values())
    assert all(row["label_count"] == 1 and row["labels"][0] >> 12 == 16004 for row in routers)


def test_findings_are_kept_and_a_queue_is_known_until_it_is_over() -> None:
    path = FakePath(LAB)
    lives = played(path, seconds=1)

    def told(kind: PathRowKind, **values: object) -> Array:
        lives.add(table(path.change(kind, 5, START, **values), START + SECOND_NS))
        view = lives.view()
        series: Array = view.series[at_hop(view, 5)[0]]
        return series

    assert told(PathRowKind.SUMMARY, amount_ns=3, cleared=1)[["queue_ns", "cleared"]].item() == (
        0,
        1,
    )
    assert told(PathRowKind.QUEUE, amount_ns=7)["queue_ns"] == 7
    assert told(PathRowKind.SUMMARY, amount_ns=9)["queue_ns"] == 9
    assert told(PathRowKind.SUMMARY, amount_ns=0)["queue_ns"] == 9
    assert told(PathRowKind.QUEUE_OVER)["queue_ns"] == 0
    assert lives.view().changes["kind"].tolist() == [PathRowKind.QUEUE, PathRowKind.QUEUE_OVER]


def test_an_ended_flow_leaves_after_a_minute() -> None:
    gone, stays = FakePath(LAB), FakePath(LAB, flow=TracedFlow(17, 5004, 9000))
    lives = played(gone, stays, seconds=1)
    for second in range(30, 90, 30):
        start = START + second * SECOND_NS
        lives.add(table(stays.second(start), start + SECOND_NS))
    view = lives.view()
    assert set(view.series["protocol"]) == {17}
    assert set(view.responders["series"]) <= set(view.series["id"])
    assert {len(block) for block in view.bins} == {len(view.series)}


def test_a_flood_of_flows_is_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 20)
    monkeypatch.setattr(module, "MAX_SAMPLES", 500)
    lives = LivePaths()
    for second in range(10):
        path = FakePath(LAB, flow=TracedFlow(6, 1000 + second, 443))
        start = START + second * SECOND_NS
        lives.add(table(path.second(start), start + SECOND_NS))
    view = lives.view()
    assert len(view.series) == 20
    assert set(view.series["source_port"]) >= {1007, 1008, 1009}
    assert len(view.samples(view.series["id"])) <= 500


def test_a_view_never_changes() -> None:
    path = FakePath(LAB)
    lives = played(path, seconds=2)
    view = lives.view()
    samples = len(view.samples(view.series["id"]))
    before = (view.series.copy(), [block.copy() for block in view.bins], samples)
    played(path, FakePath(LAB, flow=TracedFlow(6, 1, 2)), seconds=4, lives=lives)
    assert (view.series == before[0]).all()
    assert np.array_equal(view.bins, before[1])
    assert len(view.samples(view.series["id"])) == before[2]
