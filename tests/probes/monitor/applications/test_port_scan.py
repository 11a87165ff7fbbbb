"""Port scans: sources that try many ports, or many hosts at one port, against the sent packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from bpf.compiler import Compiler
from bpf.machine import online_cpus
from probes.monitor.applications.port_scan import estimate
from probes.snapshot import Loss, LossReason, Snapshot
from tests.probes.monitor.given import NOW_NS, Flow, Given

FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
HASH = {
    f"HASH_{n}": int(factor) | 1
    for n, factor in enumerate(np.random.default_rng(1).integers(2**63, size=6))
}
"""The same in each run, so that the same slots are shared."""
SOURCES, TARGETS, FOLLOWED = 100, 150, 4
LINES = 512
"""32768 slots."""
SCANNER = "192.0.2.66"


def vertical(ports: Sequence[int], protocol: str = "tcp", source: str = SCANNER) -> list[Flow]:
    return [Flow(source, "198.51.100.7", 55555, port, protocol) for port in ports]


def horizontal(hosts: int, port: int = 23, source: str = "2001:db8::66") -> list[Flow]:
    return [Flow(source, f"2001:db8:1::{n:x}", 55555, port, "tcp") for n in range(1, hosts + 1)]


def busy(source: str, connections: int, *ports: int) -> list[Flow]:
    """A client of one server; each connection has another port."""
    return [
        Flow(source, "198.51.100.8", 1024 + n, ports[n % len(ports)], "tcp")
        for n in range(connections)
    ]


@pytest.fixture(scope="module")
def loaded(compiler: Compiler) -> Iterator[Given]:
    sizes = {"SOURCES": SOURCES, "TARGETS": TARGETS, "FOLLOWED": FOLLOWED, "LINES": LINES}
    with Given(compiler, "port_scan", records=45, **HASH, **sizes) as given:
        yield given


@pytest.fixture
def given(loaded: Given) -> Given:
    """Without anything of an earlier test."""
    loaded.window()
    return loaded


def send(given: Given, flows: list[Flow], flags: int = SYN, after_ns: int = 0) -> None:
    packets = given.packets(flows, tcp_flags=flags, now_ns=NOW_NS + after_ns)
    given.run(packets, cpu=online_cpus()[0])


def shown(
    given: Given, window: Sequence[Snapshot] | None = None
) -> tuple[list[dict[str, Any]], ...]:
    """The rows of both tables, of the window that ends now where none is given."""
    tables = given.view(window or given.window(10), 200)
    return tuple([dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in tables)


def is_near(row: dict[str, Any], what: str, exact: int) -> bool:
    """Whether an estimate is as near as it says."""
    return bool(abs(row[what] - exact) <= row[what] * row["± %"] / 100 + 0.5)


def test_a_vertical_scan_is_told_from_busy_clients(given: Given) -> None:
    for n in range(20):
        send(given, busy(f"192.0.2.{n}", 100, 80, 443, 8080))
    send(given, vertical(range(1, 1001)))
    send(given, vertical(range(1, 1001)), after_ns=2_500_000_000)
    found = given.window(10)
    ports, hosts = shown(given, found)
    first = ports[0]
    assert first["source"] == SCANNER
    assert is_near(first, "ports", 1000)
    assert first["± %"] < 5
    assert first["packets"] == 2000
    assert (first["first"], first["last"]) == ("00:16:40.000", "00:16:42.500")
    assert len(ports) == 21
    assert [row["ports"] for row in ports].count(3) >= 18  # all, but for slots that are shared
    assert {row["hosts"] for row in hosts} == {1}
    (said,) = given.findings(found)
    assert said.startswith(f"{SCANNER} tried {first['ports']} ports (± {first['± %']:.1f} %")
    assert said.endswith(") in 10.0 s")


def test_a_horizontal_scan_is_told_by_its_port(given: Given) -> None:
    send(given, horizontal(1500))
    send(given, horizontal(1500))
    send(given, busy("192.0.2.1", 500, 443))
    found = given.window(10)
    ports, hosts = shown(given, found)
    assert {row["ports"] for row in ports} == {1}
    row = hosts[0]
    assert (row["source"], row["port"], row["packets"]) == ("2001:db8::66", "tcp:23", 3000)
    assert is_near(row, "hosts", 1500)
    (said,) = given.findings(found)
    assert said.startswith(
        f"2001:db8::66 tried {row['hosts']} hosts at tcp:23 (± {row['± %']:.1f} %"
    )


def test_no_more_than_the_threshold_is_no_finding(given: Given) -> None:
    for ports, hosts, findings in ((90, 450, 0), (110, 550, 2)):
        send(given, vertical(range(1, ports + 1)) + horizontal(hosts))
        assert len(given.findings(given.window(10))) == findings


def test_each_window_begins_with_nothing(given: Given) -> None:
    """Whichever of the two generations measures it."""
    seen = []
    for _ in range(4):
        send(given, vertical(range(1, 301)))
        ports, hosts = shown(given)
        seen.append((ports[0]["ports"], ports[0]["packets"], len(hosts)))
    assert len(set(seen)) == 1
    assert shown(given) == ([], [])


@pytest.mark.parametrize(
    ("protocol", "flags", "tries"),
    [
        ("tcp", SYN, True),
        ("tcp", FIN, True),
        ("tcp", 0, True),
        ("tcp", FIN | PSH | URG, True),
        ("tcp", SYN | ACK, False),
        ("tcp", PSH | ACK, False),
        ("tcp", RST, False),
        ("udp", 0, True),
        ("icmp", 0, False),
    ],
)
def test_what_tries_a_port(given: Given, protocol: str, flags: int, tries: bool) -> None:
    """Neither packets of a connection, nor those without ports."""
    send(given, vertical([0, 0, 7, 8, 9], protocol), flags)
    ports, hosts = shown(given)
    assert [row["ports"] for row in ports] == ([3] if tries else [])
    assert len(hosts) == (3 if tries else 0)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_later_fragments_try_no_port(given: Given, protocol: str) -> None:
    """They have the ports of their datagram, but no flags: TCP data would be a null scan."""
    given.run(given.packets(vertical([7, 8, 9], protocol), fragment=0xB920))
    assert shown(given) == ([], [])
    given.run(given.packets(vertical([7, 8, 9], protocol), fragment=0x0020))
    assert shown(given)[0][0]["ports"] == 3


def test_answers_of_a_resolver_are_no_scan(given: Given) -> None:
    answers = [Flow("192.0.2.53", "198.51.100.7", 53, port, "udp") for port in range(1024, 2000)]
    send(given, answers)
    assert shown(given) == ([], [])
    send(given, [Flow("192.0.2.53", "198.51.100.7", 53, port, "udp") for port in range(1, 1024)])
    (row,) = shown(given)[0]
    assert is_near(row, "ports", 1023)


def test_a_protocol_s_ports_are_its_own(given: Given) -> None:
    send(given, vertical([53, 53]) + vertical([53], "udp"))
    ports, hosts = shown(given)
    assert ports[0]["ports"] == 2
    assert sorted((row["port"], row["packets"]) for row in hosts) == [("tcp:53", 2), ("udp:53", 1)]


def test_a_vertical_scan_leaves_room_for_others(given: Given) -> None:
    """The monitor counts the hosts of the source's first ports, and loses none."""
    send(given, vertical(range(1, 1001)) + horizontal(20))
    found = given.window(10)
    assert found[0].losses == {}
    _, hosts = shown(given, found)
    assert len(hosts) == FOLLOWED + 1
    assert (hosts[0]["source"], hosts[0]["port"]) == ("2001:db8::66", "tcp:23")


def test_with_few_slots_the_error_grows_and_is_told(given: Given) -> None:
    """A third are taken."""
    send(given, horizontal(10000) + vertical(range(1, 2001)))
    ports, hosts = shown(given)
    assert is_near(ports[0], "ports", 2000)
    assert is_near(hosts[0], "hosts", 10000)
    assert 10 < ports[0]["± %"] < 30


def test_sources_without_room_are_lost_and_counted(given: Given) -> None:
    flows = [Flow(f"10.0.0.{n}", "198.51.100.7", 1, 80, "tcp") for n in range(130)]
    send(given, flows)
    send(given, flows, after_ns=4_000_000)
    found = given.window(10)
    ports, _ = shown(given, found)
    assert [(row["ports"], row["packets"]) for row in ports] == [(1, 2)] * SOURCES
    lost = 2 * (len(flows) - SOURCES)
    assert found[0].losses == {LossReason.TABLE_FULL: Loss(lost, 100 * lost)}


def test_ports_without_room_are_lost_and_counted(given: Given) -> None:
    flows = [
        Flow(f"10.0.0.{n}", "198.51.100.7", 1, port, "tcp") for n in range(60) for port in (1, 2, 3)
    ]
    send(given, flows)
    found = given.window(10)
    ports, hosts = shown(given, found)
    assert len(ports) == 60
    assert sum(row["packets"] for row in ports) == len(flows)
    assert len(hosts) == TARGETS
    lost = len(flows) - TARGETS
    assert found[0].losses == {LossReason.TABLE_FULL: Loss(lost, 100 * lost)}


@pytest.mark.parametrize("share", [0.05, 0.8])
@pytest.mark.parametrize("place", ["first", "last", "between"])
def test_the_error_holds_wherever_a_source_comes(share: float, place: str) -> None:
    """In 95 % of the cases, on average of windows, for one source of 200 among many."""
    rng = np.random.default_rng(5)
    slots, own = 4096, 200
    others = round(-slots * np.log1p(-share)) - own
    good = 0
    for _ in range(100):
        mine = np.repeat([False, True], [others, own])
        if place == "first":
            mine = mine[::-1]
        elif place == "between":
            rng.shuffle(mine)
        _, at = np.unique(rng.integers(0, slots, len(mine)), return_index=True)
        counts = np.array([mine[at].sum()])
        (found,), (error,) = estimate(counts, len(at) / slots)
        good += abs(found - own) <= error * found
    assert good >= 95
