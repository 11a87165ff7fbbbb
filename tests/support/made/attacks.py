"""Made attacks, each at its usual rate, with the culprit that a finding has to name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.support.made.traffic import (
    ATTACKER,
    ECHO_REQUEST,
    ESP,
    GRE,
    ICMP,
    MORE_FRAGMENTS,
    TCP,
    UDP,
    VICTIM,
    A,
    F,
    P,
    R,
    Random,
    Rows,
    S,
    U,
    addresses,
    connections,
    mixed,
    packets,
    ports,
)

_INTERNET = 32
_NETWORK = 0xCB007100
"""203.0.113.0/24."""


@dataclass(frozen=True, slots=True)
class Attack:
    policy: str
    """The policy that has to tell it."""
    name: str
    make: Callable[[float, Random], Rows]
    """From a number of seconds."""
    source: int = 0
    """Address of the culprit; 0: forged or many."""
    destination: int = VICTIM
    """Address of the victim; 0: many."""

    @property
    def id(self) -> str:
        return f"{self.policy}: {self.name}"


def _forged(rows: Rows, random: Random) -> Rows:
    """The rows from addresses and ports at random."""
    rows["source"] = random.integers(0x01000000, 0xDF000000, len(rows), "u4")
    rows["source_port"] = ports(len(rows), random)
    return rows


def flood(rate: float, flags: int, *, forged: bool = True) -> Callable[[float, Random], Rows]:
    """TCP packets with these flags to one port."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, destination_port=80, flags=flags)
        if forged:
            return _forged(rows, random)
        rows["source"], rows["source_port"] = ATTACKER, 1024 + np.arange(len(rows)) % 64000
        return rows

    return make


def reflected(
    rate: float, reflectors: int, port: int, size: int, fragments: int = 0
) -> Callable[[float, Random], Rows]:
    """Answers of servers that the victim did not ask."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(
            rate, seconds, random, protocol=UDP, source_port=port, size=size, destination_port=4444
        )
        rows["source"] = random.choice(addresses(reflectors, random, bits=30), len(rows))
        if not fragments:
            return rows
        rows["fragment"], rows["size"] = MORE_FRAGMENTS, 1514
        rest = rows.copy()
        rest["time_ns"] += 2000
        rest["fragment"], rest["source_port"], rest["destination_port"] = 185, 0, 0
        return mixed(rows, rest)

    return make


def syn_ack(rate: float) -> Callable[[float, Random], Rows]:
    """Answers of servers to forged SYNs."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, source_port=443, flags=S | A)
        rows["source"] = addresses(len(rows), random, bits=30)
        rows["destination_port"] = ports(len(rows), random)
        return rows

    return make


def udp_flood(
    rate: float, size: int, flows: int = 0, forged: bool = True
) -> Callable[[float, Random], Rows]:
    """Datagrams of random ports, or of a number of flows."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=UDP, size=size, destination_port=30120)
        if flows:
            rows["source"], rows["source_port"] = ATTACKER, 40000 + np.arange(len(rows)) % flows
        elif forged:
            return _forged(rows, random)
        else:
            rows["source"], rows["source_port"] = ATTACKER, ports(len(rows), random)
        return rows

    return make


def icmp_flood(rate: float, forged: bool) -> Callable[[float, Random], Rows]:
    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=ICMP, destination_port=ECHO_REQUEST, size=98)
        rows["source"] = ATTACKER
        if forged:
            rows["source"] = random.integers(0x01000000, 0xDF000000, len(rows), "u4")
        return rows

    return make


def protocol_flood(rate: float, protocol: int) -> Callable[[float, Random], Rows]:
    """Packets of an IP protocol without ports."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=protocol, size=554)
        rows["source"] = addresses(len(rows), random, bits=30)
        return rows

    return make


def fragments(rate: float) -> Callable[[float, Random], Rows]:
    """Parts of datagrams that are never whole."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=UDP, size=60)
        rows["source"] = addresses(len(rows), random, bits=30)
        rows["fragment"] = MORE_FRAGMENTS | random.integers(1, 100, len(rows), "u2")
        return rows

    return make


def carpet(rate: float) -> Callable[[float, Random], Rows]:
    """A flood of a whole network."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=UDP, size=512)
        rows["destination"] = _NETWORK + random.integers(0, 256, len(rows))
        rows["source"] = random.choice(addresses(500, random, bits=30), len(rows))
        rows["source_port"], rows["destination_port"] = ports(len(rows), random), 8080
        return rows

    return make


def scan(
    rate: float, flags: int, protocol: int = TCP, hosts: int = 1
) -> Callable[[float, Random], Rows]:
    """Ports in random order, each once."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, flags=flags, protocol=protocol, source=ATTACKER)
        tried = np.concatenate([np.arange(1, 1024), random.permutation(64000)[:9000] + 1024])
        each = random.permutation(tried)
        rows["destination_port"] = each[np.arange(len(rows)) // hosts % len(each)]
        rows["destination"] = VICTIM + np.arange(len(rows)) % hosts
        rows["source_port"] = 41859
        return rows

    return make


def connect_scan(seconds: float, random: Random) -> Rows:
    """A scan, and the answers of closed ports."""
    rows = scan(300, S)(seconds, random)
    answers = rows.copy()
    for end, other in (("source", "destination"), ("source_port", "destination_port")):
        answers[end], answers[other] = rows[other], rows[end]
    answers["flags"] = R | A
    return mixed(rows, answers)


def sweep(
    rate: float, port: int, flags: int = 0, protocol: int = TCP, sources: int = 1, bits: int = 16
) -> Callable[[float, Random], Rows]:
    """One port of many hosts."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, protocol=protocol, flags=flags, destination_port=port)
        rows["destination"] = 0xCB000000 + random.permutation(1 << bits)[: len(rows)]
        rows["source"] = ATTACKER + np.arange(len(rows)) % sources
        rows["source_port"] = 0 if protocol == ICMP else 50000
        return rows

    return make


def protocol_scan(seconds: float, random: Random) -> Rows:
    """Each IP protocol once."""
    rows = packets(100, min(seconds, 2.5), random, source=ATTACKER)
    rows["protocol"] = np.arange(len(rows)) % 256
    return rows


def slowloris(seconds: float, random: Random) -> Rows:
    """Connections with the begin of a request."""
    rows = connections(80, seconds, random, flags=(S, A, P | A), spread=0.01, source=ATTACKER)
    rows["source"], rows["destination"], rows["destination_port"] = ATTACKER, VICTIM, 80
    return rows


def water_torture(seconds: float, random: Random) -> Rows:
    """Queries for random names, by way of many resolvers."""
    rows = packets(3000, seconds, random, protocol=UDP, destination_port=53)
    rows["source"] = random.choice(addresses(3000, random, bits=30), len(rows))
    rows["source_port"], rows["size"] = ports(len(rows), random), random.integers(75, 95, len(rows))
    return rows


ATTACKS = (
    Attack("syn_flood", "forged sources", flood(3000, S)),
    Attack("syn_flood", "slow", flood(500, S)),
    Attack("syn_flood", "one source", flood(3000, S, forged=False), ATTACKER),
    Attack("syn_ack_flood", "slow", syn_ack(500)),
    Attack("syn_ack_flood", "reflected", syn_ack(3000)),
    Attack("ack_flood", "slow", flood(900, A)),
    Attack("ack_flood", "forged sources", flood(3000, A)),
    Attack("ack_flood", "one source", flood(3000, A, forged=False), ATTACKER),
    Attack("rst_flood", "slow", flood(1200, R)),
    Attack("rst_flood", "forged sources", flood(3000, R)),
    Attack("udp_flood", "slow", udp_flood(1200, 60)),
    Attack("udp_flood", "forged sources", udp_flood(3000, 60)),
    Attack("udp_flood", "one source", udp_flood(3000, 554, forged=False), ATTACKER),
    Attack("udp_flood", "one flow", udp_flood(8000, 60, 1), ATTACKER),
    Attack("icmp_flood", "slow", icmp_flood(1000, forged=False), ATTACKER),
    Attack("icmp_flood", "one source", icmp_flood(2000, forged=False), ATTACKER),
    Attack("icmp_flood", "forged sources", icmp_flood(2000, forged=True)),
    Attack("gre_flood", "many sources", protocol_flood(3000, GRE)),
    Attack("protocol_flood", "ESP", protocol_flood(3000, ESP)),
    Attack("fragment_flood", "forged sources", fragments(3000)),
    Attack("fragment_flood", "slow", fragments(1000)),
    Attack("carpet_bombing", "a /24", carpet(3000), destination=0),
    Attack("carpet_bombing", "a /24, slow", carpet(1000), destination=0),
    Attack("dns_amplification", "slow", reflected(300, 2000, 53, 1200)),
    Attack("dns_amplification", "2000 reflectors", reflected(1500, 2000, 53, 1200)),
    Attack("dns_amplification", "20 reflectors", reflected(1000, 20, 53, 1225)),
    Attack("dns_amplification", "fragments", reflected(1000, 300, 53, 1514, fragments=1)),
    Attack("amplification", "NTP", reflected(2000, 300, 123, 482)),
    Attack("amplification", "memcached", reflected(2000, 10, 11211, 1442)),
    Attack("amplification", "SSDP", reflected(1500, 900, 1900, 330)),
    Attack("amplification", "SNMP", reflected(1000, 500, 161, 251)),
    Attack("amplification", "CLDAP", reflected(1000, 500, 389, 1514, fragments=1)),
    Attack("port_scan", "SYN", scan(1000, S), ATTACKER),
    Attack("port_scan", "SYN, slow", scan(120, S), ATTACKER),
    Attack("port_scan", "SYN, very fast", scan(6000, S), ATTACKER),
    Attack("port_scan", "connect", connect_scan, ATTACKER),
    Attack("port_scan", "three hosts", scan(900, S, hosts=3), ATTACKER, 0),
    Attack("port_scan", "FIN", scan(800, F), ATTACKER),
    Attack("port_scan", "NULL", scan(800, 0), ATTACKER),
    Attack("port_scan", "Xmas", scan(800, F | P | U), ATTACKER),
    Attack("port_scan", "ACK", scan(1500, A), ATTACKER),
    Attack("udp_scan", "1000 ports", scan(300, 0, UDP), ATTACKER),
    Attack("udp_scan", "fast", scan(2000, 0, UDP), ATTACKER),
    Attack("tcp_sweep", "SYN", sweep(400, 80, S), ATTACKER, 0),
    Attack("tcp_sweep", "ACK", sweep(400, 80, A), ATTACKER, 0),
    Attack("udp_sweep", "SNMP", sweep(400, 161, protocol=UDP), ATTACKER, 0),
    Attack("icmp_sweep", "a /16", sweep(300, ECHO_REQUEST, protocol=ICMP), ATTACKER, 0),
    Attack("protocol_scan", "all", protocol_scan, ATTACKER),
    Attack("slowloris", "one source", slowloris, ATTACKER),
    Attack("worm", "one source", sweep(200, 445, S), ATTACKER, 0),
    Attack("worm", "two sources", sweep(1000, 445, S, sources=2), 0, 0),
    Attack("worm", "by UDP", sweep(2000, 1434, protocol=UDP), ATTACKER, 0),
    Attack("dns_water_torture", "3000 resolvers", water_torture),
)
