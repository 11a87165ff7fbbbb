"""A finding about the flows of each kind of attack."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW
from probes.monitor.finding import ARROW, Finding, finding_of, verb_of
from probes.monitor.policy.ready import shipped

ICMP, TCP, UDP, GRE = 1, 6, 17, 47
SYN, SYN_ACK = 0x02, 0x12
ME, CULPRIT = "10.0.0.1", "192.0.2.7"
Rows = np.ndarray[tuple[int, ...], np.dtype[Any]]
NUMBERS = np.random.default_rng(7)


def flows(
    number: int, source: Any, destination: Any, sport: Any, dport: Any, *,
    protocol: int = TCP, flags: int = 0, packets: int = 1, size: int = 60,
) -> Rows:  # fmt: skip
    """`number` flows; addresses are texts, or numbers of IPv4 (n,)."""
    rows = np.zeros(number, FLOW)
    for name, address in (("source", source), ("destination", destination)):
        if isinstance(address, str):
            raw = ipaddress.ip_address(address).packed
            rows[name][:, : len(raw)] = np.frombuffer(raw, "u1")
        else:
            rows[name][:, :4] = np.asarray(address).astype(">u4").view("u1").reshape(-1, 4)
    rows["source_port"], rows["destination_port"] = sport, dport
    rows["protocol"], rows["tcp_flags"] = protocol, flags
    rows["version"] = 6 if isinstance(destination, str) and ":" in destination else 4
    rows["packets"], rows["bytes"] = packets, packets * size
    return rows


def number(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def random_addresses(count: int) -> Rows:
    return NUMBERS.choice(2**31, count, replace=False) + 2**24


def reflectors(count: int, packets: int, size: int) -> Rows:
    return flows(
        count, random_addresses(count), ME, 123, 40000, protocol=UDP, packets=packets, size=size
    )


SCAN = flows(1998, CULPRIT, ME, 50000, np.arange(1, 1999), flags=SYN)
BULK = flows(4, "198.51.100.9", ME, range(4), 5201, flags=0x10, packets=2000, size=1514)


@dataclass
class Case:
    rows: Rows
    text: str
    filter: str
    suspects: tuple[str, ...] = ()


KINDS = {
    "scan by one source": Case(
        SCAN,
        "192.0.2.7 -> 10.0.0.1, 1,998 ports by TCP SYN;"
        " 1,998 packets, 117 KiB in 900 ms",
        "proto:tcp src:192.0.2.7",
    ),
    "scan beside a bulk transfer": Case(
        np.concatenate((SCAN, BULK)),
        "192.0.2.7 (99.8 %) -> 10.0.0.1, 1,999 ports by TCP SYN;"
        " 9,998 packets, 11.7 MiB in 900 ms",
        "proto:tcp src:192.0.2.7",
    ),
    "scan in a selection": Case(
        np.concatenate((SCAN, BULK)),
        "192.0.2.7 -> 10.0.0.1, 1,998 ports by TCP SYN;"
        " 1,998 packets, 117 KiB in 900 ms",
        "proto:tcp src:192.0.2.7",
        ("dst:10.9.9.9", "flags:S packets<=3"),
    ),
    "sweep over many hosts": Case(
        flows(800, CULPRIT, number("10.0.0.0") + np.arange(800), 50000, 445, flags=SYN),
        "192.0.2.7 -> 800 destinations of 10.0.0.0/22, none over 1 % tcp:445 (100 %)"
        " by SYN; 800 packets, 46.9 KiB in 900 ms",
        "proto:tcp src:192.0.2.7",
    ),
    "sweep by ICMP": Case(
        flows(200, CULPRIT, number("10.0.0.0") + np.arange(200), 0, 0, protocol=ICMP),
        "192.0.2.7 -> 200 destinations of 10.0.0.0/24, none over 1 % by ICMP;"
        " 200 packets, 11.7 KiB in 900 ms",
        "proto:icmp src:192.0.2.7",
    ),
    "flood of forged sources": Case(
        np.concatenate((
            flows(4812, random_addresses(4812), ME, np.arange(4812) + 1024, 80, flags=SYN),
            flows(188, "10.0.0.2", "10.0.0.3", range(188), 443, flags=0x1B),
        )),
        "4,813 sources, none over 4 % -> 10.0.0.1 (96.2 %) tcp:80 (96.2 %) by SYN;"
        " 5,000 packets, 293 KiB in 900 ms",
        "proto:tcp dst:10.0.0.1 dport:80",
    ),
    "flood by few sources": Case(
        np.concatenate((
            flows(1, CULPRIT, ME, 4000, 9, protocol=UDP, packets=70_000, size=554),
            flows(1, "192.0.2.8", ME, 4000, 9, protocol=UDP, packets=30_000, size=554),
            flows(4, "10.0.0.2", ME, range(4), 443, flags=0x1B, packets=500),
        )),
        "192.0.2.7 (68.6 %), 192.0.2.8 (29.4 %) -> 10.0.0.1"
        " udp:9 (98.0 %); 102,000 packets, 52.9 MiB in 900 ms",
        "proto:udp src:192.0.2.7,192.0.2.8",
    ),
    "amplification": Case(
        reflectors(300, 10, 490),
        "300 sources, none over 1 % from udp:123 (100 %) -> 10.0.0.1 udp:40000 (100 %);"
        " 3,000 packets, 1.40 MiB in 900 ms",
        "proto:udp dst:10.0.0.1 dport:40000 sport:123",
    ),
    "amplification by one reflector": Case(
        flows(1, CULPRIT, ME, 53, 4444, protocol=UDP, packets=5000, size=1400),
        "192.0.2.7 from udp:53 (100 %) -> 10.0.0.1 udp:4444 (100 %);"
        " 5,000 packets, 6.68 MiB in 900 ms",
        "proto:udp src:192.0.2.7 sport:53",
    ),
    "reflected SYN-ACKs": Case(
        flows(500, random_addresses(500), ME, 443, range(500), flags=SYN_ACK),
        "500 sources, none over 1 % from tcp:443 (100 %) -> 10.0.0.1, 500 ports"
        " by TCP SYN-ACK; 500 packets, 29.3 KiB in 900 ms",
        "proto:tcp dst:10.0.0.1 sport:443",
    ),
    "carpet bombing": Case(
        flows(
            3000, random_addresses(3000), number("203.0.113.0") + np.arange(3000) % 256,
            range(3000), np.arange(3000) * 7, protocol=UDP,
        ),
        "3,000 sources, none over 1 % -> 256 destinations of 203.0.113.0/24, none over 1 %,"
        " 3,000 ports by UDP; 3,000 packets, 176 KiB in 900 ms",
        "proto:udp dst:203.0.113.0/24",
    ),
    "GRE flood": Case(
        flows(1, CULPRIT, ME, 0, 0, protocol=GRE, packets=5000),
        "192.0.2.7 -> 10.0.0.1 by GRE; 5,000 packets, 293 KiB in 900 ms",
        "proto:gre src:192.0.2.7",
    ),
    "scan of IP protocols": Case(
        np.concatenate([flows(1, CULPRIT, ME, 0, 0, protocol=p) for p in range(256)]),
        "192.0.2.7 -> 10.0.0.1 by 256 protocols; 256 packets, 15.0 KiB in 900 ms",
        "src:192.0.2.7",
    ),
    "scan by IPv6": Case(
        flows(100, "2001:db8::7", "2001:db8::1", 40000, range(1, 101), flags=SYN),
        "2001:db8::7 -> 2001:db8::1, 100 ports by TCP SYN;"
        " 100 packets, 5.86 KiB in 900 ms",
        "proto:tcp src:2001:db8::7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_an_attack_names_attacker_and_victim(case: Case) -> None:
    finding = finding_of(case.rows, case.suspects, seconds=0.9)
    assert finding.text == case.text
    assert finding.filter == case.filter
    passed = case.rows[FlowFilter.parse(finding.filter).mask(case.rows)]
    assert passed["packets"].sum() > 0.1 * case.rows["packets"].sum()


def test_a_shipped_policy_has_a_verb_that_fits_the_number_of_culprits() -> None:
    one = finding_of(SCAN, seconds=0.9, policy="port_scan").text
    assert one.startswith("192.0.2.7 scans 10.0.0.1, 1,998 ports by TCP SYN; 1,998 packets, ")
    other = flows(1998, "192.0.2.8", ME, 50000, np.arange(1, 1999), flags=SYN)
    two = finding_of(np.concatenate((SCAN, other)), seconds=0.9, policy="port_scan").text
    # Which of two equal culprits comes first is open.
    assert "(50.0 %) scan 10.0.0.1, 1,998 ports by TCP SYN; 3,996 packets" in two
    assert " -> 10.0.0.1" in finding_of(SCAN, seconds=0.9, policy="mine").text
    told = [each.name for each in shipped().policy if each.mode == "triggered"]
    assert {name for name in told if verb_of(name, 1) == ARROW} == {"arp_storm"}


def test_counts_and_shares_are_exact() -> None:
    finding = finding_of(SCAN, seconds=0.9)
    assert (finding.packets, finding.bytes, finding.flows) == (1998, 1998 * 60, 1998)
    assert (finding.sources.count, finding.destinations.count, finding.ports.count) == (1, 1, 1998)
    assert [(each.name, each.share) for each in finding.sources.top] == [(CULPRIT, 1.0)]
    assert [each.share for each in finding.ports.top] == [1 / 1998] * 3


def test_the_unit_of_shares_can_be_chosen() -> None:
    rows = np.concatenate((SCAN, BULK))
    assert finding_of(rows, seconds=1, by="packets").sources.chief == "198.51.100.9"


def test_lost_packets_make_lower_bounds() -> None:
    finding = finding_of(SCAN, seconds=0.9, lost=5000)
    assert finding.text.endswith(
        "at least 1,998 packets, 117 KiB in 900 ms; 5,000 packets are in no flow"
    )


def test_a_flow_of_two_windows_is_one() -> None:
    finding = finding_of(np.concatenate((SCAN, SCAN)), seconds=1.8)
    assert (finding.flows, finding.packets) == (1998, 3996)


@pytest.mark.parametrize("rows", [SCAN[:0], SCAN])
def test_without_a_selected_flow_the_finding_says_so(rows: Rows) -> None:
    assert finding_of(rows, ["proto:udp"], seconds=1, note="a note") == Finding(
        "who is unknown: no flow of this window is selected; a note", seconds=1
    )


@pytest.mark.slow
@pytest.mark.timing
def test_a_million_flows_take_about_a_second() -> None:
    import time

    rows = flows(1_000_000, NUMBERS.integers(0, 2**32, 1_000_000), ME, 1, 80, flags=SYN)
    taken = []
    for _ in range(2):  # The first one waits for new memory.
        started = time.thread_time()
        finding = finding_of(rows, ["flags:S packets<=3"], seconds=1)
        taken.append(time.thread_time() - started)
    assert min(taken) < 1.5
    assert finding.destinations.chief == ME
