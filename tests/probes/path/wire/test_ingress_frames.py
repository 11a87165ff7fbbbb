"""Frames that ingress.c reads in place: headers outside the linear bytes, and frames cut short."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.path.records import ProbeOutcome
from tests.probes.path.network import answer
from tests.probes.path.test_others import icmp_counts
from tests.probes.path.wire.frames import (
    ECHO,
    FAMILY,
    HOST,
    PEER,
    ROUTER,
    UDP,
    Packet,
    Tracing,
    Wire,
    ip_packet,
    mark,
    packed,
    tracing_options,
    wire,
)

LEAST = {Hook.XDP: 14, Hook.TC_INGRESS: 54}
"""Bytes of a frame that BPF_PROG_TEST_RUN takes: Ethernet, and for TC the IP header too."""
LARGE = 5000
"""Bytes of payload for which a TAP allocates pages."""
PASS = {Hook.XDP: 2, Hook.TC_INGRESS: 0xFFFFFFFF}
TAGS = {"untagged": b"", "vlan": b"\x81\0\0\7", "qinq": b"\x88\xa8\0\1\x81\0\0\7"}
ETHERTYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}


@pytest.fixture(scope="module", params=[Hook.XDP, Hook.TC_INGRESS], ids=["xdp", "tc"])
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[tuple[Wire, Tracing]]:
    with wire(ethernet=True) as opened:
        tracing = Tracing(compiler, opened.name, tracing_options(), request.param)
        for destination in PEER.values():
            tracing.probe.trace(destination)
        yield opened, tracing
        tracing.close()


def cause(host: tuple[Wire, Tracing], version: int) -> Packet:
    """Send a datagram; return its probe."""
    opened, tracing = host
    tracing.force(7)
    opened.sent()
    with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
        sock.sendto(bytes(100), (PEER[version], 4000))
    probe, _ = opened.sent()
    assert probe.ttl == 7
    return probe


def receive_paged(opened: Wire, link: bytes, ip: bytes) -> None:
    """Have the host receive a frame in pages, its Ethernet header in the linear bytes."""
    assert len(ip) > 4096
    os.write(opened._fd, struct.pack("<BBHHHH", 2, 0, 14, 0, 0, 0) + link + ip)


def link_of(opened: Wire, version: int, tags: bytes = b"") -> bytes:
    return opened._mac + opened._mac + tags + ETHERTYPE[version]


def hook_of(tracing: Tracing) -> tuple[Hook, int]:
    """The hook that answers come by, and its program."""
    ((hook, fd),) = (
        (point.hook, point.chain.fd)
        for point in tracing.hooks.in_use()
        if isinstance(point.hook, Hook) and point.hook is not Hook.TC_EGRESS
    )
    return hook, fd


@pytest.mark.parametrize("version", [4, 6])
def test_an_answer_in_pages_is_matched(host: tuple[Wire, Tracing], version: int) -> None:
    """Headers, quote and extension may all lie outside the linear bytes of a socket buffer."""
    opened, tracing = host
    tracing.rows()
    name = "IcmpInTimeExcds" if version == 4 else "Icmp6InTimeExcds"
    before = icmp_counts()[name]
    labels = struct.pack(">HHHBBI", 2 << 12, 0, 8, 1, 1, 0x12345101) + bytes(LARGE)
    packet = answer(
        cause(host, version), ROUTER[version] % 7, quote=128, words=32 if version == 4 else 16,
        extension=labels,
    )  # fmt: skip
    receive_paged(opened, link_of(opened, version), packet)
    (row,) = tracing.rows()
    assert row["outcome"] == ProbeOutcome.ANSWERED
    assert list(row["labels"][: row["label_count"]]) == [0x12345101]
    assert icmp_counts()[name] == before  # the host does not see it


@pytest.mark.parametrize("version", [4, 6])
def test_the_distance_is_learned_from_packets_in_pages(
    host: tuple[Wire, Tracing], version: int
) -> None:
    opened, tracing = host
    (target,) = (t for t in tracing.probe._targets if t.destination.version == version)
    datagram = struct.pack(">HHHH", 4000, 4001, 8 + LARGE, 0) + bytes(LARGE)
    for ttl in (51, 52):
        ip = ip_packet(packed(PEER[version]), packed(HOST[version]), UDP, datagram, ttl)
        receive_paged(opened, link_of(opened, version), ip)
        assert target._kernel["ttl"] == ttl


@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS)
@pytest.mark.parametrize("version", [4, 6])
def test_a_frame_cut_anywhere_is_passed(
    host: tuple[Wire, Tracing], version: int, tags: bytes
) -> None:
    """Up to the last byte that a match needs: IPv4 routers need not quote the probe's mark."""
    opened, tracing = host
    hook, program = hook_of(tracing)
    tracing.rows()
    frame = link_of(opened, version, tags) + answer(cause(host, version), ROUTER[version] % 7)
    least = len(frame) - (len(mark(0)) if version == 4 else 0)
    cut = (frame[:size] for size in range(LEAST[hook], least))
    assert {prog_test_run(program, part).verdict for part in cut} == {PASS[hook]}
    assert prog_test_run(program, frame[:least]).verdict != PASS[hook]
    assert list(tracing.rows()["outcome"]) == [ProbeOutcome.ANSWERED]


@pytest.mark.parametrize("kind", [0, 43, 60], ids=["hop-by-hop", "routing", "destination"])
def test_an_answer_behind_extension_headers_is_the_hosts(
    host: tuple[Wire, Tracing], kind: int
) -> None:
    opened, tracing = host
    hook, program = hook_of(tracing)
    tracing.rows()
    packet = answer(cause(host, 6), ROUTER[6] % 7)
    size = int.from_bytes(packet[4:6], "big") + 8
    extended = packet[:4] + struct.pack(">HB", size, kind) + packet[7:40]
    extended += bytes([ECHO[6], 0]) + bytes(6) + packet[40:]
    frame = link_of(opened, 6) + extended
    assert prog_test_run(program, frame).verdict == PASS[hook]
    assert prog_test_run(program, link_of(opened, 6) + packet).verdict != PASS[hook]
