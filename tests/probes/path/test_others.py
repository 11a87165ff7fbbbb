"""Other programs beside path tracing get all their packets, and none of its probes (S3.16,
S3.21)."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.compiler import Compiler
from probes.path.records import ProbeOutcome
from tests.probes.path.network import Network, answer, connect
from tests.probes.path.wire.frames import (
    ECHO,
    ECHO_REQUEST,
    FAMILY,
    PEER,
    ROUTER,
    TCP,
    Tracing,
    Wire,
    tracing_options,
    wire,
    with_checksum,
)
from tests.support.paths import probe_numbers

ROUTERS = 4
LEVEL = {4: socket.IPPROTO_IP, 6: socket.IPPROTO_IPV6}
TTL = {4: socket.IP_TTL, 6: socket.IPV6_UNICAST_HOPS}
RECVERR = {4: 11, 6: 25}
MTU_DISCOVER, DO = {4: 10, 6: 23}, 2
MTU = {4: 14, 6: 24}
MSG_ERRQUEUE = 0x2000
RECORD = {4: 16, 6: 16}
"""Bytes of a sock_extended_err; the address of the error's sender follows."""


class Host:
    """A host on a TUN behind which the test plays the network; all packets cause probes."""

    def __init__(self, opened: Wire, tracing: Tracing) -> None:
        self.wire, self.tracing = opened, tracing
        self.network = Network(opened, ROUTERS)

    def trace(self, *hops: int) -> None:
        for destination in PEER.values():
            self.tracing.probe.trace(destination)
        self.tracing.force(*(hops or range(1, ROUTERS + 1)))

    def answered(self) -> int:
        """Probes that were, since the last time."""
        return int((self.tracing.rows()["outcome"] == ProbeOutcome.ANSWERED).sum())


@contextlib.contextmanager
def hosting(compiler: Compiler, **options: object) -> Iterator[Host]:
    with wire(ethernet=False) as opened:
        tracing = Tracing(compiler, opened.name, tracing_options(**options))  # type: ignore[arg-type]
        try:
            yield Host(opened, tracing)
        finally:
            tracing.close()


@pytest.fixture
def host(compiler: Compiler) -> Iterator[Host]:
    with hosting(compiler) as made:
        made.trace()
        yield made


def errors_of(sock: socket.socket, version: int) -> list[tuple[int, str]]:
    """Error number and sender of each ICMP error that a socket has got."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            _, ancillary, _, _ = sock.recvmsg(2000, 500, MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            for level, kind, data in ancillary:
                if (level, kind) == (LEVEL[version], RECVERR[version]):
                    start = 16 + (4 if version == 4 else 8)
                    size = 4 if version == 4 else 16
                    address = ipaddress.ip_address(data[start : start + size])
                    found.append((struct.unpack_from("I", data)[0], str(address)))
    return found


def icmp_counts() -> dict[str, int]:
    """ICMP messages that the host took in, of both versions."""
    heads, values = (
        line.split()[1:]
        for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
        if line.startswith("Icmp:")
    )
    counts = {f"Icmp{name}": int(value) for name, value in zip(heads, values, strict=True)}
    for line in Path("/proc/thread-self/net/snmp6").read_text().splitlines():
        name, value = line.split()
        counts[name] = int(value)
    return counts


def echo(sock: socket.socket, version: int, number: int) -> None:
    header = struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 4711, number)
    sock.send(with_checksum(header + bytes(range(16)), 2))


@pytest.mark.parametrize("version", [4, 6])
def test_traceroute(host: Host, version: int) -> None:
    """A traceroute by UDP sees each router once; answers to probes are not its own."""
    with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
        sock.setsockopt(LEVEL[version], RECVERR[version], 1)
        for round_ in range(5):
            for ttl in range(1, ROUTERS + 1):
                sock.setsockopt(LEVEL[version], TTL[version], ttl)
                sock.sendto(bytes(round_ * 4), (PEER[version], 33434 + ttl))
                host.network.play()
                expected = str(ipaddress.ip_address(ROUTER[version] % ttl))
                assert errors_of(sock, version) == [(errno.EHOSTUNREACH, expected)]
    assert host.answered() == 5 * ROUTERS


@pytest.mark.parametrize("version", [4, 6])
def test_mtr(host: Host, version: int) -> None:
    """One by ICMP echo, on a raw socket that gets every ICMP message that the host gets."""
    with socket.socket(FAMILY[version], socket.SOCK_RAW, ECHO[version]) as sock:
        sock.setblocking(False)
        sock.connect((PEER[version], 0))
        with socket.socket(FAMILY[version], socket.SOCK_RAW, ECHO[version]) as all_of_it:
            all_of_it.setblocking(False)
            senders = []
            for number in range(20):
                ttl = 1 + number % ROUTERS
                sock.setsockopt(LEVEL[version], TTL[version], ttl)
                echo(sock, version, number)
                host.network.play()
                with contextlib.suppress(BlockingIOError):
                    while True:
                        data, (sender, *_) = all_of_it.recvfrom(2000)
                        senders.append(sender)
                        quoted = data[(20 if version == 4 else 0) + 8 :]
                        header = quoted[20 if version == 4 else 40 :]
                        assert header[4:8] == struct.pack(">HH", 4711, number)
                        assert len(header) == 24  # its own packet's, not a probe's
    expected = [str(ipaddress.ip_address(ROUTER[version] % (1 + n % ROUTERS))) for n in range(20)]
    assert senders == expected
    assert host.answered() == 20


@pytest.mark.parametrize("passes", [False, True], ids=["dropped", "passed"])
@pytest.mark.parametrize("version", [4, 6])
def test_whether_the_host_gets_answers(compiler: Compiler, version: int, passes: bool) -> None:
    """S3.16, by the host's own counts; matched they are in both cases."""
    with hosting(compiler, pass_answers=passes) as host:
        host.trace()
        name = "IcmpInTimeExcds" if version == 4 else "Icmp6InTimeExcds"
        before = icmp_counts()[name]
        with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
            sock.connect((PEER[version], 4000))
            for _ in range(12):
                sock.send(bytes(100))
                assert len(host.network.play()) == 1
        assert icmp_counts()[name] - before == 12 * passes
        assert host.answered() == 12


@pytest.mark.parametrize("version", [4, 6])
def test_times_and_responders(host: Host, version: int) -> None:
    """S3.11: hop and responder, and times by the network's own clock."""
    with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
        sock.connect((PEER[version], 4000))
        sent, received = [], []
        first = host.tracing.sequence(PEER[version])
        for _ in range(2 * ROUTERS):
            sent.append(time.monotonic_ns())
            sock.send(bytes(100))
            sent.append(time.monotonic_ns())
            time.sleep(random.uniform(0, 0.005))
            received.append(time.monotonic_ns())
            host.network.play()
            received.append(time.monotonic_ns())
        rows = host.tracing.rows()
    assert list(rows["sequence"]) == probe_numbers(first, 2 * ROUTERS)
    for n, row in enumerate(rows):
        assert sent[2 * n] <= row["sent_ns"] <= sent[2 * n + 1]
        assert received[2 * n] <= row["received_ns"] <= received[2 * n + 1]
        size = 4 if version == 4 else 16
        responder = ipaddress.ip_address(bytes(row["responder"][:size]))
        assert responder == ipaddress.ip_address(ROUTER[version] % row["hop"])
        assert row["quoted_ttl"] == 1
    assert sorted(rows["hop"]) == sorted([*range(1, ROUTERS + 1)] * 2)


@pytest.mark.parametrize("version", [4, 6])
def test_path_mtu_discovery(compiler: Compiler, version: int) -> None:
    with hosting(compiler) as host:
        host.trace()
        host.network = Network(host.wire, ROUTERS, mtu=1300)
        with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
            sock.setsockopt(LEVEL[version], MTU_DISCOVER[version], DO)
            sock.connect((PEER[version], 4000))
            assert sock.getsockopt(LEVEL[version], MTU[version]) == 1500
            sock.send(bytes(1400))
            assert host.network.play() == []
            with contextlib.suppress(OSError):
                sock.send(b"")  # takes the error that the last one left
            host.network.play()
            assert sock.getsockopt(LEVEL[version], MTU[version]) == 1300
        with connect(host.wire, version) as tcp:
            host.network.play()
            tcp.send(bytes(1220))
            (whole,) = host.network.play()
            assert len(whole.ip) <= 1300
        assert host.answered() > 2


@pytest.mark.parametrize("version", [4, 6])
def test_a_closed_port_is_told(host: Host, version: int) -> None:
    with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
        sock.connect((PEER[version], 4000))
        sock.send(bytes(100))
        (packet,) = host.network.play()
        host.wire.receive(answer(packet, PEER[version], (3, 3) if version == 4 else (1, 4)))
        with pytest.raises(ConnectionRefusedError):
            sock.send(bytes(100))


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_goes_on(host: Host, version: int) -> None:
    """Expired probes of it leave no trace on a socket, which would report even soft errors."""
    with connect(host.wire, version) as sock:
        sock.setsockopt(LEVEL[version], RECVERR[version], 1)
        sock.setsockopt(TCP, socket.TCP_NODELAY, 1)
        host.network.play()
        for n in range(8):
            sock.send(bytes([n]) * 500)
            (packet,) = host.network.play()
            assert packet.transport.endswith(bytes([n]) * 500)
        assert errors_of(sock, version) == []
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert host.answered() >= 8


def test_two_destinations_and_late_answers(compiler: Compiler) -> None:
    """An answer that comes after its destination was given up is no longer anybody's."""
    with hosting(compiler) as host:
        host.trace()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((PEER[4], 4000))
            sock.send(bytes(100))
            probe, _ = host.wire.sent()
            host.tracing.probe.untrace(PEER[4])
            rows = host.tracing.rows()
            assert list(rows["outcome"]) == [ProbeOutcome.IN_FLIGHT]
            before = icmp_counts()["IcmpInTimeExcds"]
            host.wire.receive(answer(probe, ROUTER[4] % 1))
            assert icmp_counts()["IcmpInTimeExcds"] == before + 1
            host.tracing.probe.trace(PEER[4])
            host.wire.receive(answer(probe, ROUTER[4] % 1))
            assert not len(host.tracing.rows())
