"""The kernel's route to an address, and interfaces on top of each other."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.lab.netns import inside, open_netlink
from bpf.attach import rtnetlink
from bpf.attach.rtnetlink import RouteType
from tests.support.veth import End


def change(ns: int, of: str, *words: Any, **values: Any) -> None:
    """Change interfaces or routes by netlink, as an administrator would."""

    async def ask() -> None:
        netlink = open_netlink(ns)
        await getattr(netlink, of)(*words, **values)
        netlink.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, ask()).result()


def test_the_network_of_an_address_is_the_prefix_of_its_route(pair: tuple[End, End]) -> None:
    left, right = pair
    with inside(left.ns):
        prefix, near = rtnetlink.network(right.ipv4)
        assert (prefix.rpartition(".")[0], near) == (right.ipv4.rpartition(".")[0], True)
        with pytest.raises(OSError, match="unreachable"):
            rtnetlink.network("192.0.2.1")
    change(left.ns, "route", "add", dst="192.0.2.0/25", gateway=right.ipv4)
    with inside(left.ns):
        assert rtnetlink.network("192.0.2.1") == ("192.0.2.0/25", False)
    change(left.ns, "route", "del", dst="192.0.2.0/25", gateway=right.ipv4)


def test_a_route_has_a_type_and_an_interface(pair: tuple[End, End]) -> None:
    left, right = pair
    with inside(left.ns):
        for to in (right.ipv4, right.ipv6):
            assert rtnetlink.lookup(to) == rtnetlink.Route(RouteType.UNICAST, left.ifindex)
        for to in (left.ipv4, left.ipv6, "127.0.0.1"):
            assert rtnetlink.lookup(to).type == RouteType.LOCAL
        network = left.ipv4.rpartition(".")[0]
        assert rtnetlink.lookup(f"{network}.255").type == RouteType.BROADCAST
        for to in ("192.0.2.1", "2001:db8::1"):
            with pytest.raises(OSError, match="unreachable"):
                rtnetlink.lookup(to)


def test_packets_of_a_route_pass_lower_interfaces_and_ports(pair: tuple[End, End]) -> None:
    """macvlan on a veth, and the veth as a port of a bridge; never the other end of a veth."""
    left, _ = pair
    with inside(left.ns):
        change(left.ns, "link", "add", ifname="br", kind="bridge")
        bridge = socket.if_nametoindex("br")
        assert not rtnetlink.passes(bridge, left.ifindex)
        change(left.ns, "link", "set", index=left.ifindex, master=bridge)
        assert rtnetlink.passes(bridge, left.ifindex)
        change(left.ns, "link", "set", index=left.ifindex, master=0)
        change(left.ns, "link", "add", ifname="mac", kind="macvlan", link=left.ifindex)
        upper = socket.if_nametoindex("mac")
        assert rtnetlink.passes(upper, left.ifindex)
        assert not rtnetlink.passes(left.ifindex, upper)
        loopback = socket.if_nametoindex("lo")
        assert not rtnetlink.passes(left.ifindex, loopback)
        change(left.ns, "link", "add", ifname="one", kind="veth", peer={"ifname": "two"})
        assert not rtnetlink.passes(socket.if_nametoindex("one"), socket.if_nametoindex("two"))
        assert not rtnetlink.passes(10_000, loopback)
