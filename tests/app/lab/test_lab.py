"""The lab against the real kernel: its network, its traffic and the namespaces under it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.dns import DNS

from app.lab import netns
from app.lab.network import Lab
from app.lab.plan import LabPlan
from app.lab.traffic import dns_answer, dns_query
from bpf.errors import UsageError
from tests.support.sight import cookie, flow, namespaces, node, own_cookie, sniff
from tests.support.veth import veth_pair

SO_RCVBUFFORCE = 33
PROBE_PORT = 33434
DONT_FRAGMENT = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 2),  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 2),  # IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO
}


@pytest.fixture(scope="module")
def quiet() -> Iterator[Lab]:
    with Lab(traffic=False) as lab:
        yield lab


@pytest.fixture(scope="module")
def lively() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def probe(
    lab: Lab, family: socket.AddressFamily, hops: int, count: int = 1
) -> list[tuple[int, str]]:
    """(ICMP type, sender) of the answers to `count` UDP datagrams sent with a TTL of `hops`."""
    six = family == socket.AF_INET6
    protocol = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    ttl = (
        (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
        if six
        else (socket.IPPROTO_IP, socket.IP_TTL)
    )
    answers: list[tuple[int, str]] = []
    with (
        node(lab),
        socket.socket(family, socket.SOCK_RAW, protocol) as icmp,
        socket.socket(family, socket.SOCK_DGRAM) as udp,
    ):
        icmp.settimeout(1.0)
        udp.setsockopt(*ttl, hops)
        for _ in range(count):
            udp.sendto(b"probe", (lab.server_ipv6 if six else lab.server_ipv4, PROBE_PORT))
            while len(answers) < count:
                packet, sender = icmp.recvfrom(2048)
                kind = packet[0 if six else 20]
                if kind in ((1, 3) if six else (3, 11)):
                    answers.append((kind, sender[0]))
                    break
    return answers


def burst(lab: Lab, source: str, sink: str, address: str, count: int) -> tuple[int, float]:
    """Send `count` datagrams of 1400 bytes at once: how many arrive, and in how many seconds."""
    with node(lab, sink):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with node(lab, source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        receiver.settimeout(0.3)
        receiver.bind((address, PROBE_PORT))
        sender.connect((address, PROBE_PORT))
        for _ in range(count):
            sender.send(bytes(1400))
        arrivals: list[float] = []
        while len(arrivals) < count:
            try:
                receiver.recv(2048)
            except TimeoutError:
                break
            arrivals.append(time.monotonic())
    return len(arrivals), arrivals[-1] - arrivals[0]


@pytest.mark.timing
def test_bottleneck_limits_rate_and_queue_towards_the_server(quiet: Lab) -> None:
    arrived, seconds = burst(quiet, "client", "server", quiet.server_ipv4, 800)
    assert 300 < arrived < 400
    assert seconds == pytest.approx(0.2, abs=0.05)
    assert arrived * 1442 * 8 / seconds == pytest.approx(20e6, rel=0.15)


@pytest.mark.timing
def test_nothing_limits_the_way_back(quiet: Lab) -> None:
    arrived, seconds = burst(quiet, "server", "client", quiet.plan.addresses("client").ipv4, 500)
    assert arrived == 500
    assert seconds < 0.1


@pytest.mark.timing
def test_traffic_of_every_kind_flows_within_three_seconds() -> None:
    expected = {"tcp4", "tcp6", "quic4", "quic6", "dns4", "dns6", "voice4"} | {
        f"echo{version} {what}" for version in "46" for what in ("asked", "answered")
    }
    seen: set[str] = set()
    with Lab() as lab:
        for frame in sniff(lab, 3.0):
            if found := flow(frame):
                seen.add(found[0])
            if seen >= expected:
                break
    assert seen >= expected


@pytest.mark.slow
def test_flows_are_many_and_change_all_the_time(lively: Lab) -> None:
    flows: set[tuple[str, bytes, bytes]] = set()
    flags = 0
    packets = 0
    for frame in sniff(lively, 4.0):
        packets += 1
        if found := flow(frame):
            kind, addresses, rest = found
            flows.add((kind, addresses, b"" if kind.startswith("echo") else rest[:4]))
            flags |= rest[13] if kind[:3] == "tcp" else 0
    assert 40 < len(flows) < 400, "two directions each"
    assert flags & 0b11 == 0b11, "connections begin and end"
    assert 400 < packets < 10_000


def test_dns_is_well_formed() -> None:
    query = dns_query(0x1234, "www7.example.com", 28)
    asked = DNS(query)
    assert (asked.id, asked.qr, asked.qd[0].qname, asked.qd[0].qtype) == (
        0x1234, 0, b"www7.example.com.", 28,
    )  # fmt: skip
    answered = DNS(dns_answer(query)[0])
    assert (answered.id, answered.qr, answered.rcode) == (0x1234, 1, 0)
    assert answered.an[0].rrname == b"www7.example.com."
    assert answered.an[0].rdata.startswith("2001:db8:")
    assert DNS(dns_answer(dns_query(1, "a.example", 1))[0]).an[0].rdata.startswith("192.0.2.")
    assert dns_answer(b"") == ()


def test_dns_questions_on_the_wire_are_answered(lively: Lab) -> None:
    asked: set[tuple[bytes, bytes]] = set()
    for frame in sniff(lively, 3.0):
        found = flow(frame)
        if not found or found[0][:3] != "dns":
            continue
        ports, message = found[2][:4], DNS(found[2][8:])
        if message.qr == 0:
            asked.add((ports, message.qd[0].qname))
        elif (ports[2:] + ports[:2], message.qd[0].qname) in asked:
            assert message.ancount == 1
            return
    pytest.fail(f"none of {len(asked)} questions was answered")


@pytest.mark.parametrize(
    "wrong", [{"plan": LabPlan(0)}, {"plan": LabPlan(31)}, {"rate": 0.0}, {"rate": 99.0}]
)
def test_impossible_parameters_are_refused(wrong: dict[str, LabPlan | float]) -> None:
    with pytest.raises(UsageError, match="not possible"):
        Lab(**wrong)  # type: ignore[arg-type]


def test_unknown_node_is_refused(quiet: Lab) -> None:
    with pytest.raises(UsageError, match="no node 'r7'; one of client, r1"):
        quiet.open_namespace("r7")


def test_a_lab_may_have_one_router() -> None:
    with Lab(LabPlan(1), traffic=False) as lab:
        assert probe(lab, socket.AF_INET, 1) == [(11, "10.94.0.2")]
        assert probe(lab, socket.AF_INET, 2) == [(3, lab.server_ipv4)]


def test_entering_moves_this_thread_only(quiet: Lab) -> None:
    outside = own_cookie()
    seen: list[int] = []

    def visit() -> None:
        quiet.enter()
        socket.if_nametoindex(quiet.interface)
        seen.append(own_cookie())

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    with node(quiet):
        assert seen == [own_cookie()]
    assert own_cookie() == outside not in seen


def test_inside_comes_back_after_an_error() -> None:
    outside = own_cookie()
    fd = netns.fresh()
    try:
        with contextlib.suppress(ZeroDivisionError), netns.inside(fd):
            assert own_cookie() != outside
            raise ZeroDivisionError
        assert own_cookie() == outside
        with pytest.raises(OSError, match="setns"), netns.inside(0):
            pass
    finally:
        os.close(fd)
    assert own_cookie() == outside


@pytest.mark.timing
async def test_veth_pair_inside_a_running_loop() -> None:
    outside = own_cookie()
    loop = asyncio.get_running_loop()
    with veth_pair(("near", "far"), mtu=1400) as (left, right):
        cookies = {cookie(Path(f"/proc/self/fd/{end.ns}")) for end in (left, right)}
        assert len(cookies) == 2
        assert own_cookie() == outside not in cookies
        for family, address, headers in (
            (socket.AF_INET, right.ipv4, 28),
            (socket.AF_INET6, right.ipv6, 48),
        ):
            with netns.inside(right.ns):
                assert socket.if_nametoindex("far") == right.ifindex
                receiver = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            with netns.inside(left.ns):
                assert socket.if_nametoindex("near") == left.ifindex
                sender = socket.socket(family, socket.SOCK_DGRAM)
            with receiver, sender:
                receiver.bind((address, 7))
                sender.connect((address, 7))
                sender.setsockopt(*DONT_FRAGMENT[family])
                with pytest.raises(OSError, match="too long"):
                    sender.send(bytes(1400 - headers + 1))
                sender.send(bytes(1400 - headers))
                received = await asyncio.wait_for(loop.sock_recv(receiver, 2048), 1)
                assert len(received) == 1400 - headers
    assert not cookies & namespaces()
