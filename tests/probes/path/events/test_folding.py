"""One event for one finding of several flows, and an end to floods."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.events.folding import EventFolder
from probes.path.records import PATH, PathRowKind
from tests.probes.path.events.test_words import row

POLL = 250_000_000


def joined(*rows: Array) -> Array:
    return np.concatenate([row(PathRowKind.SUMMARY), *rows], dtype=PATH)


def texts(folder: EventFolder, polls: list[Array]) -> list[list[str]]:
    """The texts of each poll."""
    return [
        [event.text for event in folder.add(rows, number * POLL)]
        for number, rows in enumerate(polls, 1)
    ]


NONE = np.empty(0, PATH)


def test_flows_that_tell_the_same_are_one_event_a_poll_later() -> None:
    polls = [
        joined(row(PathRowKind.QUEUE, amount_ns=20_000_000)),
        joined(row(PathRowKind.QUEUE, source_port=40001, amount_ns=30_000_000)),
        joined(row(PathRowKind.QUEUE, source_port=40002, amount_ns=40_000_000)),
        NONE,
    ]
    first, second, third, last = texts(EventFolder(), polls)
    assert first == third == last == []
    assert [text.partition(" hop 4: ")[2] for text in second] == [
        "queue of 30.0 ms between this host and 10.94.2.2 (hop 4), either way, since 3.2 s ago, "
        "for tcp 40000>5201 and tcp 40001>5201"
    ]


def test_other_hops_kinds_and_directions_are_events_of_their_own() -> None:
    rows = joined(
        row(PathRowKind.SHIFT, amount_ns=5_000_000),
        row(PathRowKind.SHIFT, amount_ns=-5_000_000),
        row(PathRowKind.SHIFT, 5, amount_ns=5_000_000),
        row(PathRowKind.ANSWERS, amount_ns=5_000_000),
    )
    assert len(texts(EventFolder(), [rows, NONE])[1]) == 4


def test_seconds_later_it_is_told_again() -> None:
    silent = joined(row(PathRowKind.SILENT, amount=1))
    told = texts(EventFolder(), [silent, *[NONE] * 30, silent, NONE])
    assert [number for number, said in enumerate(told) if said] == [1, 32]


def test_the_last_poll_tells_all() -> None:
    folder = EventFolder()
    assert len(folder.add(joined(row(PathRowKind.SILENT, amount=1)), POLL, final=True)) == 1


def test_the_routers_that_share_flows_are_one_event() -> None:
    rows = joined(
        row(PathRowKind.BALANCED, flows=19),
        row(PathRowKind.BALANCED, flows=18, responder=row(PathRowKind.BALANCED)["previous"][0]),
    )
    assert texts(EventFolder(), [rows]) == [
        ["10.94.6.2 hop 4: 37 flows share 2 routers: 19 by 10.94.2.2, 18 by 10.94.7.2"]
    ]


def test_the_end_of_a_queue_names_the_flows_of_its_begin() -> None:
    begin = joined(row(PathRowKind.QUEUE, amount_ns=20_000_000))
    over = joined(row(PathRowKind.QUEUE_OVER, source_port=40001, amount_ns=20_000_000))
    told = [text for said in texts(EventFolder(), [begin, NONE, over, NONE]) for text in said]
    assert [text.rpartition("for ")[2] for text in told] == ["tcp 40000>5201"] * 2


def test_a_change_of_length_is_no_part_of_a_flood() -> None:
    folder = EventFolder()
    change, longer = joined(row(PathRowKind.ROUTE)), joined(row(PathRowKind.ROUTE, amount=-1))
    told = texts(folder, [*[change] * 4, longer])
    assert [len(said) for said in told] == [1, 1, 1, 0, 1]
    assert "one hop shorter" in told[-1][0]
    (rest,) = folder.add(NONE, 8 * POLL, final=True)
    assert rest.text == "10.94.6.2: change of the route 1 more time in 1.0 s"


@pytest.mark.parametrize("kind", [PathRowKind.ROUTE, PathRowKind.GAP])
def test_a_flood_is_counted(kind: PathRowKind) -> None:
    """Every 6 seconds for two minutes: three events, and then how many more there were."""
    rows = joined(row(kind, other_hop=5, amount_ns=2_000_000_000))
    polls = [rows if not number % 24 else NONE for number in range(24 * 20)]
    told = [text for said in texts(EventFolder(), polls) for text in said]
    counts = [text for text in told if "more times in" in text]
    assert len(told) - len(counts) <= 7
    topic = "change of the route" if kind is PathRowKind.ROUTE else "pause"
    assert counts[0] == f"10.94.6.2: {topic} 11 more times in 1m00s"


def test_an_event_at_another_place_is_no_part_of_a_flood() -> None:
    folder = EventFolder()
    for number in range(1, 10):
        folder.add(joined(row(PathRowKind.LOSS, 3)), number * 4 * POLL)
    assert len(folder.add(joined(row(PathRowKind.LOSS, 4)), 60 * POLL)) == 1
    assert folder.add(joined(row(PathRowKind.LOSS, 3)), 61 * POLL) == []


def test_a_published_begin_gets_its_end_also_in_a_flood() -> None:
    """Readers join both: a hidden end would leave the queue open."""
    folder = EventFolder()
    loss, over = joined(row(PathRowKind.LOSS)), joined(row(PathRowKind.LOSS_OVER))
    told = [
        event
        for number, rows in enumerate([loss, over, loss, over, loss, over], 1)
        for event in folder.add(rows, number * POLL)
    ]
    assert [event.phase for event in told] == ["begin", "end", "begin", "end"]
    assert {event.subject for event in told} == {"10.94.6.2 hop 4 loss"}
    (rest,) = folder.add(NONE, 7 * POLL, final=True)
    assert (rest.phase, rest.subject) == ("end", "10.94.6.2 hop 4 loss")
    assert "loss 2 more times" in rest.text
    assert told[0].unit == "%"
