"""The example's policies, each against its attack and against ordinary traffic.

Numbers come from recorded attacks and traffic: hping3 and booters, spoofed and answered, nmap,
reflectors of DNS, SNMP and IKE; browsing, calls, tunnels, servers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from probes.monitor.engine import Engine
from probes.monitor.policy import load
from probes.monitor.records import METRIC, Array

EXAMPLE = Path(__file__).parents[3] / "examples" / "policies.toml"
FILE = load(EXAMPLE)
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Mix:
    """Traffic of one kind to here, in a second."""

    protocol: str
    packets: float
    size: float
    """Bytes of a packet."""
    flows: float


class Span(NamedTuple):
    """Traffic that lasts from one second to another."""

    start: float
    end: float
    mixes: tuple[Mix, ...]


@dataclass(frozen=True)
class Attack:
    mixes: tuple[Mix, ...]
    seconds: float = 8.0
    told: int = 2
    """Windows from the attack's beginning to the report."""
    hidden: bool = False
    """Whether a browser's traffic hides it."""


WEB = (Mix("tcp", 900, 850, 35), Mix("udp", 400, 1050, 12), Mix("udp", 15, 180, 15))
"""Browsing: TLS, QUIC, and answers of DNS."""
BOTH_WAYS = (*WEB, Mix("tcp", 500, 120, 35), Mix("udp", 120, 110, 12), Mix("udp", 15, 75, 15))
CALL = (Mix("udp", 450, 700, 4), Mix("udp", 20, 120, 4))
DOWNLOAD = (Mix("tcp", 80_000, 1500, 4),)
UPLOAD = (Mix("tcp", 40_000, 66, 4),)
"""Only acknowledgements come back."""
TUNNELLED_UPLOAD = (Mix("udp", 8_000, 146, 1),)
QUIC_DOWNLOAD = (Mix("udp", 60_000, 1290, 3),)
PING_SWEEP = (Mix("icmp", 250, 98, 250),)
RESOLVER = (Mix("udp", 2_000, 78, 1_950), Mix("udp", 1_900, 190, 1_850), Mix("tcp", 60, 110, 12))
"""Questions of its clients, and answers of others."""
SERVER = (Mix("tcp", 20_000, 150, 2_500),)
"""Short connections of many clients."""
HEALTH_CHECKS = (Mix("tcp", 3_000, 62, 1_000),)
"""SYN, ACK, RST."""
HEALTH_CHECKS_BOTH_WAYS = (Mix("tcp", 4_000, 62, 2_000),)
OFFICE = (*WEB, *WEB, *WEB, *CALL, *CALL, Mix("tcp", 500, 120, 200), Mix("icmp", 30, 98, 12))
TUNNEL = (Mix("udp", 30_000, 1100, 2),)
TORRENT = (Mix("udp", 3_000, 850, 150), Mix("udp", 300, 130, 250), Mix("tcp", 800, 900, 60))
GAME_SERVER = (Mix("udp", 6_000, 110, 100),)
IDLE_CONNECTIONS = (Mix("tcp", 90, 66, 85),)
QUIET = (Mix("tcp", 120, 500, 10), Mix("udp", 15, 180, 15))
BENIGN = {
    "nothing": (),
    "web browsing": WEB,
    "web browsing, recorded in both directions": BOTH_WAYS,
    "a large download": DOWNLOAD + WEB,
    "a large download by QUIC": QUIC_DOWNLOAD + WEB,
    "a large upload": UPLOAD,
    "a large upload through a tunnel": TUNNELLED_UPLOAD,
    "a video call": CALL,
    "a video call while browsing": CALL + WEB,
    "a monitoring system's ping sweep": PING_SWEEP,
    "the same in an office": PING_SWEEP + OFFICE,
    "a resolver's load": RESOLVER,
    "a resolver's load beside a download": RESOLVER + DOWNLOAD,
    "a web server": SERVER,
    "health checks": HEALTH_CHECKS,
    "health checks, recorded in both directions": HEALTH_CHECKS_BOTH_WAYS,
    "an office": OFFICE,
    "a tunnel": TUNNEL,
    "file sharing": TORRENT,
    "a game server": GAME_SERVER,
    "idle connections": IDLE_CONNECTIONS,
}
ATTACKS = {
    "syn_flood": {
        "spoofed sources": Attack((Mix("tcp", 20_000, 54, 20_000),)),
        "a pulse": Attack((Mix("tcp", 20_000, 60, 19_800),), 0.5),
        "recorded twice": Attack((Mix("tcp", 26_000, 60, 13_000),), 1.0),
        "answered": Attack((Mix("tcp", 15_000, 57, 10_000),)),
        "with options": Attack((Mix("tcp", 5_000, 74, 5_000),)),
        "slowly": Attack((Mix("tcp", 2_000, 70, 2_000),), 8.0, 5, hidden=True),
        "one a millisecond, answered": Attack(
            (Mix("tcp", 1_500, 59, 1_000),), 20.0, 5, hidden=True
        ),
        "reflected": Attack(
            (Mix("tcp", 7_700, 58, 7_600), Mix("icmp", 150, 130, 150), Mix("udp", 160, 320, 100)),
            1.2,
        ),
    },
    "port_scan": {
        "a thousand ports at once": Attack((Mix("tcp", 5_000, 56, 5_000),), 0.4, 3, hidden=True),
        "a thousand ports of three hosts": Attack(
            (Mix("tcp", 2_800, 56, 2_800),), 2.1, 5, hidden=True
        ),
        "a thousand ports that do not answer": Attack(
            (Mix("tcp", 400, 58, 400),), 5.0, hidden=True
        ),
        "with connections": Attack((Mix("tcp", 300, 67, 300),), 10.0, hidden=True),
        "slowly": Attack((Mix("tcp", 250, 58, 250),), 15.0, hidden=True),
    },
    "udp_flood": {
        "empty datagrams": Attack((Mix("udp", 20_000, 60, 20_000),)),
        "empty datagrams of one flow": Attack((Mix("udp", 20_000, 60, 1),)),
        "filled ones": Attack((Mix("udp", 15_000, 554, 15_000),)),
        "filled ones of some flows": Attack((Mix("udp", 25_000, 554, 10),)),
        "recorded twice": Attack((Mix("udp", 12_000, 410, 6_000),)),
        "very many": Attack((Mix("udp", 200_000, 160, 50_000),)),
        "reflected by IKE": Attack((Mix("udp", 4_000, 246, 3_980),)),
        "reflected by name servers": Attack(
            (Mix("udp", 6_200, 127, 6_000), Mix("icmp", 330, 105, 300))
        ),
        "with errors of the host": Attack(
            (Mix("udp", 3_000, 60, 3_000), Mix("icmp", 1_050, 88, 1))
        ),
    },
    "dns_amplification": {
        "fragments": Attack((Mix("udp", 9_000, 1_300, 1_500),)),
        "whole answers": Attack((Mix("udp", 4_000, 1_100, 4_000),)),
        "recorded twice": Attack((Mix("udp", 8_000, 1_450, 4_000),)),
    },
    "icmp_flood": {
        "of one": Attack((Mix("icmp", 15_000, 98, 1),)),
        "spoofed sources": Attack((Mix("icmp", 15_000, 60, 15_000),)),
        "answered": Attack((Mix("icmp", 3_000, 98, 2),)),
    },
}
UDP_SCAN = (Mix("udp", 1_150, 43, 1_150), Mix("icmp", 1_100, 70, 3))


def cases(least: float = 0.0) -> list[ParameterSet]:
    """Policies and their attacks that last for so many seconds at least."""
    return [
        pytest.param(policy, attack, id=f"{policy}: {kind}")
        for policy, kinds in ATTACKS.items()
        for kind, attack in kinds.items()
        if attack.seconds >= least
    ]


def window(
    spans: Sequence[Span], start: float, end: float, generator: np.random.Generator
) -> Array:
    """The monitor's estimate, with 12 bits."""
    row = np.zeros((), METRIC)
    flows = 0.0
    for span in spans:
        seconds = max(0.0, min(end, span.end) - max(start, span.start))
        for mix in span.mixes:
            packets = int(generator.poisson(mix.packets * seconds))
            octets = round(packets * mix.size * generator.uniform(0.97, 1.03))
            for kind in ("", f"{mix.protocol}_"):
                row[f"{kind}packets"] += packets
                row[f"{kind}bytes"] += octets
            flows += min(packets, mix.flows * seconds * generator.uniform(0.95, 1.0))
    row["flows"] = flows * generator.normal(1, 0.0155)
    row["flows_low"], row["flows_high"] = row["flows"] * 0.97, row["flows"] * 1.03
    return row


def fired(spans: Sequence[Span], until: float, seconds: float = 1.0) -> dict[str, list[int]]:
    """In which windows policies become active."""
    engine = Engine()
    for policy in FILE.policy:
        engine.set(policy, 0)
    generator = np.random.default_rng(zlib.crc32(repr(spans).encode()))
    found: dict[str, list[int]] = {}
    for number in range(round(until / seconds)):
        row = window(spans, number * seconds, (number + 1) * seconds, generator)
        end_ns = round((number + 1) * seconds * SECOND)
        for each in engine.window(row, end_ns, seconds, {}):
            if each.after.runs and not each.before.runs:
                found.setdefault(each.policy, []).append(number)
    return found


def test_there_is_a_policy_for_each_kind_of_attack() -> None:
    assert {policy.name for policy in FILE.policy} == {*ATTACKS, "accounting"}
    assert [policy.name for policy in FILE.policy if policy.mode == "permanent"] == ["accounting"]


@pytest.mark.parametrize("case", BENIGN)
@pytest.mark.parametrize("seconds", [0.25, 1.0, 10.0])
def test_ordinary_traffic_wakes_none(case: str, seconds: float) -> None:
    """Not while it goes on, and not when it begins or ends, in the middle of a window."""
    spans = [Span(5.3 * seconds, 25.7 * seconds, BENIGN[case])]
    assert not fired(spans, 31 * seconds, seconds)


@pytest.mark.parametrize(("policy", "attack"), cases())
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
def test_an_attack_wakes_its_policy_and_no_other(policy: str, attack: Attack, phase: float) -> None:
    """Soon, and once, also when it begins and ends within a window."""
    for beside in ((), QUIET) if attack.hidden else ((), QUIET, WEB + CALL):
        start, end = 4 + phase, 4 + phase + attack.seconds
        told = fired([Span(0, end + 8, beside), Span(start, end, attack.mixes)], end + 8)
        assert told.keys() == {policy}
        assert len(told[policy]) == 1
        assert 4 <= told[policy][0] < 4 + attack.told + (phase > 0)


@pytest.mark.parametrize(("policy", "attack"), cases())
def test_a_shorter_interval_makes_no_difference(policy: str, attack: Attack) -> None:
    spans = [Span(0, 12 + attack.seconds, QUIET), Span(6, 6 + attack.seconds, attack.mixes)]
    assert fired(spans, 12 + attack.seconds, 0.25).keys() == {policy}


@pytest.mark.parametrize(("policy", "attack"), cases(8.0))
def test_a_longer_interval_makes_no_difference(policy: str, attack: Attack) -> None:
    spans = [Span(0, 60, QUIET), Span(20, 50, attack.mixes)]
    assert fired(spans, 60, 10.0).keys() == {policy}


def test_a_scan_by_udp_is_no_flood() -> None:
    assert not fired([Span(5, 15, UDP_SCAN)], 20)


def test_the_end_of_a_flood_is_no_scan() -> None:
    """Nor is a slower rest of it."""
    flood = ATTACKS["syn_flood"]["spoofed sources"].mixes
    for rest in (Mix("tcp", 1_000, 54, 1_000), Mix("tcp", 500, 54, 500)):
        spans = [Span(0, 25, WEB), Span(5, 10, flood), Span(10, 11, (rest,))]
        assert fired(spans, 25).keys() == {"syn_flood"}
