"""The comparison of two hosts' digests, on tables that a test makes from a known network."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import astuple

import numpy as np
import pytest

from app.fleet import segment
from app.fleet.segment import DigestWindow, OneWay, PassageCounts

S = 1_000_000_000
MS = 1_000_000
HORIZON = S
Packet = tuple[int, int]
"""Digest and time."""


def window(
    start: int, end: int, packets: Iterable[Packet], *, missing: int = 0, flow: int = 1
) -> DigestWindow:
    inside = sorted(((d, t) for d, t in packets if start <= t < end), key=lambda each: each[1])
    return DigestWindow(
        start, end, np.array([d for d, _ in inside], "u8"), np.array([t for _, t in inside], "i8"),
        np.full(len(inside), flow, "u4"), missing,
    )  # fmt: skip


def compared(
    sent: Iterable[Packet], received: Iterable[Packet], *, seconds: int = 6, offset: int = 0,
    error: int = 0, without: Iterable[tuple[str, int]] = (), full: Iterable[tuple[str, int]] = (),
    start: int = 100 * S,
) -> OneWay:  # fmt: skip
    """Feed windows of a second, by each host's clock, and compare after each.

    Times begin at 0; the receiver's are by its own clock, which is `offset` ahead. `without`: lost
    windows by side and number; `full`: windows that lack packets.
    """
    way = OneWay(HORIZON)
    sent = [(d, t + start) for d, t in sent]
    received = [(d, t + start) for d, t in received]
    without, full = set(without), set(full)
    for number in range(seconds):
        for side, add, packets, ahead in (
            ("sent", way.add_sent, sent, 0),
            ("received", way.add_received, received, offset),
        ):
            begin = start + ahead + number * S
            made = window(begin, begin + S, packets, missing=3 * ((side, number) in full))
            if (side, number) not in without:
                add(made)
        way.advance(offset, error)
    return way


def counts(way: OneWay) -> dict[str, int]:
    """The counts that are not 0."""
    named = zip(PassageCounts.__dataclass_fields__, astuple(way.counts), strict=True)
    return {name: count for name, count in named if count and name != "ordered"}


def steady(begin: int = 500, end: int = 4500, every: int = 10) -> list[Packet]:
    """A packet each 10 ms, with a digest of its own."""
    return [(1000 + t, t * MS) for t in range(begin, end, every)]


def after(packets: Iterable[Packet], delay: int = 20 * MS) -> list[Packet]:
    return [(d, t + delay) for d, t in packets]


def test_packets_that_did_not_arrive_are_lost() -> None:
    sent = steady()
    received = after(sent[:50] + sent[51:300] + sent[302:])
    assert counts(compared(sent, received)) == {"sent": 400, "delivered": 397, "lost": 3}
    assert compared(sent, received).counts.loss == pytest.approx(3 / 400)


def test_packets_on_their_way_at_the_end_are_not_lost() -> None:
    sent = steady(500, 6000)
    received = [each for each in after(sent) if each[1] < 6 * S]
    found = counts(compared(sent, received))
    assert "lost" not in found
    assert found["in_flight"] == 3  # what arrived in the margin before the end is not looked at yet
    assert found["sent"] == found["delivered"]
    assert found["sent"] + found["in_flight"] + found["late"] == len(sent)


def test_packets_are_late_as_long_as_nothing_comes_from_the_other_host() -> None:
    silent = [("received", number) for number in range(6)]
    assert counts(compared(steady(), [], without=silent)) == {"late": 400}


def test_a_long_silence_ends_as_loss_once_the_horizon_is_over() -> None:
    sent = steady(500, 2500)
    received = after(sent[:100])
    assert counts(compared(sent, received, seconds=3)) == {
        "sent": 146, "delivered": 100, "lost": 46, "in_flight": 54,
    }  # fmt: skip
    assert counts(compared(sent, received, seconds=5)) == {
        "sent": 200, "delivered": 100, "lost": 100,
    }  # fmt: skip


@pytest.mark.parametrize("how", ["without", "full"])
def test_times_that_the_receiver_lacks_are_unknown_and_never_loss(how: str) -> None:
    sent = steady()
    kept = [each for each in after(sent) if not 3 * S <= each[1] < 4 * S]
    lossy = kept[:100] + kept[101:]
    found = counts(compared(sent, lossy, **{how: [("received", 3)]}))  # type: ignore[arg-type]
    assert found.pop("missing", 3) == 3
    assert found["lost"] == 1
    assert found["unknown"] == 100
    assert found["sent"] == 400
    # A packet that is sent within the horizon before that time might have arrived in it.
    kept.remove((1000 + 2500, 2520 * MS))
    found = counts(compared(sent, kept, **{how: [("received", 3)]}))  # type: ignore[arg-type]
    assert found["unknown"] == 101
    assert "lost" not in found


def test_times_that_the_sender_lacks_say_nothing_of_arrivals() -> None:
    sent = steady()
    found = counts(compared(sent, after(sent), without=[("sent", 3)]))
    assert found == {"sent": 300, "delivered": 300, "untold": 100}


def test_a_receiver_that_starts_later_misses_nothing() -> None:
    sent = steady()
    received = [each for each in after(sent) if each[1] >= 2 * S]
    found = counts(compared(sent, received, without=[("received", 0), ("received", 1)]))
    assert found == {"sent": 246, "delivered": 246, "early": 154}  # the margin is early, too
    late = [each for each in sent if each[1] >= 2 * S]
    found = counts(compared(late, after(sent), without=[("sent", 0), ("sent", 1)]))
    assert found == {"sent": 250, "delivered": 250}


def test_copies_are_counted_as_copies() -> None:
    """Retransmissions, heartbeats, and a network that doubles a packet."""
    one = [(7, 1000 * MS), (7, 1200 * MS)]
    assert counts(compared(one, after(one[1:]))) == {"sent": 2, "delivered": 1, "lost": 1}
    assert counts(compared(one, after(one))) == {"sent": 2, "delivered": 2}
    twice = after(one[:1]) + after(one[:1], 30 * MS)
    assert counts(compared(one[:1], twice)) == {"sent": 1, "delivered": 1, "duplicated": 1}
    beats = [(7, t * MS) for t in range(500, 4500, 100)]
    received = after(beats[:10] + beats[11:])
    assert counts(compared(beats, received, seconds=8)) == {
        "sent": 40, "delivered": 39, "lost": 1
    }  # fmt: skip
    flood = [(7, 1000 * MS + t * 1000) for t in range(50_000)]
    gone = {3, 999, 49_999}
    received = after([each for n, each in enumerate(flood) if n not in gone], 3 * MS)
    found = compared(flood, received)
    assert counts(found) == {"sent": 50_000, "delivered": 49_997, "lost": 3}
    assert not len(found.delays())


def test_arrivals_that_nobody_sent_and_arrivals_after_the_horizon() -> None:
    sent = steady(500, 1500)
    stranger = [(1, 2500 * MS)]
    assert counts(compared(sent, after(sent) + stranger))["unsent"] == 1
    late = after(sent[:1], HORIZON + 500 * MS)
    found = counts(compared(sent, after(sent[1:]) + late))
    assert found["lost"] == 1
    assert found["unsent"] + found.get("duplicated", 0) == 1


@pytest.mark.parametrize("offset", [5 * S, -5 * S, 3 * MS])
def test_clocks_that_differ(offset: int) -> None:
    sent = steady()
    received = after(sent[:50] + sent[51:], offset + 20 * MS)
    way = compared(sent, received, offset=offset, error=2 * MS)
    assert counts(way) == {"sent": 400, "delivered": 399, "lost": 1}
    assert set(way.delays().tolist()) == {offset + 20 * MS}
    # The estimate is wrong by as much as it says.
    way = compared(sent, received, offset=offset + 30 * MS, error=30 * MS)
    assert counts(way)["lost"] == 1


def test_order_is_that_of_a_flow() -> None:
    sent = steady(500, 1500)
    received = after(sent)
    received[10] = (received[10][0], received[10][1] + 25 * MS)  # after two others
    way = compared(sent, received)
    assert (way.counts.reordered, way.counts.ordered) == (1, 100)

    way = OneWay(HORIZON)
    for number in range(4):
        begin, end = number * S, (number + 1) * S
        for flow, delay in ((1, 500 * MS), (2, 5 * MS)):
            mine = [(d * 10 + flow, t) for d, t in sent]
            parts = (
                window(begin, end, mine, flow=flow),
                window(begin, end, after(mine, delay), flow=flow),
            )
            way.add_sent(parts[0])
            way.add_received(parts[1])
        way.advance(0, 0)
    assert (way.counts.reordered, way.counts.ordered, way.counts.lost) == (0, 200, 0)


def test_a_host_that_says_nothing_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MOST_WAITING", 100)
    silent = {("received", number) for number in range(1, 5)}
    sent = steady()
    way = compared(sent, after(sent), without=silent)
    assert counts(way)["sent"] + counts(way).get("in_flight", 0) >= 300
    assert not way.counts.lost
    assert len(way._sent) <= 100


@pytest.mark.parametrize("seed", range(8))
def test_any_network(seed: int) -> None:
    """Losses, doubled packets and copies, at random, against the truth."""
    rng = random.Random(seed)
    sent, received = [], []
    lost = doubled = 0
    for number in range(3000):
        digest, time = rng.getrandbits(64), rng.randrange(500 * MS, 7 * S)
        sent.append((digest, time))
        if rng.random() < 0.05:
            lost += 1
        else:
            received.append((digest, time + rng.randrange(MS, 400 * MS)))
            if rng.random() < 0.02:
                doubled += 1
                received.append((digest, received[-1][1] + rng.randrange(50 * MS)))
        if number % 50 == 0:
            # A retransmission; the first one got lost or did not.
            sent.append((digest, time + 450 * MS))
            received.append((digest, time + 460 * MS))
    offset = rng.randrange(-9 * S, 9 * S)
    way = compared(
        sent, [(d, t + offset) for d, t in received], seconds=10, offset=offset, error=MS
    )
    assert counts(way) == {
        "sent": len(sent), "delivered": len(sent) - lost, "lost": lost, "duplicated": doubled,
        "reordered": way.counts.reordered,
    }  # fmt: skip
