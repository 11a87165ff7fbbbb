"""Made loads: what ordinary traffic looks like where it resembles an attack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.made.traffic import (
    CLIENT,
    ECHO_REPLY,
    ICMP,
    SERVER,
    UDP,
    A,
    F,
    P,
    R,
    Random,
    Rows,
    S,
    addresses,
    connections,
    lasting,
    mixed,
    packets,
    ports,
)

Load = Callable[[float, Random], Rows]


def voice(seconds: float, random: Random, calls: int = 250) -> Rows:
    """A gateway with 50 packets of 214 bytes a second for each call."""
    rows = lasting(calls, 50 * calls, seconds, random, protocol=UDP, size=214, destination=SERVER)
    flow = np.arange(len(rows)) % calls
    rows["source"] = 0x0A140000 + flow % 40
    rows["source_port"] = rows["destination_port"] = 16384 + 2 * flow
    rows["flags"] = 0
    return rows


def games(seconds: float, random: Random, players: int = 100) -> Rows:
    """A game server."""
    return lasting(
        players, 20 * players, seconds, random, flags=0, protocol=UDP, size=60,
        destination=SERVER, destination_port=27015,
    )  # fmt: skip


def answers(seconds: float, random: Random, rate: float = 2200) -> Rows:
    """A resolver that gets answers of name servers."""
    rows = packets(rate, seconds, random, protocol=UDP, destination=SERVER, source_port=53)
    rows["source"] = addresses(len(rows), random, bits=9)
    rows["destination_port"] = ports(len(rows), random)
    rows["size"] = random.integers(90, 410, len(rows))
    return rows


def resolver(seconds: float, random: Random) -> Rows:
    """A resolver: queries of its clients, and answers of name servers."""
    rows = packets(2000, seconds, random, protocol=UDP, destination=SERVER, destination_port=53)
    rows["source"] = 0x0A140000 + random.integers(0, 400, len(rows))
    rows["source_port"] = ports(len(rows), random)
    rows["size"] = 78
    return mixed(rows, answers(seconds, random, 1900))


def dnsperf(seconds: float, random: Random, rate: float = 25_000) -> Rows:
    """Queries as fast as a test tool sends them."""
    rows = lasting(20, rate, seconds, random, flags=0, protocol=UDP, destination=SERVER)
    rows["source"], rows["destination_port"], rows["size"] = CLIENT, 53, 75
    return rows


def short_connections(seconds: float, random: Random, rate: float = 4100) -> Rows:
    """`ab`: a connection for each request, from one client."""
    return connections(rate, seconds, random, spread=0.002)


def keep_alive(seconds: float, random: Random, rate: float = 48_000) -> Rows:
    """`ab -k`: few connections, opened at once, and many requests."""
    opened = connections(100 / 0.02, 0.02, random, flags=(S, A))
    rows = lasting(100, rate, seconds, random, destination=SERVER, destination_port=443)
    rows["source"] = CLIENT
    rows["source_port"] = 1024 + np.arange(len(rows)) % 100
    rows["flags"] = np.where(np.arange(len(rows)) % 2, A, P | A)
    return mixed(opened, rows)


def throughput(seconds: float, random: Random, rate: float = 26_000) -> Rows:
    """`iperf3 -P 4`."""
    return lasting(4, rate, seconds, random, size=1514, destination=SERVER, destination_port=5201)


def downloads(seconds: float, random: Random) -> Rows:
    """Large answers of a few servers, by TCP and by QUIC."""
    quic = lasting(
        3, 4000, seconds, random, flags=0, protocol=UDP, size=1292, source_port=443,
        destination=CLIENT, destination_port=50100,
    )  # fmt: skip
    tcp = lasting(
        6, 8000, seconds, random, size=1514, source_port=443, destination=CLIENT,
        destination_port=50200,
    )  # fmt: skip
    return mixed(quic, tcp)


def upload(seconds: float, random: Random) -> Rows:
    """A backup to elsewhere: acknowledgements by TCP, and through a tunnel."""
    tcp = lasting(
        4, 20_000, seconds, random, source_port=443, destination=CLIENT, destination_port=50300
    )
    tunnel = packets(8000, seconds, random, protocol=UDP, size=146, source=0x0A140007)
    tunnel["source_port"] = tunnel["destination_port"] = 51820
    return mixed(tcp, tunnel)


def arriving(seconds: float, random: Random, rate: float = 3000) -> Rows:
    """Many clients that connect at once, and stay."""
    sources = addresses(4000, random, bits=20)
    opened = connections(rate, min(seconds, 2), random, sources, (S, A, P | A))
    idle = lasting(4000, 800, seconds, random, destination=SERVER, destination_port=443)
    idle["source"], idle["flags"] = random.choice(sources, len(idle)), P | A
    return mixed(opened, idle)


def visitors(seconds: float, random: Random, rate: float = 300) -> Rows:
    """A web server with clients that come and go; some reset their connections."""
    sources = addresses(3000, random, bits=20)
    closed = connections(rate, seconds, random, sources, spread=0.4)
    reset = connections(rate / 5, seconds, random, sources, (S, A, P | A, F | A, R), spread=0.4)
    reset["destination"] = SERVER + 1
    return mixed(closed, reset)


def health_checks(seconds: float, random: Random) -> Rows:
    """Connections that are reset once they are established."""
    return connections(1000, seconds, random, flags=(S, A, R), spread=0.002)


def pings(seconds: float, random: Random) -> Rows:
    """Answers to a monitoring system that pings an office."""
    rows = packets(250, seconds, random, protocol=ICMP, size=98, destination=CLIENT)
    rows["source"] = 0x0A140000 + np.arange(len(rows)) % 250
    rows["destination_port"], rows["source_port"] = ECHO_REPLY, 77
    return rows


def office(seconds: float, random: Random, rate: float = 5000) -> Rows:
    """An office's usual traffic, at any rate: downloads, calls, browsing, DNS, an upload."""
    tcp, quic = 0.45 * rate, 0.2 * rate
    return mixed(
        lasting(
            12, tcp, seconds, random, size=1514, source_port=443, source=0x97650101,
            destination=CLIENT, destination_port=50000,
        ),
        lasting(
            6, quic, seconds, random, flags=0, protocol=UDP, size=1292, source_port=443,
            destination=CLIENT + 1, destination_port=50100,
        ),
        voice(seconds, random, calls=round(rate / 1000)),
        connections(rate / 60, seconds, random, addresses(80, random, 0x0A140000, 16), spread=0.3),
        answers(seconds, random, rate / 100),
        lasting(3, rate / 6, seconds, random, destination=SERVER, destination_port=22),
    )  # fmt: skip


LOADS: dict[str, Load] = {
    each.__name__: each
    for each in (
        voice, games, answers, resolver, dnsperf, short_connections, keep_alive, throughput,
        downloads, upload, arriving, visitors, health_checks, pings, office,
    )
}  # fmt: skip
