"""Rules of the queue and of retries that only show at their edges."""

from __future__ import annotations

import time

import pytest

from app.exporters.backlog import Backlog, size_of
from app.outputs.view import OwnedFlows
from probes.reports import OutputState, OutputStatus
from probes.snapshot import Item
from tests.app.exporters.receiver import Receiver, delivering, flows, until


def test_the_item_on_its_way_stays_and_an_item_without_room_goes() -> None:
    unsent: list[tuple[int, int]] = []
    size = size_of(flows(1, 10))
    backlog = Backlog(size, lambda _, first, count: unsent.append((first, count)))
    backlog.put(flows(1, 10), 10)
    taken = backlog.first(0)
    assert taken is not None
    backlog.put(flows(2, 10), 10)
    counts = backlog.counts()
    assert (counts.undelivered, counts.queued_bytes) == ({"queue full": 10}, size)
    backlog.settle(taken, 4)
    backlog.settle(taken, 2)
    assert backlog.counts().delivered == 4, "what is delivered stays so"
    backlog.end()
    assert unsent == [(0, 10), (4, 6)]
    backlog.settle(taken, 10)
    counts = backlog.counts()
    assert (counts.delivered, counts.lost, counts.queued) == (4, 16, 0), "ended records stay so"


def test_an_exporter_delivers_no_more_than_an_item_has() -> None:
    backlog = Backlog(1 << 20)
    backlog.put(flows(1, 10), 10)
    taken = backlog.first(0)
    assert taken is not None
    backlog.settle(taken, 99)
    assert (backlog.counts().delivered, len(backlog)) == (10, 0)


def test_owners_count_in_the_bytes_of_flows() -> None:
    window, owners = flows(1, 10), flows(1, 1000)
    joined = OwnedFlows.of(window, {"sockets": owners})
    assert size_of(joined) == size_of(window) + owners.rows.nbytes


class Returning(Receiver):
    """Comes to life after some attempts."""

    def __init__(self, dead: int) -> None:
        super().__init__()
        self._dead = dead

    def open(self) -> None:
        self._dead -= 1
        self.alive = self._dead < 0
        super().open()


class Trickling(Receiver):
    """Its connection breaks after each record."""

    def open(self) -> None:
        self.takes = 1


def test_pauses_double_up_to_15_s_and_a_receiver_that_takes_some_is_not_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Backlog, "pause", lambda _, seconds: pauses.append(seconds))
    with delivering(Returning(8)) as (delivery, _):
        delivery.offer(flows(1, 2))
        assert until(lambda: delivery.status().delivered == 2)
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 15, 15]
    pauses.clear()
    with delivering(Trickling()) as (delivery, _):
        delivery.offer(flows(1, 5))
        assert until(lambda: delivery.status().delivered == 5)
    assert set(pauses) == {0.25}


def test_only_a_delivery_ends_the_failure_of_a_refused_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.exporters.delivery._TICK_S", 0.01)
    receiver = Receiver()
    receiver.refuses = frozenset({0})
    with delivering(receiver) as (delivery, _):
        delivery.offer(flows(1, 1))
        assert until(lambda: delivery.status().state is OutputState.FAILING)
        ticks = receiver.ticks
        assert until(lambda: receiver.ticks > ticks + 2)
        assert delivery.status().state is OutputState.FAILING
        receiver.refuses = frozenset()
        delivery.offer(flows(2, 1))
        assert until(lambda: delivery.status().state is OutputState.DELIVERING)


def test_an_ended_output_tries_a_broken_connection_once_more() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    with delivering(receiver) as (delivery, _):
        delivery.offer(flows(1, 10))
        assert receiver.entered.wait(5)
        receiver.takes = 3
        delivery.stop()
        receiver.gate.set()
    assert (delivery.status().delivered, receiver.opened) == (10, 2)


def test_a_full_queue_fails_until_it_is_empty() -> None:
    states: list[OutputStatus] = []

    class Watched(Receiver):
        def deliver(self, item: Item, skip: int) -> None:
            super().deliver(item, skip)
            states.append(delivery.status())

    receiver = Watched()
    receiver.gate.clear()
    with delivering(receiver, 3 * size_of(flows(1, 10))) as (delivery, _):
        delivery.offer(flows(1, 10))
        assert receiver.entered.wait(5)
        for number in range(2, 6):
            delivery.offer(flows(number, 10))
        receiver.gate.set()
        assert until(lambda: delivery.status().state is OutputState.DELIVERING)
    assert [each.state for each in states][1:] == [OutputState.FAILING] * 2


def test_a_delivery_that_outlasts_its_output_changes_nothing() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    with delivering(receiver) as (delivery, _):
        delivery.offer(flows(1, 10))
        assert receiver.entered.wait(5)
        delivery.stop()
        delivery.join(time.monotonic())
        before = delivery.status()
        receiver.gate.set()
        assert until(lambda: receiver.closed)
    assert delivery.status() == before
    assert (before.state, before.undelivered) == (OutputState.ENDED, {"ended": 10})
