"""Probes that come as far as the destination: what a real one makes of them, guard by guard."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lab import netns
from bpf import features
from bpf.compiler import Compiler
from probes.path.options import Guard, Order
from tests.probes.path.wire.frames import (
    ECHO,
    ECHO_REQUEST,
    FAMILY,
    Tracing,
    mark,
    tracing_options,
    with_checksum,
)
from tests.support.veth import End, veth_pair

COUNT = 40
VOLUME = 6 << 20
SYSCTLS = {"net/ipv4/tcp_sack": "0", "net/ipv4/icmp_ratelimit": "0"}
ETHTOOL_STXCSUM = 0x17
TROUBLE = (
    "TcpRetransSegs",
    "TcpEstabResets",
    "TcpExtTCPFastRetrans",
    "TcpExtTCPSpuriousRTOs",
    "TcpExtTCPLossProbes",
    "TcpExtTCPChallengeACK",
    "TcpExtTCPOFOQueue",
    "TcpExtDelayedACKLost",
    "TcpExtTCPACKSkippedSeq",
)
"""Counters of a TCP that sent or received a segment twice or out of order."""
CHOICES = (
    (Guard.DISCARD, Order.PROBE),
    (Guard.DISCARD, Order.APPLICATION),
    (Guard.CHECKSUM, Order.PROBE),
    (Guard.NONE, Order.PROBE),
)


class Link:
    """A host that traces, and a real destination beside it: every probe gets there."""

    def __init__(self, near: End, far: End, tracing: Tracing) -> None:
        self.near, self.far, self.tracing = near, far, tracing
        self.guard = tracing.options.guard
        for destination in (far.ipv4, far.ipv6):
            tracing.probe.trace(destination)

    def address(self, version: int) -> str:
        return self.far.ipv4 if version == 4 else self.far.ipv6

    def offload(self, wanted: bool) -> None:
        """Have checksums left to the interface, and the receiver trust it, or not."""
        features._ethtool(self.near.ifname, struct.pack("II", ETHTOOL_STXCSUM, wanted))

    def probes(self) -> int:
        """How many have been sent."""
        return sum(traced.sent for traced in self.tracing.probe.traced())

    def open(self, version: int, kind: int, protocol: int = 0, *, far: bool) -> socket.socket:
        with netns.inside(self.far.ns if far else self.near.ns):
            opened = socket.socket(FAMILY[version], kind, protocol)
        opened.settimeout(10)
        return opened

    def counts(self) -> dict[str, int]:
        """Counters of the destination's kernel."""
        with netns.inside(self.far.ns):
            return counts()


def counts() -> dict[str, int]:
    """The namespace's, as `TcpRetransSegs`, `TcpExtTCPDSACKRecv`, `Udp6InErrors`."""
    found: dict[str, int] = {}
    for name in ("snmp", "netstat"):
        lines = Path(f"/proc/thread-self/net/{name}").read_text(encoding="ascii").splitlines()
        for heads, values in zip(lines[::2], lines[1::2], strict=True):
            of, *keys = heads.split()
            found |= zip((of[:-1] + key for key in keys), map(int, values.split()[1:]), strict=True)
    for line in Path("/proc/thread-self/net/snmp6").read_text(encoding="ascii").splitlines():
        key, value = line.split()
        found[key] = int(value)
    return found


@pytest.fixture(scope="module", params=CHOICES, ids="-".join)
def link(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[Link]:
    with veth_pair() as (near, far), netns.inside(near.ns):
        for end in (near, far):
            netns.write_sysctls(end.ns, SYSCTLS)
        tracing = Tracing(compiler, near.ifname, tracing_options(*request.param))
        try:
            yield Link(near, far, tracing)
        finally:
            tracing.close()


def received(sock: socket.socket) -> list[bytes]:
    """All that is there, of datagrams that have arrived."""
    found = []
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(sock.recv(70_000))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("offload", [True, False], ids=["partial", "whole"])
@pytest.mark.parametrize("version", [4, 6])
def test_datagrams(link: Link, version: int, offload: bool) -> None:
    """Each arrives once, and no other; sizes of none to more than one packet."""
    link.offload(offload)
    server = link.open(version, socket.SOCK_DGRAM, far=True)
    server.bind(("", 4000))
    client = link.open(version, socket.SOCK_DGRAM, far=False)
    client.connect((link.address(version), 4000))
    link.tracing.force()
    with server, client:
        client.send(b"first")  # ARP and neighbour discovery work while traced
        assert server.recv(100) == b"first"
        link.tracing.force(1, 2, 30)
        before, probes = link.counts(), link.probes()
        sent = [os.urandom(n) for n in (0, 1, 4, 8, 9, 100, 1400)] * (COUNT // 7)
        for payload in sent:
            client.send(payload)
        probes = link.probes() - probes
        got: list[bytes] = []
        prefix = "Udp" if version == 4 else "Udp6"
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            got += received(server)
            after = link.counts()
            errors, wrong = (
                after[prefix + key] - before[prefix + key] for key in ("InErrors", "InCsumErrors")
            )
            if len(got) + errors >= len(sent) + probes:
                break
        client.send(b"last")  # no error has come back
    assert probes == len(sent)
    if link.guard is not Guard.NONE:  # a guarded datagram has a wrong length, too
        assert got == sent
        assert (errors, wrong) == (probes, 0)
    else:  # as documented: an application gets them
        extra = len(got) - len(sent)
        assert extra == probes
        assert {len(payload) for payload in got} >= {len(mark(0))}
        assert errors == 0


@pytest.mark.parametrize("version", [4, 6])
def test_echoes(link: Link, version: int) -> None:
    """As many replies as requests: the host does not get replies to probes, which have no guard."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    kind = 129 if version == 6 else 0
    client = link.open(version, socket.SOCK_RAW, ECHO[version], far=False)
    client.connect((link.address(version), 0))
    with client:
        link.tracing.force(1, 2, 30)
        probes = link.probes()
        for n in range(COUNT):
            header = struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 5, n)
            client.send(with_checksum(header + bytes(n % 7), 2))
        probes = link.probes() - probes
        time.sleep(0.05)
        start = 20 if version == 4 else 0
        replies = [data[start:] for data in received(client) if data[start] == kind]
    assert probes == COUNT
    numbers = [struct.unpack_from(">H", reply, 6)[0] for reply in replies]
    assert sorted(numbers) == list(range(COUNT))


@pytest.mark.parametrize("offload", [True, False], ids=["partial", "whole"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_transfer_without_sack(link: Link, version: int, way: str, offload: bool) -> None:
    """S3.21: TCP retransmits no segment, and takes none for a duplicate."""
    # Over veth, segments that leave from several CPUs come out of order by themselves.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    link.offload(offload)
    listener = link.open(version, socket.SOCK_STREAM, far=True)
    listener.bind(("", 0))
    listener.listen()
    client = link.open(version, socket.SOCK_STREAM, far=False)
    client.connect((link.address(version), listener.getsockname()[1]))
    server, _ = listener.accept()
    server.settimeout(10)
    source, sink = (client, server) if way == "up" else (server, client)
    data = os.urandom(VOLUME)
    got = bytearray()

    def receive() -> None:
        while chunk := sink.recv(1 << 18):
            got.extend(chunk)

    before = counts(), link.counts()
    link.tracing.force(1, 2, 30)
    probes = link.probes()
    with listener, client, server:
        thread = threading.Thread(target=receive)
        thread.start()
        source.sendall(data)
        source.shutdown(socket.SHUT_WR)
        thread.join()
    probes = link.probes() - probes
    after = counts(), link.counts()
    assert bytes(got) == data
    assert probes > 20
    if link.guard is Guard.NONE or (link.guard is Guard.CHECKSUM and offload):
        return  # documented to reach TCP, which takes most for old acknowledgements
    for then, now in zip(before, after, strict=True):
        assert [key for key in TROUBLE if now.get(key, 0) != then.get(key, 0)] == []
    wrong = after[1]["TcpInCsumErrors"] - before[1]["TcpInCsumErrors"]
    assert wrong == (probes if link.guard is Guard.CHECKSUM else 0)
