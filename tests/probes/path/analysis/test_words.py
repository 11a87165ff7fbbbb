"""Findings in words."""

from __future__ import annotations

import numpy as np
import pytest

from probes.path.analysis.words import describe, tell
from probes.path.records import PATH, Array, PathRowKind
from tests.probes.path.analysis.simulated import raw


def row(kind: PathRowKind, hop: int = 4, **fields: int) -> Array:
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


@pytest.mark.parametrize(
    ("told", "severity", "text"),
    [
        (
            row(PathRowKind.RESPONDER, 3),
            "warning",
            "10.94.6.2 hop 3: answered by 10.94.2.2, was 10.94.7.2",
        ),
        (
            row(PathRowKind.BALANCED),
            "info",
            "10.94.6.2 hop 4: tcp 40000>5201 goes by 10.94.2.2, other flows by 10.94.7.2",
        ),
        (
            row(PathRowKind.BALANCED_PACKETS, protocol=1),
            "info",
            "10.94.6.2 hop 4: packets of icmp 40000 go by 10.94.2.2 and by 10.94.7.2 in turn",
        ),
        (
            row(PathRowKind.LONGER, 7, amount=1),
            "warning",
            "10.94.6.2 hop 7: the path is longer, this is its last hop now (1 more)",
        ),
        (
            row(PathRowKind.SHORTER, amount=2),
            "warning",
            "10.94.6.2 hop 4: the path is shorter, this is its last hop now (2 fewer)",
        ),
        (
            row(PathRowKind.SILENT, amount=1),
            "warning",
            "10.94.6.2 hop 4: 10.94.2.2 answers no more since 3.2 s ago",
        ),
        (
            row(PathRowKind.SILENT, amount=3),
            "warning",
            "10.94.6.2 hop 4: no answer from here on (3 hops) since 3.2 s ago",
        ),
        (
            row(PathRowKind.ANSWERS, amount_ns=7_200_000_000),
            "info",
            "10.94.6.2 hop 4: 10.94.2.2 answers again after 7.2 s",
        ),
        (
            row(PathRowKind.SHIFT, amount_ns=-5_040_000),
            "warning",
            "10.94.6.2 hop 4: round-trip time shorter by 5.0 ms since 3.2 s ago",
        ),
        (
            row(PathRowKind.QUEUE, amount_ns=160_000_000),
            "warning",
            "10.94.6.2 hop 4: queue of 160 ms since 3.2 s ago",
        ),
        (
            row(PathRowKind.QUEUE_OVER, amount_ns=850_000),
            "info",
            "10.94.6.2 hop 4: queue is over, was up to 850 us",
        ),
        (
            row(PathRowKind.GAP, 0, amount_ns=1_500_000_000),
            "info",
            "10.94.6.2: no probes of tcp 40000>5201 for 1.5 s: nothing was sent",
        ),
    ],
)
def test_words(told: Array, severity: str, text: str) -> None:
    assert describe(told[0]) == (severity, text)


def test_every_kind_but_a_summary_has_words() -> None:
    for kind in set(PathRowKind) - {PathRowKind.SUMMARY}:
        made = row(kind)
        made["amount"] = 1
        assert describe(made[0])[1].startswith("10.94.6.2")
    with pytest.raises(ValueError, match="no event"):
        describe(row(PathRowKind.SUMMARY)[0])


def test_addresses_of_ipv6() -> None:
    made = row(PathRowKind.RESPONDER, version=6)
    for name, text in (("destination", "fd94::6:2"), ("responder", "fe80::1"), ("previous", "::1")):
        made[name] = np.frombuffer(raw(text), "u1")
    assert describe(made[0])[1] == "fd94::6:2 hop 4: answered by fe80::1, was ::1"


def test_what_several_flows_tell_is_told_once() -> None:
    rows = np.concatenate(
        [
            row(PathRowKind.SUMMARY),
            row(PathRowKind.RESPONDER),
            row(PathRowKind.RESPONDER, source_port=40001),
            row(PathRowKind.RESPONDER, 5),
        ],
        dtype=PATH,
    )
    assert [text[:16] for _, text in tell(rows)] == ["10.94.6.2 hop 4:", "10.94.6.2 hop 5:"]
