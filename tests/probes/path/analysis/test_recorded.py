"""S3.20 on a recording: what the path probe measured in the lab, not what a simulator makes of it.

`lab.npz`: client - r1 - ... - r6 - server, 20 Mbit/s and 200 ms of buffer at r3, r2 silent. A ping
of 200 per second until second 10, meanwhile (at 6.5) a detour of two routers more behind r4; then
a single TCP (cubic) that fills the buffer, until the end. Columns as in HOP; `sent_ns` from the
begin on, `rtt_ns` 0 without an answer, `responder` the place in `addresses` (IPv4).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.records import HOP, PATH, PathRowKind
from tests.probes.path.analysis.simulated import (
    DESTINATION,
    START,
    analysed,
    at,
    events,
    of,
    polls,
    raw,
)

PING, BULK = 8368, 45436
"""Source port, and identifier."""


def recorded() -> Array:
    """Rows of dtype HOP."""
    with np.load(Path(__file__).with_name("lab.npz")) as columns:
        rows = np.zeros(len(columns["hop"]), HOP)
        names = ("hop", "outcome", "source_port", "destination_port", "protocol", "sequence")
        for name in names:
            rows[name] = columns[name]
        rows["sent_ns"] = columns["sent_ns"] + START
        rtts = columns["rtt_ns"].astype("i8")
        rows["received_ns"] = np.where(rtts > 0, rows["sent_ns"] + rtts, 0)
        rows["responder"][:, :4] = columns["addresses"][columns["responder"]]
    rows["version"] = 4
    rows["destination"] = np.frombuffer(raw(DESTINATION), "u1")
    rows["source"] = np.frombuffer(raw("10.94.0.1"), "u1")
    return rows


@pytest.fixture(scope="module")
def told() -> Array:
    return analysed(recorded())


def test_the_detour_is_told_with_its_hops(told: Array) -> None:
    changes = of(told, PathRowKind.RESPONDER)
    assert changes[["hop", "source_port"]].tolist() == [(5, PING), (6, PING)]
    assert changes["responder"][:, :4].tolist() == [[10, 94, 110, 2], [10, 94, 111, 2]]
    assert all(at(row) - at(row, "since_ns") <= 0.3 for row in changes)
    longer = of(told, PathRowKind.LONGER)
    assert longer["hop"].max() == 8
    assert longer["amount"].sum() == 2
    assert at(longer[-1]) - at(changes[0], "since_ns") <= 1
    (route,) = of(told, PathRowKind.ROUTE)
    assert (route["hop"], route["other_hop"], route["flows"]) == (5, 6, 1)
    assert at(route) - at(changes[0], "since_ns") <= 1
    amounts = of(told, PathRowKind.ROUTE_AMOUNTS)
    assert route["amount"] == 2 or amounts["amount"].tolist() == [2]


def test_the_queue_is_told_at_its_hop_though_the_flow_began_with_it(told: Array) -> None:
    queues = of(told, PathRowKind.QUEUE)
    assert queues[["hop", "source_port"]].tolist() == [(4, BULK)]
    began = recorded()
    began = began[began["source_port"] == BULK]["sent_ns"].min()
    assert 0 <= queues["since_ns"][0] - began <= 0.5e9
    assert queues["at_ns"][0] - began <= 2e9
    assert 20e6 < queues["amount_ns"][0] <= 205e6
    during = told[(told["kind"] == PathRowKind.SUMMARY) & (told["at_ns"] > queues["at_ns"][0])]
    during = during[(during["source_port"] == BULK) & (during["answered"] > 0)]
    assert 100e6 < np.median(during["amount_ns"][during["hop"] == 4]) < 205e6
    assert (during["amount_ns"][during["hop"] != 4] == 0).all()


def test_a_flow_that_begins_with_its_queue_is_told_without_others_too() -> None:
    """Its first half second is no baseline."""
    alone = recorded()
    alone = alone[alone["source_port"] == BULK]
    analysis = Analysis()
    found = np.concatenate([analysis.add(*poll) for poll in polls(alone)], dtype=PATH)
    assert events(found)[["kind", "hop"]].tolist() == [(PathRowKind.QUEUE, 4)]
    queue = of(found, PathRowKind.QUEUE)[0]
    assert queue["at_ns"] - alone["sent_ns"].min() <= 2.5e9


def test_nothing_else_is_told(told: Array) -> None:
    """The silent router among it: it never answered."""
    assert set(events(told)["kind"]) == {
        PathRowKind.RESPONDER,
        PathRowKind.LONGER,
        PathRowKind.QUEUE,
        PathRowKind.ROUTE,
    }


def test_without_the_events_nothing_is_told() -> None:
    quiet = recorded()
    quiet = quiet[quiet["sent_ns"] < START + 6_000_000_000]
    analysis = Analysis()
    found = np.concatenate([analysis.add(*poll) for poll in polls(quiet)], dtype=PATH)
    assert len(events(found)) == 0
    assert len(found) > 20
