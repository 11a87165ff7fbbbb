"""Made loads: ordinary traffic where it resembles an attack.

`LOADS` are those by which the policies were chosen; `loads_held_out.py` has others. Most have both
directions, as a router sees them; `incoming` keeps one host's packets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.made.attacks import EVERYBODY, HTTP, SSH, TLS, UPLOADER, in_fragments
from tests.support.made.traffic import (
    ATTACKER,
    CLIENT,
    ECHO_REPLY,
    ECHO_REQUEST,
    ICMP,
    SERVER,
    UDP,
    A,
    F,
    Make,
    P,
    R,
    Random,
    Rows,
    S,
    addresses,
    among,
    answered,
    anywhere,
    between,
    both,
    bursts,
    connections,
    each,
    incoming,
    lasting,
    mixed,
    packets,
    ports,
    some,
    stream,
    talks,
)

HOSTS = 0x0A140100
"""10.20.1.0: hosts of an office."""
NAT = 0xC6336409
"""198.51.100.9: many hosts behind one address."""


def flows(count: int, up: float, down: float = 0, **columns: Any) -> Make:
    """Flows that share rates of packets of both directions. `down_size` is the size of answers;
    `per_host` flows share a client."""
    down_size, per_host = columns.pop("down_size", 66), columns.pop("per_host", 1)
    up_size = columns.pop("size", 66)

    def sent(rate: float, size: int) -> Make:
        given = {
            "src": lambda n, _: HOSTS + np.arange(n) % count // per_host, "dst": SERVER,
            "sport": each(40000, count), "dport": 443, "flags": A, "size": size,
        } | columns  # fmt: skip
        return stream(rate, **given)

    def make(seconds: float, random: Random) -> Rows:
        back = answered(sent(down, down_size)(seconds, random))
        return mixed(sent(up, up_size)(seconds, random), back)

    return make


def asked(rate: float, port: int, up: int = 80, down: int = 120, **columns: Any) -> Make:
    """UDP requests from new ports, each with one answer."""
    return talks(rate, f">:{up} <:{down}", proto=UDP, spread=0.02, dport=port, **columns)


def calls(count: int) -> Make:
    """Calls with 50 packets of 214 bytes a second in each direction."""
    return flows(count, 50 * count, 50 * count, proto=UDP, flags=0, size=214, down_size=214,
                 dport=16384)  # fmt: skip


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
        incoming(calls(max(1, round(rate / 1000))))(seconds, random),
        connections(rate / 60, seconds, random, addresses(80, random, 0x0A140000, 16), spread=0.3),
        answers(rate / 100)(seconds, random),
        lasting(3, rate / 6, seconds, random, destination=SERVER, destination_port=22),
    )  # fmt: skip


def answers(rate: float, servers: int = 500, size: tuple[int, int] = (90, 410)) -> Make:
    """A resolver that gets answers of name servers."""
    return stream(rate, proto=UDP, src=some(servers, bits=9), sport=53, dst=SERVER, dport=ports,
                  size=between(*size))  # fmt: skip


def keep_alive(seconds: float, random: Random, rate: float = 20_000) -> Rows:
    """`ab -k`: few connections, opened at once, and many requests."""
    opened = connections(100 / 0.02, 0.02, random, flags=(S, A))
    rows = lasting(100, rate, seconds, random, destination=SERVER, destination_port=443)
    rows["source"] = CLIENT
    rows["source_port"] = 1024 + np.arange(len(rows)) % 100
    rows["flags"] = np.where(np.arange(len(rows)) % 2, A, P | A)
    return mixed(opened, rows)


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


def pings(seconds: float, random: Random) -> Rows:
    """Answers to a monitoring system that pings an office."""
    rows = packets(250, seconds, random, protocol=ICMP, size=98, destination=CLIENT)
    rows["source"] = 0x0A140000 + np.arange(len(rows)) % 250
    rows["destination_port"], rows["source_port"] = ECHO_REPLY, 77
    return rows


def lasts(make: Make, least: float = 32) -> Make:
    """The same for so many seconds at least."""
    return lambda seconds, random: make(max(seconds, least), random)


def leaves(mbit: float, dst: Any = ATTACKER, **columns: Any) -> Make:
    """Large segments of the host whose packets are outgoing, and some acknowledgements."""
    rate = mbit * 1e6 / 8 / 3014
    return lasts(flows(4, rate, rate / 4, src=UPLOADER, dst=dst, size=3014, **columns))


PAGE = ">S <SA >A >PA:600 <A:1514*12 >A*6 <PA:900 >PA:700 <A:1514*20 >A*10 >PA:500 <A:1514*10 >A*5"
"""A browser's connection, which stays."""
DISCOVERY = 0xEFFFFFFA
"""239.255.255.250."""
BITTORRENT = both(
    stream(150, proto=UDP, src=anywhere, sport=ports, dst=CLIENT, dport=51413, size=145),
    talks(8, ">S >S", spread=1.1, src=CLIENT, dst=anywhere, dport=ports),
    flows(40, 1500, 900, proto=UDP, flags=0, src=CLIENT, dst=each(0x2D000105, 40), sport=51413,
        dport=each(20000, 40), size=1442, down_size=66),
)  # fmt: skip

LOADS: dict[str, Make] = {
    "calls, 250": calls(250),
    "calls, 200, a gateway": incoming(calls(200)),
    "call, video": flows(2, 400, 400, proto=UDP, flags=0, size=1142, down_size=1142, dport=3478),
    "games": flows(100, 2000, 2000, proto=UDP, flags=0, size=60, down_size=200, dport=27015),
    "answers of name servers": answers(2200),
    "resolver": both(answers(1900), asked(2000, 53, 78, 160, src=some(400, HOSTS, 9))),
    "dnsperf": flows(20, 15_000, proto=UDP, flags=0, src=CLIENT, dport=53, size=75),
    "ab": talks(3000, HTTP, spread=0.002),
    "ab, a host's side": incoming(talks(4100, HTTP, spread=0.002)),
    "ab, kept connections": keep_alive,
    "iperf": flows(4, 20_000, 5000, size=1514, dport=5201),
    "iperf by UDP": flows(1, 8000, 10, proto=UDP, flags=0, size=1512, dport=5201),
    "download": flows(6, 3000, 12_000, down_size=1514),
    "download by QUIC": flows(3, 1000, 8000, proto=UDP, flags=0, down_size=1292),
    "backup": flows(4, 12_000, 4000, size=1514, dport=873),
    "backup, its host's side": leaves(35, SERVER, dport=873),
    "video upload": leaves(25),
    "software update": lasts(flows(3, 200, 400, src=UPLOADER, dst=ATTACKER, down_size=3014)),
    "speed test, up": lambda _, random: leaves(60)(32, random)[: round(25 * 60e6 / 8 / 3014)],
    "downloads from a server": leaves(35, sport=443, dport=each(50000, 4)),
    "seeds": leaves(35, each(0x2D000105, 40), dport=51413),
    "backup to elsewhere, its answers": incoming(flows(4, 12_000, 12_000, dst=0x97650102,
        dport=443), SERVER),
    "WireGuard": flows(2, 4000, 4000, proto=UDP, flags=0, size=1490, down_size=1490, sport=51820,
        dport=51820),
    "WireGuard, acknowledgements": flows(1, 8000, proto=UDP, flags=0, size=146, sport=51820,
        dport=51820),
    "clients that arrive at once": arriving,
    "visitors": visitors,
    "flash crowd": talks(400, PAGE, spread=1.5, src=some(2500)),
    "browser": both(talks(12, PAGE, src=CLIENT, dst=some(20)), asked(15, 53, src=CLIENT)),
    "browser by QUIC": both(flows(5, 500, 2500, proto=UDP, flags=0, src=CLIENT,
        dst=each(0x97650105, 5), down_size=1292), asked(15, 53, src=CLIENT)),
    "BitTorrent": BITTORRENT,
    "NAT": talks(150, TLS, src=NAT, dst=some(300)),
    "NTP pool": asked(800, 123, 90, 90, src=anywhere),
    "Kubernetes' checks": talks(60, HTTP, src=CLIENT, dst=each(SERVER, 60),
        dport=among(8080, 9090, 8443, 10250)),
    "balancer's checks": talks(1000, ">S <SA >A >R", spread=0.002),
    "balancer's checks, half-open": talks(20, ">S <SA >R", spread=0.002, dst=each(SERVER, 10)),
    "git": talks(5, SSH + " >PA:500*10 <A:1514*60", spread=0.8, src=some(6, HOSTS, 5), dport=22),
    "Prometheus": talks(100, HTTP + " <A:1514*10", dst=each(SERVER, 100), dport=9100),
    "syslog": flows(60, 2500, proto=UDP, flags=0, size=240, dport=514),
    "NetFlow": flows(8, 900, proto=UDP, flags=0, size=1442, dport=2055),
    "mail": both(talks(10, SSH, src=some(40), dport=25),
        talks(15, TLS, src=some(40, HOSTS, 7), dport=993)),
    "database restart": bursts(talks(2000, ">S <SA >A >PA:90 <PA:200", src=each(HOSTS, 30),
        dport=5432), 60, 0.3),
    "database is down": talks(40, ">S <RA", spread=0.001, src=each(HOSTS, 10), dport=5432),
    "IPTV": flows(20, 6000, proto=UDP, flags=0, size=1370, src=SERVER, dst=each(0xEFC00001, 20),
        sport=5000, dport=5000),
    "NFS in fragments": in_fragments(flows(2, 700, proto=UDP, flags=0, dport=2049)),
    "Pi-hole's unbound": asked(30, 5335, 80, 120),
    "Pi-hole's unbound, answers": incoming(asked(30, 5335), CLIENT),
    "Pi-hole's unbound, busy": asked(100, 5335, 80, 120),
    "Consul": incoming(asked(40, 8600), CLIENT),
    "RADIUS": incoming(asked(40, 1812, 150, 90, dst=each(SERVER, 2)), CLIENT),
    "Kerberos": asked(40, 88, 240, 1400, src=some(60, HOSTS, 8)),
    "STUN": incoming(asked(60, 3478, 62, 106), CLIENT),
    "multicast DNS": both(stream(60, proto=UDP, src=each(HOSTS, 40), sport=5353, dst=0xE00000FB,
        dport=5353, size=200), incoming(asked(40, 5353), CLIENT)),
    "GTP": incoming(asked(60, 2152), CLIENT),
    "SNMP poller, bursts": bursts(asked(500, 161, 88, 140, src=CLIENT, dst=each(HOSTS, 400)), 10,
        3),
    "SNMP poller, answers": bursts(incoming(asked(500, 161, 88, 140, src=CLIENT,
        dst=each(HOSTS, 400)), CLIENT), 10, 3),
    "DNSSEC resolver": both(answers(200, 300, (300, 1100)),
        asked(150, 53, 80, 600, src=some(50, HOSTS, 8))),
    "DNSSEC resolver, answers": answers(200, 300, (300, 1100)),
    "MELSOFT": both(asked(30, 5560, 70, 90, src=CLIENT),
        stream(10, proto=UDP, src=each(HOSTS, 2), sport=ports, dst=EVERYBODY, dport=5560)),
    "monitoring's pings": both(pings, stream(250, proto=ICMP, src=CLIENT, dst=each(0x0A140000, 3),
        dport=ECHO_REQUEST, size=98)),
    "SSDP": stream(80, proto=UDP, src=each(HOSTS, 60), sport=ports, dst=DISCOVERY, dport=1900,
        size=220),
    "office": office,
}  # fmt: skip
"""By name. `office` is also the traffic beside attacks and other loads."""
