"""Findings in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.events.words import describe
from probes.path.records import DESTINATION_HOP, PATH, PathRowKind, QueueSide
from tests.probes.path.analysis.simulated import raw


def row(kind: PathRowKind, hop: int = 4, **fields: float) -> Array:
    made = np.zeros(1, PATH)
    made["version"], made["protocol"] = 4, 6
    made["destination"] = np.frombuffer(raw("10.94.6.2"), "u1")
    made["responder"] = np.frombuffer(raw("10.94.2.2"), "u1")
    made["previous"] = np.frombuffer(raw("10.94.7.2"), "u1")
    made["source_port"], made["destination_port"] = 40000, 5201
    made["hop"], made["kind"] = hop, kind
    made["at_ns"], made["since_ns"] = 10_000_000_000, 6_800_000_000
    for name, value in fields.items():
        made[name] = value
    return made


LOST: dict[str, Any] = {"answered": 190, "lost": 10, "loss_low": 0.027, "loss_high": 0.09}


@pytest.mark.parametrize(
    ("told", "severity", "text"),
    [
        (
            row(PathRowKind.RESPONDER, 3),
            "info",
            "10.94.6.2 hop 3: answered by 10.94.2.2, was 10.94.7.2",
        ),
        (
            row(PathRowKind.BALANCED, flows=7),
            "info",
            "10.94.6.2 hop 4: 7 flows of several go by 10.94.2.2",
        ),
        (
            row(PathRowKind.BALANCED_PACKETS, protocol=1),
            "info",
            "10.94.6.2 hop 4: packets of icmp 40000 go by 10.94.2.2 and by 10.94.7.2 in turn",
        ),
        (
            row(PathRowKind.LONGER, 7, amount=1),
            "info",
            "10.94.6.2 hop 7: the path of tcp 40000>5201 is one hop longer: "
            "this is its last hop now",
        ),
        (
            row(PathRowKind.SHORTER, amount=2),
            "info",
            "10.94.6.2 hop 4: the path of tcp 40000>5201 is 2 hops shorter: "
            "this is its last hop now",
        ),
        (
            row(PathRowKind.SILENT, amount=1),
            "warning",
            "10.94.6.2 hop 4: 10.94.2.2 answers no more since 3.2 s ago, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.SILENT, amount=3),
            "warning",
            "10.94.6.2 hop 4: no answer from here on (3 hops) since 3.2 s ago, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.ANSWERS, amount_ns=7_200_000_000),
            "info",
            "10.94.6.2 hop 4: 10.94.2.2 answers again after 7.2 s, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.SHIFT, amount_ns=5_040_000),
            "warning",
            "10.94.6.2 hop 4: round-trip time longer by 5.04 ms since 3.2 s ago, "
            "for tcp 40000>5201",
        ),
        (
            row(PathRowKind.SHIFT, amount_ns=-5_040_000),
            "info",
            "10.94.6.2 hop 4: round-trip time shorter by 5.04 ms since 3.2 s ago, "
            "for tcp 40000>5201",
        ),
        (
            row(PathRowKind.QUEUE, amount_ns=160_000_000, other_hop=3, side=QueueSide.BACK),
            "warning",
            "10.94.6.2 hop 4: queue of 160 ms between 10.94.7.2 (hop 3) and 10.94.2.2 (hop 4), "
            "on the way back, since 3.2 s ago, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.QUEUE, 1, amount_ns=160_000_000, side=QueueSide.THERE),
            "warning",
            "10.94.6.2 hop 1: queue of 160 ms between this host and 10.94.2.2 (hop 1), "
            "on the way there, since 3.2 s ago, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.QUEUE, DESTINATION_HOP, amount_ns=160_000_000, other_hop=5),
            "warning",
            "10.94.6.2: queue of 160 ms between 10.94.7.2 (hop 5) and the destination, "
            "either way, since 3.2 s ago, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.QUEUE_OVER, amount_ns=850_000),
            "info",
            "10.94.6.2 hop 4: queue is over, was up to 850 us, for tcp 40000>5201",
        ),
        (
            row(PathRowKind.GAP, 0, amount_ns=1_500_000_000),
            "info",
            "10.94.6.2: no probes of tcp 40000>5201 for 1.5 s: nothing was sent",
        ),
        (
            row(PathRowKind.ROUTE, 3, other_hop=5, flows=4, amount=1, amount_ns=6_000_000),
            "info",
            "10.94.6.2: route changed at hops 3-5 for 4 flows: by 10.94.2.2, was 10.94.7.2; "
            "one hop longer, +6.00 ms",
        ),
        (
            row(PathRowKind.ROUTE, 3, other_hop=3, flows=1),
            "info",
            "10.94.6.2: route changed at hop 3 for tcp 40000>5201: by 10.94.2.2, was 10.94.7.2",
        ),
        (
            row(PathRowKind.ROUTE_AMOUNTS, 3, other_hop=5, flows=2, amount=-2),
            "info",
            "10.94.6.2: 2 hops shorter since the route changed at hops 3-5, for 2 flows",
        ),
        (
            row(PathRowKind.ALIAS, flows=2),
            "info",
            "10.94.6.2 hop 4: answered by 10.94.2.2, was 10.94.7.2, for 2 flows: another router, "
            "or another address of the same one; later hops and the round-trip time are the same",
        ),
        (
            row(PathRowKind.ALIAS, amount=1),
            "info",
            "10.94.6.2 hop 4: answered by 10.94.2.2, was 10.94.7.2, for tcp 40000>5201: another "
            "router, or another address of the same one, by a way back that is one hop longer; "
            "later hops and the round-trip time are the same",
        ),
        (
            row(PathRowKind.LOSS, other_hop=3, flows=2, **LOST),
            "warning",
            "10.94.6.2 hop 4: loss of 5.0 % (2.7 % to 9.0 %) between 10.94.7.2 (hop 3) and "
            "10.94.2.2 (hop 4), either way, since 3.2 s ago, for 2 flows",
        ),
        (
            row(PathRowKind.LOSS_OVER, DESTINATION_HOP, **LOST),
            "info",
            "10.94.6.2: loss is over, was 5.0 % (2.7 % to 9.0 %), for tcp 40000>5201",
        ),
    ],
)
def test_words(told: Array, severity: str, text: str) -> None:
    assert describe(told[0]) == (severity, text)


def test_every_kind_but_a_summary_has_words() -> None:
    for kind in set(PathRowKind) - {PathRowKind.SUMMARY}:
        amounts = {"amount": 1, "amount_ns": 1_000_000}
        assert describe(row(kind, **amounts)[0])[1].startswith("10.94.6.2")
    with pytest.raises(ValueError, match="no event"):
        describe(row(PathRowKind.SUMMARY)[0])


def test_addresses_of_ipv6() -> None:
    made = row(PathRowKind.RESPONDER, version=6)
    for name, text in (("destination", "fd94::6:2"), ("responder", "fe80::1"), ("previous", "::1")):
        made[name] = np.frombuffer(raw(text), "u1")
    assert describe(made[0])[1] == "fd94::6:2 hop 4: answered by fe80::1, was ::1"
