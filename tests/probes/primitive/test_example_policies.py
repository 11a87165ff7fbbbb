"""The example's policies, each against its attack and against ordinary traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from probes.primitive.engine import Engine
from probes.primitive.policy import load
from probes.primitive.records import METRIC, Array

EXAMPLE = Path(__file__).parents[3] / "examples" / "policies.toml"
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Mix:
    """Traffic of one kind to here, in a second."""

    protocol: str
    packets: float
    size: float
    """Bytes of a packet."""
    flows: float


WEB = (Mix("tcp", 900, 850, 35), Mix("udp", 400, 1050, 12), Mix("udp", 15, 180, 15))
"""Browsing: TLS, QUIC, and answers of DNS."""
CALL = (Mix("udp", 450, 700, 4), Mix("udp", 20, 120, 4))
DOWNLOAD = (Mix("tcp", 80_000, 1500, 4),)
UPLOAD = (Mix("tcp", 40_000, 66, 4),)
"""Only acknowledgements come back."""
QUIC_DOWNLOAD = (Mix("udp", 60_000, 1290, 3),)
PING_SWEEP = (Mix("icmp", 250, 98, 250),)
RESOLVER = (Mix("udp", 4_000, 78, 3_900), Mix("udp", 3_800, 190, 3_700), Mix("tcp", 60, 110, 12))
"""Questions of its clients, and answers of others."""
SERVER = (Mix("tcp", 20_000, 150, 2_500),)
"""Short connections of many clients."""
HEALTH_CHECKS = (Mix("tcp", 3_000, 62, 1_000),)
"""SYN, ACK, RST."""
OFFICE = (*WEB, *WEB, *WEB, *CALL, *CALL, Mix("tcp", 500, 120, 200), Mix("icmp", 30, 98, 12))
TUNNEL = (Mix("udp", 30_000, 1100, 2),)
QUIET = (Mix("tcp", 120, 500, 10), Mix("udp", 15, 180, 15))
BENIGN = {
    "nothing": (),
    "web browsing": WEB,
    "a large download": DOWNLOAD + WEB,
    "a large download by QUIC": QUIC_DOWNLOAD + WEB,
    "a large upload": UPLOAD,
    "a video call": CALL,
    "a video call while browsing": CALL + WEB,
    "a monitoring system's ping sweep": PING_SWEEP,
    "the same in an office": PING_SWEEP + OFFICE,
    "a resolver's load": RESOLVER,
    "a resolver's load beside a download": RESOLVER + DOWNLOAD,
    "a web server": SERVER,
    "health checks": HEALTH_CHECKS,
    "an office": OFFICE,
    "a tunnel": TUNNEL,
}
ATTACKS = {
    "syn_flood": {
        "spoofed sources": (Mix("tcp", 20_000, 54, 20_000),),
        "with options, slowly": (Mix("tcp", 5_000, 74, 5_000),),
    },
    "port_scan": {
        "a thousand ports": (Mix("tcp", 1_000, 58, 1_000),),
        "slowly": (Mix("tcp", 250, 58, 250),),
    },
    "udp_flood": {
        "empty datagrams": (Mix("udp", 20_000, 60, 20_000),),
        "empty datagrams of one flow": (Mix("udp", 20_000, 60, 1),),
        "filled ones": (Mix("udp", 15_000, 554, 15_000),),
        "very many": (Mix("udp", 200_000, 160, 50_000),),
    },
    "dns_amplification": {
        "fragments": (Mix("udp", 9_000, 1_300, 1_500),),
        "whole answers": (Mix("udp", 4_000, 1_100, 4_000),),
    },
    "icmp_flood": {
        "of one": (Mix("icmp", 15_000, 98, 1),),
        "spoofed sources": (Mix("icmp", 15_000, 60, 15_000),),
    },
}
CASES = [
    pytest.param(policy, traffic, id=f"{policy}: {kind}")
    for policy, kinds in ATTACKS.items()
    for kind, traffic in kinds.items()
]


def window(traffic: Iterable[Mix], seconds: float, generator: np.random.Generator) -> Array:
    """What the monitor says of it, with 12 bits."""
    row = np.zeros((), METRIC)
    flows = 0.0
    for mix in traffic:
        packets = int(generator.poisson(mix.packets * seconds))
        octets = round(packets * mix.size * generator.uniform(0.97, 1.03))
        for kind in ("", f"{mix.protocol}_"):
            row[f"{kind}packets"] += packets
            row[f"{kind}bytes"] += octets
        flows += min(packets, mix.flows * seconds * generator.uniform(0.9, 1.1))
    row["flows"] = flows * generator.normal(1, 0.0155)
    row["flows_low"], row["flows_high"] = row["flows"] * 0.97, row["flows"] * 1.03
    return row


def fired(traffic: Iterable[Iterable[Mix]], seconds: float = 1.0) -> list[set[str]]:
    """Who becomes active, window by window."""
    engine = Engine()
    for policy in load(EXAMPLE).policy:
        engine.set(policy, 0)
    generator = np.random.default_rng(5)
    found = []
    for number, mixes in enumerate(traffic, 1):
        end_ns = round(number * seconds * SECOND)
        moved = engine.window(window(mixes, seconds, generator), end_ns, seconds)
        found.append({each.policy for each in moved if each.after.runs and not each.before.runs})
    return found


def test_there_is_a_policy_for_each_kind_of_attack() -> None:
    file = load(EXAMPLE)
    assert {policy.name for policy in file.policy} == {*ATTACKS, "accounting"}
    assert [policy.name for policy in file.policy if policy.mode == "permanent"] == ["accounting"]


@pytest.mark.parametrize("case", BENIGN)
@pytest.mark.parametrize("seconds", [0.25, 1.0, 10.0])
def test_ordinary_traffic_wakes_none(case: str, seconds: float) -> None:
    """Not while it goes on, and not when it begins or ends."""
    assert not set().union(*fired([[]] * 5 + [BENIGN[case]] * 60 + [[]] * 5, seconds))


@pytest.mark.parametrize(("policy", "attack"), CASES)
def test_an_attack_wakes_its_policy_and_no_other(policy: str, attack: tuple[Mix, ...]) -> None:
    """In the window in which it begins, and once. A flood does so beside browsing and a call too,
    which hide a scan."""
    for beside in ((), QUIET) if policy == "port_scan" else ((), QUIET, WEB + CALL):
        told = fired([beside] * 10 + [(*beside, *attack)] * 30 + [beside] * 10)
        assert told == [{policy} if number == 10 else set() for number in range(50)]


@pytest.mark.parametrize(("policy", "attack"), CASES)
@pytest.mark.parametrize("seconds", [0.25, 10.0])
def test_the_interval_makes_no_difference(
    policy: str, attack: tuple[Mix, ...], seconds: float
) -> None:
    told = fired([QUIET] * 20 + [(*QUIET, *attack)] * 5 + [QUIET] * 20, seconds)
    assert set().union(*told) == {policy}


def test_the_end_of_a_flood_is_no_scan() -> None:
    """Its last packets come in a part of a window."""
    flood = ATTACKS["syn_flood"]["spoofed sources"]
    rest = (Mix("tcp", 1_000, 54, 1_000),)
    assert set().union(*fired([WEB] * 5 + [flood] * 5 + [rest] + [WEB] * 40)) == {"syn_flood"}
