"""Probes as they leave the host: each is the double of its packet, and nothing else changes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.lab import netns
from bpf.abi import BEFORE, AttachType
from bpf.attach.attachment import Hook
from bpf.attach.interface import find
from bpf.compiler import Compiler
from bpf.links import link_create
from bpf.machine import enter_network
from bpf.programs.program import Program
from probes.path.options import Guard, Order, PathOptions
from probes.path.records import ProbeOutcome
from tests.bpf.tools import read_u64
from tests.probes.path.network import connect
from tests.probes.path.wire.frames import (
    ECHO,
    ECHO_REQUEST,
    FAMILY,
    PEER,
    TCP,
    UDP,
    Packet,
    Tracing,
    Wire,
    tracing_options,
    wire,
    with_checksum,
)

HOPS = (1, 2, 5, 30)
UDP_SEGMENT = 103
TRAFFIC_CLASS = 0x68
MARK = 0xCAFE
LOOKING = """\
#include "probe.h"
BPF_ARRAY(seen, u64, 64);
BPF_ARRAY(count, u64, 1);

int look(struct __sk_buff *skb) {
    u32 zero = 0;
    u64 *n = count.lookup(&zero);
    u32 at = n ? *n & 63 : 0;
    u64 what = (u64)skb->mark << 32 | skb->vlan_present << 16 | skb->len;
    seen.update(&at, &what);
    if (n)
        *n += 1;
    return VERDICT_PASS;
}
"""
"""Keeps marks, whether there is a tag beside the packet, and lengths."""
TAGGING = """\
#include <uapi/linux/if_ether.h>
#include "probe.h"
int tag(struct __sk_buff *skb) {
    if (!skb->vlan_present && skb->protocol != bpf_htons(ETH_P_8021Q))
        bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), 42);
    return VERDICT_PASS;
}
"""
"""As a VLAN interface does: the tag is kept beside the packet until that has left."""
Send = Callable[[bytes], None]


class Host:
    """A host whose packets to PEER all cause probes."""

    def __init__(self, opened: Wire, tracing: Tracing) -> None:
        self.wire, self.tracing = opened, tracing
        self.guard, self.order = tracing.options.guard, tracing.options.order
        for destination in PEER.values():
            tracing.probe.trace(destination)
        tracing.force(*HOPS)

    def caused(self, count: int = 1) -> tuple[Packet, list[Packet]]:
        """The one probe that was sent since the last time, and the application's packets."""
        packets = self.wire.sent()
        assert len(packets) == count + 1
        at = 0 if self.order is Order.PROBE else count
        return packets.pop(at), packets


@contextmanager
def hosting(compiler: Compiler, options: PathOptions, *, ethernet: bool = True) -> Iterator[Host]:
    with wire(ethernet=ethernet) as opened:
        tracing = Tracing(compiler, opened.name, options)
        try:
            yield Host(opened, tracing)
        finally:
            tracing.close()


CHOICES = (
    (Guard.DISCARD, Order.PROBE),
    (Guard.DISCARD, Order.APPLICATION),
    (Guard.CHECKSUM, Order.PROBE),
    (Guard.NONE, Order.PROBE),
)


@pytest.fixture(scope="module", params=CHOICES, ids="-".join)
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[Host]:
    with hosting(compiler, tracing_options(*request.param)) as made:
        yield made


@contextmanager
def application(host: Host, protocol: int, version: int) -> Iterator[Send]:
    """One that is about to send to PEER."""
    if protocol == TCP:
        sock = connect(host.wire, version)
        sock.setsockopt(TCP, socket.TCP_NODELAY, 1)
    else:
        kind = socket.SOCK_DGRAM if protocol == UDP else socket.SOCK_RAW
        sock = socket.socket(FAMILY[version], kind, protocol)
        sock.connect((PEER[version], 4000 if protocol == UDP else 0))
    if version == 4:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TRAFFIC_CLASS)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, TRAFFIC_CLASS)
    host.wire.sent()

    def send(payload: bytes) -> None:
        if protocol in ECHO.values():
            header = struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 77, 1)
            payload = with_checksum(header + payload, 2)
        sock.sendall(payload)

    with sock:
        yield send


def check(probe: Packet, cause: Packet, sequence: int, guard: Guard) -> None:
    """Check that the probe is the one expected from `cause` (S3.14), and malformed only as `guard`
    says."""
    expected = cause.probe(probe.ttl, sequence, guard)
    assert probe.without_checksum() == expected.without_checksum()
    assert replace(probe, ip=b"") == replace(expected, ip=b"")  # link and offload
    assert probe.header_is_right
    if guard is Guard.NONE or (guard is Guard.DISCARD and probe.protocol in (TCP, UDP)):
        assert probe.checksum_is_right
    else:
        assert not probe.checksum_is_right
    if probe.protocol in ECHO.values():  # load balancers may hash the application's
        assert probe.checksum == cause.checksum


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "echo"])
@pytest.mark.parametrize("offload", [False, True], ids=["whole", "partial"])
def test_a_probe_is_its_packets_double(
    host: Host, protocol: str, version: int, offload: bool
) -> None:
    """S3.3, S3.13, S3.14, S3.15, S3.22; with an interface that completes checksums, and one not."""
    number = {"tcp": TCP, "udp": UDP, "echo": ECHO[version]}[protocol]
    host.wire.offload(offload)
    hops = []
    with application(host, number, version) as send:
        host.tracing.force(*HOPS)
        for size in (1000, 13, 12, 11, 4, 3, 1, 0)[: 7 if number == TCP else 8]:
            sequence = host.tracing.sequence(PEER[version])
            payload = random.randbytes(size)
            send(payload)
            probe, (packet,) = host.caused()
            check(probe, packet, sequence, host.guard)
            hops.append(probe.ttl)
            # The application's own is as it would be without.
            assert packet.header_is_right
            assert packet.checksum_is_right
            assert packet.transport.endswith(payload)
            assert packet.ttl == 64
            word = int.from_bytes(packet.ip[:4], "big")
            assert word >> (16 if version == 4 else 20) & 0xFF == TRAFFIC_CLASS
            assert version == 4 or word & 0xFFFFF  # a flow label, that the probe has to have too
            assert packet.partial == (offload and number in (TCP, UDP))
    assert sorted(hops[:4]) == list(HOPS)  # each in turn


def test_a_large_segment_causes_one_probe(host: Host) -> None:
    """S3.22: UDP_SEGMENT, and TCP's, cut by the interface or before it."""
    for version in (4, 6):
        for offload in (False, True):
            host.wire.offload(offload)
            with application(host, TCP, version) as send:
                sequence = host.tracing.sequence(PEER[version])
                payload = random.randbytes(5 * 1400)
                send(payload)
                probe, packets = host.caused(1 if offload else 5)
                check(probe, packets[0], sequence, host.guard)
                assert b"".join(p.transport for p in packets).count(payload[:1400]) == 1
                assert sum(len(p.transport) - 20 for p in packets) == len(payload)
                assert bool(packets[0].segment) == offload
            with socket.socket(FAMILY[version], socket.SOCK_DGRAM) as sock:
                host.wire.sent()
                sock.connect((PEER[version], 4000))
                sock.setsockopt(UDP, UDP_SEGMENT, 1000)
                sequence = host.tracing.sequence(PEER[version])
                payload = random.randbytes(40_500)
                sock.send(payload)
                probe, packets = host.caused(1 if offload else 41)
                # The lengths in the whole packet's headers, before the cut.
                whole = replace(packets[0], ip=bytearray(packets[0].ip))  # type: ignore[arg-type]
                start = packets[0].header + 4
                whole.ip[start : start + 2] = struct.pack(">H", 40_508)  # type: ignore[index]
                check(probe, replace(whole, ip=bytes(whole.ip)), sequence, host.guard)
                assert b"".join(p.transport[8:] for p in packets) == payload


def test_no_probe_for_what_opens_or_ends_a_connection(host: Host) -> None:
    for version in (4, 6):
        host.wire.sent()
        sequence = host.tracing.sequence(PEER[version])
        connect(host.wire, version).close()
        flags = [p.transport[13] for p in host.wire.sent()]
        assert host.tracing.sequence(PEER[version]) == sequence + 1
        of_probe = 0 if host.guard is Guard.DISCARD else 0x10
        assert sorted(flags) == [of_probe, 0x10, 0x14]  # its probe, the handshake's end, a reset
        sock = connect(host.wire, version)
        host.wire.sent()
        sock.shutdown(socket.SHUT_WR)
        (last,) = host.wire.sent()
        assert last.transport[13] == 0x11
        sock.close()


@pytest.mark.parametrize("order", list(Order), ids=str)
def test_a_tunnel_without_ethernet(compiler: Compiler, order: Order) -> None:
    with hosting(compiler, tracing_options(order=order), ethernet=False) as host:
        for version in (4, 6):
            for protocol in (TCP, UDP, ECHO[version]):
                with application(host, protocol, version) as send:
                    sequence = host.tracing.sequence(PEER[version])
                    send(bytes(500))
                    probe, (packet,) = host.caused()
                    check(probe, packet, sequence, Guard.DISCARD)
                    assert not packet.link


@contextmanager
def beside(compiler: Compiler, source: str, name: str, *, first: bool = False) -> Iterator[Program]:
    """Another program on the interface's egress hook, before or behind those that are there."""
    with (
        compiler.compile(source, Hook.TC_EGRESS.prog_type, cflags=["-DHOOK_TC_EGRESS=1"]) as code,
        closing(Program(code, name)) as program,
    ):
        flags = BEFORE if first else 0
        link = link_create(program.fd, find("wire").index, AttachType.TCX_EGRESS, flags)
        try:
            yield program
        finally:
            os.close(link)


@pytest.mark.parametrize("order", list(Order), ids=str)
def test_marks_and_tags_stay(compiler: Compiler, order: Order) -> None:
    """The probe has the mark, and a VLAN tag that is kept beside the packet, of its cause."""
    with wire(ethernet=True) as opened:
        tracing = Tracing(compiler, opened.name, tracing_options(order=order))
        try:
            host = Host(opened, tracing)
            with (
                beside(compiler, TAGGING, "tag", first=True),
                beside(compiler, LOOKING, "look") as program,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
            ):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
                sequence = tracing.sequence(PEER[4])
                sock.sendto(bytes(100), (PEER[4], 9))
                probe, (packet,) = host.caused()
                seen = [read_u64(program.map_fd("seen"), at) for at in range(2)]
                assert read_u64(program.map_fd("count")) == 2
        finally:
            tracing.close()
    check(probe, packet, sequence, Guard.DISCARD)
    assert packet.link[12:] == bytes.fromhex("8100002a0800")
    assert {what >> 32 for what in seen} == {MARK}
    assert {what >> 16 & 1 for what in seen} == {1}
    assert sorted(what & 0xFFFF for what in seen) == [14 + 36, 14 + 128]


def test_a_burst_comes_before_its_packet(compiler: Compiler) -> None:
    """S3.19, if the option is set."""
    with hosting(compiler, tracing_options(burst=3)) as host:
        for version in (4, 6):
            for protocol in (UDP, ECHO[version], TCP):
                with application(host, protocol, version) as send:
                    sequence = host.tracing.sequence(PEER[version])
                    send(bytes(50))
                    *probes, packet = host.wire.sent()
                    assert len(probes) == 3
                    for n, probe in enumerate(probes):
                        check(probe, packet, sequence + n, Guard.DISCARD)


async def _congest() -> None:
    """A slow queue behind the interface that drops its oldest packet: NET_XMIT_CN."""
    from pyroute2.netlink.rtnl import tcmsg

    tcmsg.plugins.setdefault("pfifo_head_drop", SimpleNamespace())  # else it would be put at root
    index = socket.if_nametoindex("wire")
    netlink = netns.open_netlink(netns.current())
    await netlink.tc("add", "tbf", index, 0x10000, rate=1000, burst=400, latency="10s")
    await netlink.link("set", index=index, txqlen=3)
    await netlink.tc("replace", "pfifo_head_drop", index, 0x20000, parent=0x10001)
    await netlink.link("set", index=index, txqlen=500)
    netlink.close()


@pytest.mark.parametrize("order", list(Order), ids=str)
def test_a_packet_that_congests_is_sent_once(compiler: Compiler, order: Order) -> None:
    """Neither is it sent again, nor is its probe counted as dropped, though the queue complains."""
    with hosting(compiler, tracing_options(order=order)) as host:
        with ThreadPoolExecutor(1) as thread:
            space = netns.current()
            thread.submit(_in_space, space).result()
            os.close(space)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((PEER[4], 4000))
            for n in range(12):
                sock.send(b"%03d" % n + bytes(97))
        deadline = time.monotonic() + 1
        packets: list[Packet] = []
        while len(packets) < 5 and time.monotonic() < deadline:
            packets += host.wire.sent()
            time.sleep(0.01)
        rows = host.tracing.rows()
    datagrams = [p.transport[8:11] for p in packets if p.ttl == 64]
    assert b"011" in datagrams  # the last one, which others had to make room for
    assert len(datagrams) == len(set(datagrams))
    assert not (rows["outcome"] == ProbeOutcome.DROPPED).any()


def _in_space(space: int) -> None:
    enter_network(space)
    asyncio.run(_congest())
