"""Readers of the stream: none delays a publisher, and each learns the number of its lost items."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.api.server.broadcaster import Broadcaster, TooManyError
from app.api.wire import Decoder, Lost, WireRecord
from probes.snapshot import Event, Snapshot
from tests.app.api.fake import window

METRICS = ("ingress.packets", "ingress.bytes")


async def taken(records: AsyncIterator[bytes], count: int) -> list[WireRecord]:
    decoder = Decoder()
    got: list[WireRecord] = []
    async for data in records:
        got += decoder.feed(data)
        if len(got) >= count:
            break
    return got


async def test_a_slow_reader_loses_the_oldest_windows_whole_and_is_told() -> None:
    """S1.27."""
    metrics = (*METRICS, "egress.packets")
    broadcaster = Broadcaster(max_items=5)
    subscription = broadcaster.open()
    event = Event.now("info", "eth0", "up")
    broadcaster.publish(event)
    for number in range(1, 11):
        for table in window("counter", number, metrics):
            broadcaster.publish(table)
    got = await taken(subscription.records(), 5)
    assert got[0] == Lost({"counter": 9})
    assert got[1] == event
    kept = [(s.window, s.side, s.metric) for s in got if isinstance(s, Snapshot)]
    # The ninth window is lost as a whole, too.
    assert kept == [(10, "ingress", "packets"), (10, "ingress", "bytes"), (10, "egress", "packets")]


async def test_bytes_are_bounded_too() -> None:
    """S1.27."""
    broadcaster = Broadcaster(max_bytes=100 * 12 * 2)
    subscription = broadcaster.open()
    for number in range(1, 6):
        broadcaster.publish(window("counter", number, METRICS[:1], rows=100)[0])
    got = await taken(subscription.records(), 3)
    assert got[0] == Lost({"counter": 3})
    assert [s.window for s in got if isinstance(s, Snapshot)] == [4, 5]


async def test_events_are_counted_where_there_is_nothing_else_to_lose() -> None:
    broadcaster = Broadcaster(max_items=2)
    subscription = broadcaster.open()
    events = [Event.now("info", "eth0", str(number)) for number in range(5)]
    for event in events:
        broadcaster.publish(event)
    assert await taken(subscription.records(), 3) == [Lost({}, 3), *events[3:]]


async def test_there_are_so_many_streams_and_no_more() -> None:
    broadcaster = Broadcaster(max_subscriptions=1)
    subscription = broadcaster.open()
    with pytest.raises(TooManyError):
        broadcaster.open()
    broadcaster.leave(subscription)
    broadcaster.open()


def test_events_are_numbered_and_those_forgotten_counted() -> None:
    broadcaster = Broadcaster(max_events=3)
    for number in range(1, 6):
        broadcaster.publish(Event.now("info", "eth0", str(number)))
    page = broadcaster.events(0)
    assert [(item.number, item.event.text) for item in page.events] == [
        (3, "3"),
        (4, "4"),
        (5, "5"),
    ]
    assert (page.last, page.forgotten) == (5, 2)
    assert [item.number for item in broadcaster.events(4).events] == [5]
    assert broadcaster.events(5).events == ()
    assert broadcaster.events(9).events == ()
    assert Broadcaster().events(0).last == 0
