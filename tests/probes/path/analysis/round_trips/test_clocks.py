"""The way of a queue, by the timestamps of the flow itself, and queues behind the last router."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.records import DESTINATION_HOP, PATH, MeasuredBy, PathRowKind, QueueSide
from tests.probes.path.analysis.simulated import (
    START,
    Flow,
    Hop,
    events,
    idle,
    of,
    path,
    plus,
    polls,
    probes,
    queue_at,
    said,
    sawtooth,
)


def delay(seconds: Array) -> Array:
    return sawtooth(seconds, 10, 16)


def findings(
    hops: list[Hop], back: float, *, tick_ns: float = 1e6, offset: int = 4_294_960_000,
    few: bool = False,
) -> Array:  # fmt: skip
    """Of a flow whose queue is on the way back for a share, by the remote clock."""
    own = Hop(plus(idle(40), delay))
    rows = probes(Flow(hops, end=22, end_to_end=own))
    mine = rows["hop"] == DESTINATION_HOP
    rows["measured_by"][mine] = MeasuredBy.TCP_ACK
    sent, received = rows["sent_ns"][mine], rows["received_ns"][mine]
    queue = delay((sent - START) / 1e9)
    left = received - back * queue - 20_000
    ticks = ((left - START) / tick_ns).astype("i8") + offset
    rows["remote_clock"][mine] = (ticks % (1 << 32)).astype("u4")
    if few:
        own_in_queue = mine & (delay((rows["sent_ns"] - START) / 1e9) > 0)
        rows = rows[~own_in_queue | (np.arange(len(rows)) % 24 == 0)]
    analysis = Analysis()
    return np.concatenate([analysis.add(*poll) for poll in polls(rows)], dtype=PATH)


@pytest.mark.parametrize(
    ("back", "side"),
    [(0, QueueSide.THERE), (1, QueueSide.BACK), (0.5, QueueSide.EITHER)],
)
def test_the_way_of_a_queue(back: float, side: QueueSide) -> None:
    """The clock wraps around meanwhile."""
    queue = of(findings(queue_at(path(5), 4, delay), back), PathRowKind.QUEUE)
    assert queue[["hop", "other_hop", "side"]].tolist() == [(4, 3, side)]
    assert side.words in said(queue)[0][1]


def test_few_times_in_the_queue_are_not_taken_for_the_usual_ones() -> None:
    queue = of(findings(queue_at(path(5), 4, delay), 1, few=True), PathRowKind.QUEUE)
    assert queue["side"].tolist() == [QueueSide.BACK]


def test_a_clock_that_counts_no_milliseconds_tells_no_way() -> None:
    queue = of(findings(queue_at(path(5), 4, delay), 1, tick_ns=4e6), PathRowKind.QUEUE)
    assert queue[["hop", "side"]].tolist() == [(4, QueueSide.EITHER)]


def test_a_queue_behind_the_last_router_is_told_at_the_destination() -> None:
    found = events(findings(path(5), 0))
    queue, over = found
    assert (queue["kind"], queue["hop"]) == (PathRowKind.QUEUE, DESTINATION_HOP)
    assert (queue["other_hop"], queue["side"]) == (5, QueueSide.THERE)
    assert over["kind"] == PathRowKind.QUEUE_OVER
    assert "between 10.94.0.5 (hop 5) and the destination, on the way there" in said(found)[0][1]


def test_without_timestamps_the_way_is_unknown() -> None:
    rows = probes(Flow(queue_at(path(5), 4, delay), end=22))
    analysis = Analysis()
    found = np.concatenate([analysis.add(*poll) for poll in polls(rows)], dtype=PATH)
    assert of(found, PathRowKind.QUEUE)[["hop", "side"]].tolist() == [(4, QueueSide.EITHER)]
