"""Made attacks, each with the policy that has to tell it, and its culprit and victim.

`ATTACKS` are those by which the policies were chosen; `attacks_held_out.py` has others.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

import numpy as np

from tests.support.made.traffic import (
    ARP,
    ATTACKER,
    CLIENT,
    ECHO_REPLY,
    ECHO_REQUEST,
    ESP,
    GRE,
    ICMP,
    ICMP6,
    IPV6,
    IPV6_NETWORK,
    MORE_FRAGMENTS,
    TCP,
    UDP,
    VICTIM,
    A,
    F,
    Make,
    P,
    R,
    Random,
    Rows,
    S,
    U,
    answered,
    anywhere,
    between,
    both,
    each,
    incoming,
    later,
    mixed,
    packets,
    ports,
    shuffled,
    some,
    stream,
    talks,
)

NETWORK = 0xCB007100
"""203.0.113.0/24, and the networks behind it."""
EVERYBODY = 0xFFFFFFFF
INSIDER = 0x0A140042
"""10.20.0.66: an infected host."""


UPLOADER = 0x0A14004D
"""10.20.0.77: the host whose packets are outgoing (`LOCAL`)."""
LOCAL = ip_network(UPLOADER)


@dataclass(frozen=True, slots=True)
class Attack:
    policy: str
    """The policy that has to tell it."""
    name: str
    make: Make
    source: int = 0
    """Address of the culprit; 0: forged or many."""
    destination: int = VICTIM
    """Address of the victim; 0: many."""
    kind: int = 0
    """Of the packets: IPv4, IPV6 or ARP."""
    seconds: float = 2.0
    """The shortest time that shows it."""
    hole: str = ""
    """If no policy tells it: its name among the holes of docs/monitor.md."""

    @property
    def id(self) -> str:
        return f"{self.policy}: {self.name}"

    @property
    def culprit(self) -> str:
        return self._text(self.source)

    @property
    def victim(self) -> str:
        return self._text(self.destination)

    def _text(self, address: int) -> str:
        network = IPV6_NETWORK << 96 if self.kind == IPV6 else 0
        return str(ip_address(network | address)) if address else ""

    def rows(self, seconds: float, random: Random) -> Rows:
        rows = self.make(max(seconds, self.seconds), random)
        rows["kind"] = self.kind
        return rows


def flood(rate: float, flags: int, port: Any = 80, **columns: Any) -> Make:
    """TCP packets with these flags to one port, from anywhere."""
    given = {"src": anywhere, "sport": ports, "dport": port, "flags": flags} | columns
    return stream(rate, **given)


def bots(count: int) -> dict[str, Any]:
    """Columns of packets of a few hosts that forge nothing."""
    return {"src": each(ATTACKER - 10, count), "sport": ports}


def datagrams(rate: float, port: Any, size: int = 60, **columns: Any) -> Make:
    """UDP of one packet a flow from anywhere."""
    given = {"src": anywhere, "sport": ports, "dport": port, "proto": UDP, "size": size} | columns
    return stream(rate, **given)


def reflected(rate: float, reflectors: int, port: int, size: int, **columns: Any) -> Make:
    """Answers of servers that the victim did not ask."""
    given = {"src": some(reflectors, bits=29), "sport": port, "dport": 4444, "size": size} | columns
    return stream(rate, proto=UDP, **given)


def in_fragments(make: Make) -> Make:
    """The same datagrams, each in two fragments."""

    def cut(seconds: float, random: Random) -> Rows:
        rows = make(seconds, random)
        rows["fragment"], rows["size"] = MORE_FRAGMENTS, 1514
        rest = rows.copy()
        rest["time_ns"] += 2000
        rest["fragment"], rest["source_port"], rest["destination_port"] = 185, 0, 0
        return mixed(rows, rest)

    return cut


def portless(rate: float, protocol: int, size: int = 554, **columns: Any) -> Make:
    """Packets of an IP protocol without ports, or ICMP with its type as the destination port."""
    return stream(rate, **({"src": some(5000), "proto": protocol, "size": size} | columns))


def scan(rate: float, flags: int, protocol: int = TCP, hosts: int = 1) -> Make:
    """Ports in random order, each once."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random, flags=flags, protocol=protocol, source=ATTACKER)
        tried = np.concatenate([np.arange(1, 1024), random.permutation(64000)[:9000] + 1024])
        order = random.permutation(tried)
        rows["destination_port"] = order[np.arange(len(rows)) // hosts % len(order)]
        rows["destination"] = VICTIM + np.arange(len(rows)) % hosts
        rows["source_port"] = 41859
        return rows

    return make


def refused(make: Make) -> Make:
    """SYNs, and the answers of closed ports."""

    def with_answers(seconds: float, random: Random) -> Rows:
        rows = make(seconds, random)
        answers = answered(rows)
        answers["flags"] = R | A
        return mixed(rows, answers)

    return with_answers


def sweep(
    rate: float, port: int, flags: int = 0, protocol: int = TCP, sources: int = 1, bits: int = 16
) -> Make:
    """One port of many hosts."""
    return stream(
        rate, proto=protocol, flags=flags, dport=port, dst=shuffled(0xCB000000, 1 << bits),
        src=each(ATTACKER, sources), sport=0 if protocol == ICMP else 50000,
    )  # fmt: skip


def pinged(rate: float, answering: int) -> Make:
    """Pings of a network; `answering` per cent of its hosts answer."""
    pings = sweep(rate, ECHO_REQUEST, protocol=ICMP)

    def make(seconds: float, random: Random) -> Rows:
        rows = pings(seconds, random)
        answers = answered(rows[rows["destination"] % 100 < answering])
        answers["source_port"], answers["destination_port"] = 0, ECHO_REPLY
        return mixed(rows, later(answers, 0.002))

    return make


def protocol_scan(seconds: float, random: Random) -> Rows:
    """Each IP protocol once."""
    rows = packets(100, min(seconds, 2.5), random, source=ATTACKER)
    rows["protocol"] = np.arange(len(rows)) % 256
    return rows


def tunnel(rate: float, size: int, **columns: Any) -> Make:
    """Requests of an infected host that carry data, and their answers."""
    given = {"src": INSIDER, "dst": ATTACKER, "flags": 0} | columns
    asked = stream(rate, size=size, **given)

    def make(seconds: float, random: Random) -> Rows:
        rows = asked(seconds, random)
        answers = answered(rows)
        if given["proto"] == ICMP:
            answers["destination_port"], answers["source_port"] = ECHO_REPLY, rows["source_port"]
        return mixed(rows, answers)

    return make


SSH = ">S <SA >A <PA:107 >PA:87 >PA:1200 <PA:1100 >PA:130 <PA:500 >PA:90 <PA:120 >PA:140 <PA:120 "
SSH += ">FA <FA >A"
"""A login that fails."""
HTTP = ">S <SA >A >PA:300 <PA:900 >FA <FA >A"
"""A connection with one request."""
TLS = ">S <SA >A >PA:583 <A:1514*3 >A >PA:146 <PA:300 >PA:400 <PA:700 >FA <FA >A"


def web_flood(rate: float, sources: int, script: str = HTTP, port: int = 443) -> Make:
    """Connections with one request each."""
    return talks(rate, script, src=some(sources), dst=VICTIM, dport=port)


def logins(rate: float, port: int, src: Any = ATTACKER, dst: Any = VICTIM) -> Make:
    return talks(rate, SSH, spread=0.6, src=src, dst=dst, dport=port)


def beacon(every: float) -> Make:
    """An infected host that reports at fixed times."""
    return talks(1 / every, TLS, spread=0.3, src=INSIDER, dst=ATTACKER)


def upload(rate: float, **columns: Any) -> Make:
    """Full segments of one host to another, and their acknowledgements; packets a second."""
    given = {"src": INSIDER, "dst": ATTACKER, "sport": 51515, "dport": 443, "size": 1514} | columns
    back = stream(rate / 4, size=66, flags=A, src=given["dst"], dst=given["src"],
                  sport=given["dport"], dport=given["sport"])  # fmt: skip
    return both(stream(rate, flags=A, **given), back)


def slow_requests(rate: float, sources: int) -> Make:
    """Connections with the begin of a request, which stay."""
    return talks(rate, ">S >A >PA:120", src=each(ATTACKER, sources), dst=VICTIM, dport=80)


ATTACKS = (
    Attack("syn_flood", "forged sources", flood(3000, S)),
    Attack("syn_flood", "slow", flood(500, S)),
    Attack("syn_flood", "one source", flood(3000, S, src=ATTACKER, sport=each(1024, 60000)),
        ATTACKER),
    Attack("syn_flood", "IPv6", flood(3000, S), kind=IPV6),
    Attack("syn_flood", "ECE and CWR", flood(3000, S | 0xC0)),
    Attack("syn_flood", "with data", flood(2000, S, size=554)),
    Attack("syn_flood", "20 bots", flood(3000, S, **bots(20))),
    Attack("syn_flood", "4 ports", flood(3000, S, port=each(440, 4))),
    Attack("syn_flood", "8 hosts", flood(2000, S, dst=each(VICTIM, 8)), destination=0),
    Attack("syn_flood", "a /24, slow", flood(1024, S, dst=shuffled(NETWORK, 256)), destination=0),
    Attack("syn_flood", "a /24", flood(3000, S, dst=shuffled(NETWORK, 256)), destination=0),
    Attack("syn_flood", "a /24, fast", flood(10_000, S, dst=shuffled(NETWORK, 256)), destination=0),
    Attack("syn_flood", "a /22", flood(3000, S, dst=shuffled(NETWORK, 1024)), destination=0),
    Attack("syn_flood", "a /20", flood(5000, S, dst=shuffled(NETWORK, 4096)), destination=0),
    Attack("syn_flood", "any port of a /22", flood(3000, S, ports, dst=shuffled(NETWORK, 1024)),
        destination=0),
    Attack("syn_ack_flood", "slow", flood(500, S | A, ports, sport=443)),
    Attack("syn_ack_flood", "reflected", flood(3000, S | A, ports, sport=443, src=some(4000))),
    Attack("ack_flood", "slow", flood(900, A)),
    Attack("ack_flood", "forged sources", flood(3000, A)),
    Attack("ack_flood", "one source", flood(3000, A, src=ATTACKER, sport=each(1024, 60000)),
        ATTACKER),
    Attack("rst_flood", "slow", flood(1200, R)),
    Attack("rst_flood", "forged sources", flood(3000, R)),
    Attack("tcp_flood", "PSH-ACK", flood(3000, P | A, size=254)),
    Attack("tcp_flood", "PSH-ACK, fast", flood(20_000, P | A, size=254)),
    Attack("tcp_flood", "FIN", flood(2000, F)),
    Attack("tcp_flood", "FIN-ACK", flood(3000, F | A)),
    Attack("tcp_flood", "NULL", flood(2000, 0)),
    Attack("tcp_flood", "SYN-FIN", flood(4000, S | F)),
    Attack("tcp_flood", "FIN-PSH", flood(2000, F | P)),
    Attack("tcp_flood", "Xmas", flood(5000, F | P | U)),
    Attack("tcp_flood", "reflected by middleboxes",
        flood(1500, P | A, ports, src=some(400), sport=80, size=754)),
    Attack("tcp_flood", "reflected by middleboxes to one port",
        flood(1500, P | A, 4444, src=some(400), sport=80, size=754)),
    Attack("udp_flood", "slow", datagrams(1200, 30120)),
    Attack("udp_flood", "forged sources", datagrams(3000, 30120)),
    Attack("udp_flood", "one source", datagrams(3000, 30120, 554, src=ATTACKER), ATTACKER),
    Attack("udp_flood", "one flow", datagrams(8000, 30120, src=ATTACKER, sport=4040), ATTACKER),
    Attack("udp_flood", "QUIC", datagrams(5000, 443, 1242)),
    Attack("udp_flood", "QUIC, fast", datagrams(20_000, 443, 1242)),
    Attack("udp_flood", "NTP requests", datagrams(4000, 123, 90)),
    Attack("udp_flood", "from port 53", datagrams(5000, ports, 90, sport=53)),
    Attack("udp_flood", "to port 53", datagrams(2000, 53, 90)),
    Attack("udp_flood", "broadcast loop", datagrams(8000, 137, 92, src=CLIENT, sport=137,
        dst=EVERYBODY), CLIENT, EVERYBODY),
    Attack("icmp_flood", "slow", portless(1000, ICMP, 98, dport=ECHO_REQUEST, src=ATTACKER),
        ATTACKER),
    Attack("icmp_flood", "one source", portless(2000, ICMP, 98, dport=ECHO_REQUEST, src=ATTACKER),
        ATTACKER),
    Attack("icmp_flood", "forged sources", portless(2000, ICMP, 98, dport=ECHO_REQUEST,
        src=anywhere)),
    Attack("icmp_flood", "IPv6", portless(2000, ICMP6, 118, dport=0x8000, src=anywhere), kind=IPV6),
    Attack("gre_flood", "many sources", portless(3000, GRE)),
    Attack("protocol_flood", "ESP", portless(3000, ESP)),
    Attack("fragment_flood", "forged sources",
        stream(3000, src=some(9000), proto=UDP, fragment=between(0x2001, 0x2063))),
    Attack("fragment_flood", "slow", stream(1000, src=some(9000), proto=UDP,
        fragment=between(0x2001, 0x2063))),
    Attack("carpet_bombing", "a /24", datagrams(3000, 8080, 512, src=some(500),
        dst=shuffled(NETWORK, 256)), destination=0),
    Attack("carpet_bombing", "a /24, slow", datagrams(1000, 8080, 512, src=some(500),
        dst=shuffled(NETWORK, 256)), destination=0),
    Attack("dns_amplification", "slow", reflected(300, 2000, 53, 1200)),
    Attack("dns_amplification", "2000 reflectors", reflected(1500, 2000, 53, 1200)),
    Attack("dns_amplification", "20 reflectors", reflected(1000, 20, 53, 1225)),
    Attack("dns_amplification", "a /24", reflected(3000, 2000, 53, 1225,
        dst=shuffled(NETWORK, 256)), destination=0),
    Attack("dns_amplification", "fragments", in_fragments(reflected(1000, 300, 53, 1514))),
    Attack("amplification", "NTP", reflected(2000, 300, 123, 482)),
    Attack("amplification", "memcached", reflected(2000, 10, 11211, 1442)),
    Attack("amplification", "SSDP", reflected(1500, 900, 1900, 330)),
    Attack("amplification", "SNMP", reflected(1000, 500, 161, 251)),
    Attack("amplification", "CoAP", reflected(1500, 800, 5683, 400)),
    Attack("amplification", "WS-Discovery", reflected(1500, 600, 3702, 700)),
    Attack("amplification", "CLDAP", in_fragments(reflected(1000, 500, 389, 1514))),
    Attack("port_scan", "SYN", scan(1000, S), ATTACKER),
    Attack("port_scan", "SYN, slow", scan(120, S), ATTACKER),
    Attack("port_scan", "SYN, very fast", scan(6000, S), ATTACKER),
    Attack("port_scan", "SYN, IPv6", scan(500, S), ATTACKER, kind=IPV6),
    Attack("port_scan", "connect", refused(scan(300, S)), ATTACKER),
    Attack("port_scan", "three hosts", scan(900, S, hosts=3), ATTACKER, 0),
    Attack("port_scan", "FIN", scan(800, F), ATTACKER),
    Attack("port_scan", "NULL", scan(800, 0), ATTACKER),
    Attack("port_scan", "Xmas", scan(800, F | P | U), ATTACKER),
    Attack("port_scan", "ACK", scan(1500, A), ATTACKER),
    Attack("slow_scan", "a port every 2 s", refused(scan(0.5, S)), ATTACKER, seconds=40),
    Attack("udp_scan", "1000 ports", scan(300, 0, UDP), ATTACKER),
    Attack("udp_scan", "fast", scan(2000, 0, UDP), ATTACKER),
    Attack("tcp_sweep", "SYN", sweep(400, 80, S), ATTACKER, 0),
    Attack("tcp_sweep", "ACK", sweep(400, 80, A), ATTACKER, 0),
    Attack("tcp_sweep", "50 sources, SSH", sweep(200, 22, S, sources=50), 0, 0),
    Attack("tcp_sweep", "50 sources, redis, slow", sweep(100, 6379, S, sources=50), 0, 0),
    Attack("udp_sweep", "SNMP", sweep(400, 161, protocol=UDP), ATTACKER, 0),
    Attack("udp_sweep", "SIP", sweep(200, 5060, protocol=UDP), ATTACKER, 0),
    Attack("icmp_sweep", "a /16", sweep(300, ECHO_REQUEST, protocol=ICMP), ATTACKER, 0),
    Attack("icmp_sweep", "half answer", pinged(100, 50), ATTACKER, 0),
    Attack("protocol_scan", "all", protocol_scan, ATTACKER),
    Attack("worm", "one source", sweep(200, 445, S), ATTACKER, 0),
    Attack("worm", "two sources", sweep(1000, 445, S, sources=2), 0, 0),
    Attack("worm", "by UDP", sweep(2000, 1434, protocol=UDP), ATTACKER, 0),
    Attack("slowloris", "one source", slow_requests(80, 1), ATTACKER),
    Attack("slowloris", "200 sources", slow_requests(200, 200)),
    Attack("http_flood", "500 bots", web_flood(1500, 500), seconds=3),
    Attack("http_flood", "500 bots, requests only", incoming(web_flood(1500, 500), VICTIM),
        seconds=3),
    Attack("brute_force", "SSH", logins(10, 22), ATTACKER),
    Attack("brute_force", "SSH, requests only", incoming(logins(10, 22), VICTIM), ATTACKER),
    Attack("brute_force", "RDP, many hosts", logins(20, 3389, dst=shuffled(NETWORK, 256)), ATTACKER,
        0),
    Attack("dns_tunnel", "60 queries a second", tunnel(60, 230, proto=UDP, sport=ports, dport=53),
        INSIDER, ATTACKER),
    Attack("dns_water_torture", "3000 resolvers", datagrams(3000, 53, 85, src=some(3000))),
    Attack("icmp_tunnel", "50 pings a second",
        tunnel(50, 1042, proto=ICMP, sport=77, dport=ECHO_REQUEST), INSIDER, ATTACKER),
    Attack("outgoing_volume", "35 Mbit/s", upload(1500, src=UPLOADER, size=3014), UPLOADER,
        ATTACKER, seconds=31),
    Attack("arp_storm", "1000 a second", stream(1000), 0, 0, kind=ARP),
    Attack("dhcp_storm", "starvation", datagrams(1000, 67, 342, src=0, sport=68, dst=EVERYBODY), 0,
        0),
)  # fmt: skip

HOLES = (
    Attack("udp_flood", "20 bots, 1400 bytes",
        datagrams(8000, 30120, 1442, src=each(ATTACKER, 20), sport=each(5000, 20)),
        hole="large datagrams in few flows"),
    Attack("tcp_flood", "20 flows", flood(5000, P | A, 443, src=each(ATTACKER, 20),
        sport=each(5000, 20)), hole="TCP floods of few flows without SYN"),
    Attack("syn_flood", "among connections", both(flood(400, S, 5222),
        talks(1500, HTTP, dport=5222)), hole="SYN floods of less than a third of all SYNs"),
    Attack("beacon", "every 10 s", beacon(10), INSIDER, ATTACKER, seconds=31, hole="beacons"),
    Attack("outgoing_volume", "20 Mbit/s", upload(830, src=UPLOADER, size=3014), UPLOADER, ATTACKER,
        seconds=31, hole="outgoing volume of less than 30 Mbit/s, in turns, or to many hosts"),
    Attack("slow_scan", "a port every 5 s", refused(scan(0.2, S)), ATTACKER, seconds=31,
        hole="scans of less than 15 ports a minute"),
    Attack("icmp_sweep", "4 of 5 answer", pinged(100, 80), ATTACKER, 0,
        hole="pings of networks whose hosts answer"),
    Attack("udp_scan", "from port 53", stream(100, proto=UDP, src=ATTACKER, sport=53,
        dport=shuffled(1024, 30_000)), ATTACKER, hole="UDP scans from a service's port"),
    Attack("dns_tunnel", "among queries", both(tunnel(60, 230, proto=UDP, sport=ports, dport=53),
        datagrams(200, 53, 80, src=CLIENT, dst=ATTACKER)), INSIDER, ATTACKER,
        hole="DNS tunnels among as many ordinary queries"),
    Attack("slowloris", "by TLS", talks(200, ">S >A >PA:583 >A >PA:146 >PA:200 >A",
        src=each(ATTACKER, 200), dst=VICTIM), hole="slowloris by TLS from many sources"),
    Attack("http_flood", "kept connections", stream(5000, src=each(ATTACKER, 500),
        sport=each(5000, 500), dport=443, flags=P | A, size=300),
        hole="HTTP floods in kept connections"),
    Attack("brute_force", "slow", logins(1, 22), ATTACKER, hole="logins of less than 6 a second"),
)  # fmt: skip
"""Attacks that no policy tells."""
