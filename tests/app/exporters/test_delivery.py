"""A receiver that dies, returns, is slow, refuses or is full: every record is counted."""

from __future__ import annotations

import time

import pytest

from app.exporters.backlog import Backlog, size_of
from app.exporters.ledger import Ledger, Unsent
from bpf import errors
from probes.reports import OutputState
from probes.snapshot import Event, Item
from tests.app.exporters.receiver import PACKETS, Receiver, adds_up, delivering, flows, until


def test_a_receiver_that_is_away_for_hours_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "LONGEST_WAIT_S", 0.0)
    receiver = Receiver()
    receiver.alive = False
    with delivering(receiver) as (delivery, _):
        delivery.offer(flows(1, 5))
        assert until(lambda: delivery.status().retries > 1100), "four hours of failures"
        receiver.alive = True
        assert until(lambda: delivery.status().delivered == 5)


def test_a_full_queue_drops_the_oldest_and_stays_within_its_bytes() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    size = size_of(flows(1, 100))
    with delivering(receiver, 3 * size) as (delivery, events):
        delivery.offer(flows(1, 100))
        assert receiver.entered.wait(5)
        for number in range(2, 12):
            delivery.offer(flows(number, 100))
            assert delivery.status().queued_bytes <= 3 * size
            assert adds_up(delivery.status(), 100 * number)
        status = delivery.status()
        assert (status.queued, status.undelivered) == (300, {"queue full": 800})
        receiver.gate.set()
        assert until(lambda: delivery.status().state is OutputState.DELIVERING)
    windows = sorted({number for number, _ in receiver.got})
    assert windows == [1, 10, 11], "the item on its way stays, and the newest"
    assert [event.phase for event in events] == ["begin", "end"]
    assert "800 records are undelivered" in events[1].text


def test_an_item_larger_than_the_queue_goes_alone() -> None:
    receiver = Receiver()
    with delivering(receiver, 2000) as (delivery, _):
        delivery.offer(flows(1, 1000))
        assert until(lambda: delivery.status().delivered == 1000)


def test_offer_never_waits_for_a_receiver_that_hangs() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    window = flows(1, 25_000)
    with delivering(receiver, 4 * size_of(window)) as (delivery, _):
        delivery.offer(window)
        assert receiver.entered.wait(5)
        took = []
        for _ in range(200):
            began = time.thread_time()
            delivery.offer(window)
            took.append(time.thread_time() - began)
        assert sorted(took)[100] < 0.001, "CPU seconds, half of the offers"
        began = time.monotonic()
        delivery.stop()
        delivery.join(time.monotonic() + 0.1)
        assert time.monotonic() - began < 2, "the end does not wait for it either"
        status = delivery.status()
        assert (status.state, status.delivered, status.queued) == (OutputState.ENDED, 0, 0)
        assert adds_up(status, 201 * 25_000)
        assert status.undelivered["ended"] == 4 * 25_000


@pytest.mark.timing
def test_the_end_delivers_what_waits_or_gives_up_soon() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    with delivering(receiver) as (delivery, _):
        for number in range(1, 6):
            delivery.offer(flows(number, 10))
        receiver.gate.set()
    assert (delivery.status().delivered, receiver.closed) == (50, 1)
    dead = Receiver()
    dead.alive = False
    began = time.monotonic()
    with delivering(dead) as (delivery, _):
        delivery.offer(flows(1, 10))
    assert time.monotonic() - began < 1.5
    assert delivery.status().undelivered == {"ended": 10}
    delivery.offer(flows(2, 10))
    assert delivery.status().undelivered == {"ended": 20}, "nor later ones get lost silently"


class Broken(Receiver):
    def records(self, item: Item) -> int:
        if isinstance(item, Event):
            raise ValueError("a bug")
        return super().records(item)

    def deliver(self, item: Item, skip: int) -> None:
        raise KeyError("another")


def test_a_bug_of_an_exporter_reaches_no_publisher() -> None:
    with delivering(Broken()) as (delivery, _):
        delivery.offer(Event.now("info", "x", "y"))
        delivery.offer(flows(1, 4))
        assert until(lambda: delivery.status().undelivered == {"fault": 5})
        assert until(lambda: delivery.status().state is OutputState.FAILING)


def test_the_ledger_knows_the_packets_of_dropped_records() -> None:
    ledger = Ledger()
    backlog = Backlog(size_of(flows(1, 10)), lambda *lost: ledger.not_sent("main", *lost))
    backlog.put(flows(1, 10), 10)
    taken = backlog.first(0)
    assert taken is not None
    backlog.settle(taken, 4)
    backlog.put(flows(2, 10), 10)
    assert ledger.unsent("main") == Unsent(6, 6 * PACKETS, 6 * PACKETS * 100)
    backlog.lost(2, "not acknowledged")
    counts = backlog.counts()
    assert (counts.delivered, counts.lost, counts.queued) == (2, 8, 10)
