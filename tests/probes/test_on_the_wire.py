"""Real traffic in large segments: each hook counts the packets and bytes that its sender does."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pyroute2 import IPRoute
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from app.lab import netns
from bpf.abi import AttachType
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.links import link_create
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.flow.records import FlowDirection
from probes.snapshot import Event, Snapshot
from tests.probes.running import running
from tests.support.compiling import Shared
from tests.support.kernel import name_of
from tests.support.veth import End, veth_pair

SIZE = 4_000_000
LINK, IPV4, IPV6, TCP_HEADER, TIMESTAMP, SYN_OPTIONS = 14, 20, 40, 20, 12, 8
TAG = 4
LEFT, RIGHT = "10.96.0.1", "10.96.0.2"
INGRESS = [Hook.XDP, Hook.TC_INGRESS]
_TCPI_SEGS_OUT, _TCPI_BYTES_SENT = 136, 200
_TUNSETIFF, _TUN, _TAP, _NO_PI, _VNET_HDR = 0x400454CA, 1, 2, 0x1000, 0x4000
_NEEDS_CSUM, _GSO_TCPV4, _CHECKSUM_AT = 1, 1, 16
_UDP_SEGMENT = 103

PUSH = """
#include "probe.h"
int push(struct __sk_buff *skb) {
    if (skb->protocol != bpf_htons(ETH_P_IP))
        return -1;
    bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), 7);
    return bpf_redirect(TO, 0);
}
"""
POP = """
#include "probe.h"
int pop(struct __sk_buff *skb) {
    bpf_skb_vlan_pop(skb);
    return -1;
}
"""
Counts = tuple[int, int]
"""Packets and bytes."""


@pytest.fixture(autouse=True)
def _shared(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers share the compile helper of all tests."""
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    """A veth pair; an interface of the right host answers ARP for its own addresses only."""
    with veth_pair() as ends:
        netns.write_sysctls(ends[1].ns, {"net/ipv4/conf/all/arp_ignore": "1"})
        yield ends


class Counted:
    """Flows of an interface."""

    def __init__(self, ns: int, interface: str, ingress: Hook) -> None:
        self._rows: list[Array] = []
        self._controller = Controller()
        self._controller.listen(self._take)
        with netns.inside(ns):
            self._controller.start(
                FLOW_PROBE, interface, FlowOptions(interval=0.2, ingress=name_of(ingress))
            )

    def _take(self, item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            self._rows.append(item.rows)

    def close(self) -> None:
        self._controller.close()

    def __call__(self, port: int, direction: FlowDirection) -> Counts:
        """Packets and bytes to `port`; ends the probe."""
        self.close()
        rows = np.concatenate(self._rows)
        mine = rows[(rows["destination_port"] == port) & (rows["direction"] == direction)]
        return int(mine["packets"].sum()), int(mine["bytes"].sum())


@contextmanager
def counted(*where: tuple[End, str, Hook]) -> Iterator[list[Counted]]:
    with ExitStack() as stack:
        made = []
        for end, interface, ingress in where:
            made.append(Counted(end.ns, interface, ingress))
            stack.callback(made[-1].close)
        yield made


@dataclass
class Sent:
    """The segments of a TCP connection, by TCP_INFO of the sender."""

    port: int
    segments: int
    payload: int
    large: int
    """Buffers that the receiver's interface counted: fewer than segments where they were large."""

    def on_wire(self, network: int = IPV4, more: int = 0) -> Counts:
        """Packets and bytes, with `network` and `more` bytes of headers beside Ethernet and TCP."""
        headers = LINK + network + TCP_HEADER + TIMESTAMP + more
        return self.segments, self.payload + self.segments * headers + SYN_OPTIONS


def transfer(left: End, right: End, to: str, size: int = SIZE) -> Sent:
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with netns.inside(right.ns):
        server = socket.create_server((to, 0), family=family)
    with netns.inside(left.ns):
        client = socket.socket(family, socket.SOCK_STREAM)

    def take() -> None:
        taken, _ = server.accept()
        with taken:
            while taken.recv(1 << 20):
                pass

    port = server.getsockname()[1]
    before = received(right)
    with server, client:
        thread = threading.Thread(target=take)
        thread.start()
        client.settimeout(10)
        # Less in flight than a veth's ring holds: it drops what comes before its receiver runs.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        client.connect((to, port))
        client.sendall(bytes(size))
        client.shutdown(socket.SHUT_WR)
        thread.join()
        time.sleep(0.1)
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (segments,) = struct.unpack_from("I", info, _TCPI_SEGS_OUT)
    (payload,) = struct.unpack_from("Q", info, _TCPI_BYTES_SENT)
    return Sent(port, segments, payload, received(right) - before)


def received(end: End) -> int:
    """Buffers, by the interface's own counter: a large segment is one."""
    with netns.inside(end.ns), IPRoute() as socket_:
        (link,) = socket_.get_links(end.ifindex)
        return int(link.get_attr("IFLA_STATS64")["rx_packets"])


def add_link(end: End, name: str, address: str, **options: Any) -> int:
    """An interface that is up, with an IPv4 address; returns its index."""
    with netns.inside(end.ns), IPRoute() as socket_:
        socket_.link("add", ifname=name, **options)
        (index,) = socket_.link_lookup(ifname=name)
        socket_.link("set", index=index, state="up")
        socket_.addr("add", index=index, address=address, prefixlen=24)
        return int(index)


def add_address(end: End, address: str) -> None:
    with netns.inside(end.ns), IPRoute() as socket_:
        socket_.addr("add", index=end.ifindex, address=address, prefixlen=24)


def enslave(end: End, index: int, bridge: int) -> None:
    with netns.inside(end.ns), IPRoute() as socket_:
        socket_.link("set", index=index, master=bridge)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("ingress", INGRESS)
def test_veth(pair: tuple[End, End], ingress: Hook, version: int) -> None:
    left, right = pair
    with counted((left, "left", Hook.TC_INGRESS), (right, "right", ingress)) as (out, into):
        sent = transfer(left, right, right.ipv4 if version == 4 else right.ipv6)
        expected = sent.on_wire(IPV4 if version == 4 else IPV6)
        assert out(sent.port, FlowDirection.EGRESS) == expected
        assert into(sent.port, FlowDirection.INGRESS) == expected
    # Native XDP takes the sender's TSO.
    assert (sent.large < sent.segments / 4) == (ingress is Hook.TC_INGRESS)


def test_macvlan(pair: tuple[End, End]) -> None:
    left, right = pair
    add_address(left, LEFT)
    add_link(right, "stacked", RIGHT, kind="macvlan", link=right.ifindex, macvlan_mode="bridge")
    with counted((right, "stacked", Hook.TC_INGRESS), (right, "right", Hook.TC_INGRESS)) as probes:
        sent = transfer(left, right, RIGHT)
        assert [p(sent.port, FlowDirection.INGRESS) for p in probes] == 2 * [sent.on_wire()]
    assert sent.large < sent.segments / 4


@pytest.mark.slow
def test_bridge(pair: tuple[End, End]) -> None:
    left, right = pair
    add_address(left, LEFT)
    enslave(right, right.ifindex, add_link(right, "bridge", RIGHT, kind="bridge"))
    with counted((right, "bridge", Hook.TC_INGRESS), (right, "right", Hook.TC_INGRESS)) as probes:
        sent = transfer(left, right, RIGHT)
        assert [p(sent.port, FlowDirection.INGRESS) for p in probes] == 2 * [sent.on_wire()]
    assert sent.large < sent.segments / 4


@pytest.mark.slow
def test_vxlan(pair: tuple[End, End]) -> None:
    """Under the tunnel, outer and inner headers of each packet are counted."""
    left, right = pair
    outer = IPV4 + 8 + 8 + LINK  # IP, UDP, VXLAN, Ethernet
    for end, peer, address in ((left, right, LEFT), (right, left, RIGHT)):
        add_link(
            end, "tunnel", address, kind="vxlan", vxlan_id=7, vxlan_group=peer.ipv4,
            vxlan_local=end.ipv4, vxlan_port=4789, vxlan_link=end.ifindex,
        )  # fmt: skip
    with counted(
        (left, "left", Hook.TC_INGRESS),
        (right, "right", Hook.TC_INGRESS),
        (right, "tunnel", Hook.TC_INGRESS),
    ) as (out, under, inside):
        sent = transfer(left, right, RIGHT)
        assert inside(sent.port, FlowDirection.INGRESS) == sent.on_wire()
        # ARP is in the tunnel, too.
        wire = out(4789, FlowDirection.EGRESS)
        arp = wire[0] - sent.segments
        assert 0 <= arp < 10
        assert wire[1] == sent.on_wire(more=outer)[1] + arp * (LINK + outer + 28)
        assert under(4789, FlowDirection.INGRESS) == wire
    assert sent.large < sent.segments / 4


@contextmanager
def tagging(compiler: Compiler, left: End, right: End) -> Iterator[None]:
    """Packets from LEFT to RIGHT have a VLAN tag beside their buffer, as a VLAN device makes them.

    Behind the probes, `right` takes the tag off.
    """
    index = add_link(left, "source", LEFT, kind="bridge")
    with netns.inside(right.ns), IPRoute() as socket_:
        (link,) = socket_.get_links(right.ifindex)
        hardware = link.get_attr("IFLA_ADDRESS")
    with netns.inside(left.ns), IPRoute() as socket_:
        socket_.neigh("add", dst=RIGHT, lladdr=hardware, ifindex=index, state=128)
    push = PUSH.replace("TO", str(left.ifindex))
    with (
        running(compiler, push, Hook.TC_EGRESS) as pusher,
        running(compiler, POP, Hook.TC_INGRESS) as popper,
        ExitStack() as links,
    ):
        with netns.inside(left.ns):
            links.callback(os.close, link_create(pusher.fd, index, AttachType.TCX_EGRESS))
        with netns.inside(right.ns):
            links.callback(os.close, link_create(popper.fd, right.ifindex, AttachType.TCX_INGRESS))
        yield


@pytest.mark.slow
def test_a_vlan_tag_outside_of_the_buffer_is_part_of_each_packet(
    compiler: Compiler, pair: tuple[End, End]
) -> None:
    left, right = pair
    add_address(right, RIGHT)
    with (
        counted((left, "left", Hook.TC_INGRESS), (right, "right", Hook.TC_INGRESS)) as (out, into),
        tagging(compiler, left, right),
    ):
        sent = transfer(left, right, RIGHT)
        assert out(sent.port, FlowDirection.EGRESS) == sent.on_wire(more=TAG)
        assert into(sent.port, FlowDirection.INGRESS) == sent.on_wire(more=TAG)
    assert sent.large < sent.segments / 4


@contextmanager
def guest(end: End, kind: int = _TAP) -> Iterator[tuple[int, int]]:
    """A tap such as a virtual machine has, or a tun; its descriptor and index."""
    with netns.inside(end.ns):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        try:
            mode = kind | _NO_PI | _VNET_HDR
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"guest", mode))
            index = socket.if_nametoindex("guest")
            with IPRoute() as socket_:
                socket_.link("set", index=index, state="up")
            yield fd, index
        finally:
            os.close(fd)


@dataclass
class FromGuest:
    """A TCP segment as a virtual machine hands it to its host: no number of packets."""

    packets: int = 10
    size: int = 1448
    ethernet: bool = True

    @property
    def payload(self) -> int:
        return self.packets * self.size - 1000

    @property
    def headers(self) -> bytes:
        length = IPV4 + TCP_HEADER + TIMESTAMP + self.payload
        ip = IP(src=LEFT, dst=RIGHT, len=length)
        tcp = TCP(dport=9, options=[("Timestamp", (1, 2)), ("NOP", None), ("NOP", None)])
        link = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff")
        return bytes(link / ip / tcp if self.ethernet else ip / tcp)

    def __bytes__(self) -> bytes:
        """With the header of virtio before it."""
        length = len(self.headers)
        start = length - TCP_HEADER - TIMESTAMP
        virtio = struct.pack(
            "BBHHHH", _NEEDS_CSUM, _GSO_TCPV4, length, self.size, start, _CHECKSUM_AT
        )
        return virtio + self.headers + bytes(self.payload)

    @property
    def on_wire(self) -> Counts:
        return self.packets, self.payload + self.packets * len(self.headers)


@pytest.mark.parametrize("kind", [_TAP, _TUN])
def test_segments_that_a_program_writes_to_its_interface(pair: tuple[End, End], kind: int) -> None:
    """A tun has no Ethernet header."""
    left, _ = pair
    segment = FromGuest(ethernet=kind == _TAP)
    with guest(left, kind) as (fd, _), counted((left, "guest", Hook.TC_INGRESS)) as (probe,):
        os.write(fd, bytes(segment))
        time.sleep(0.1)
        assert probe(9, FlowDirection.INGRESS) == segment.on_wire


@pytest.mark.parametrize("ingress", INGRESS)
def test_what_a_virtual_machine_sends_through_a_bridge(
    pair: tuple[End, End], ingress: Hook
) -> None:
    """Its segments have no number of packets, on none of the interfaces that they pass."""
    left, right = pair
    segments, segment = 20, FromGuest()
    with guest(left) as (fd, index):
        bridge = add_link(left, "bridge", "10.97.0.1", kind="bridge")
        for port in (left.ifindex, index):
            enslave(left, port, bridge)
        with counted(
            (left, "guest", Hook.TC_INGRESS), (left, "left", Hook.TC_INGRESS),
            (right, "right", ingress),
        ) as (tap, out, into):  # fmt: skip
            for _ in range(segments):
                os.write(fd, bytes(segment))
            time.sleep(0.2)
            packets, bytes_ = segment.on_wire
            expected = segments * packets, segments * bytes_
            assert tap(9, FlowDirection.INGRESS) == expected
            assert out(9, FlowDirection.EGRESS) == expected
            assert into(9, FlowDirection.INGRESS) == expected


@pytest.mark.parametrize("ingress", INGRESS)
def test_datagrams_that_the_application_has_the_kernel_cut(
    pair: tuple[End, End], ingress: Hook
) -> None:
    """UDP_SEGMENT, as QUIC servers send."""
    left, right = pair
    calls, datagrams, size = 20, 30, 1200
    with counted((left, "left", Hook.TC_INGRESS), (right, "right", ingress)) as (out, into):
        with netns.inside(right.ns):
            inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            inbox.bind((right.ipv4, 0))
        with netns.inside(left.ns):
            outbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inbox, outbox:
            port = inbox.getsockname()[1]
            outbox.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
            for _ in range(calls):
                outbox.sendto(bytes(datagrams * size), (right.ipv4, port))
            time.sleep(0.2)
        expected = calls * datagrams, calls * datagrams * (LINK + IPV4 + 8 + size)
        assert out(port, FlowDirection.EGRESS) == expected
        assert into(port, FlowDirection.INGRESS) == expected
