"""The lab's network, made from its plan, and its cables of known delay.

A cable has a TUN device at each end, and one process that carries the packets. A packet leaves one
delay after its arrival. The median of round trips is within 0.2 ms of the plan. Single packets are
late by some milliseconds on a busy machine, so tests use medians and allow 0.5 ms. An end holds 500
unread packets and loses further ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.lab import netns
from app.lab.plan import BOTTLENECK_SECONDS, CLIENT, LIMITED_SECONDS, SERVER, LabLink, LabPlan
from bpf.errors import KernelError
from bpf.machine import wake_precisely

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFREQ = struct.Struct("16sH22x")
_PACKET_BYTES = 2048
"""More than the MTU; the kernel has cut larger segments."""
_BATCH = 64
"""Packets read from one end before the next end is read."""
_FIRST_LAG, _LAG_STEP, _MOST_LAG = 50_000, 1_000, 300_000
"""ns. A longer lag comes from a busy machine, not from the time to wake up."""


@dataclass(frozen=True, slots=True)
class Cable:
    """The descriptors of the TUN devices at the ends of a link, and its delay."""

    left: int
    right: int
    delay: float
    """Seconds, one way."""


def open_end(ns: int, name: str) -> int:
    """Create the TUN device `name` in namespace `ns`; closing it removes it. Raises OSError."""
    with netns.inside(ns):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, _IFREQ.pack(name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


def carry(cables: Sequence[Cable]) -> None:
    """Carry packets until the process is killed."""
    wake_precisely()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ways: dict[int, tuple[int, int]] = {}
    for cable in cables:
        delay = round(cable.delay * 1e9)
        ways |= {cable.left: (cable.right, delay), cable.right: (cable.left, delay)}
    number = 0
    waiting: list[tuple[int, int, int, bytes]] = []
    # The median time to wake up. A packet arrived by this time before it is read, and the process
    # must wake up by this time before the next packet is due.
    lag = _FIRST_LAG
    while True:
        wait = waiting[0][0] - lag - time.monotonic_ns() if waiting else None
        # Unlike poll and epoll, Python's select knows microseconds.
        timeout = None if wait is None else max(0.0, wait / 1e9)
        for end in select.select(ways, (), (), timeout)[0]:
            far, delay = ways[end]
            with contextlib.suppress(BlockingIOError):
                for _ in range(_BATCH):
                    packet = os.read(end, _PACKET_BYTES)
                    # The number keeps packets of one due time in order.
                    number += 1
                    due = time.monotonic_ns() - lag + delay
                    heapq.heappush(waiting, (due, number, far, packet))
        if not waiting:
            continue
        late = time.monotonic_ns() - waiting[0][0]
        # Only if the timeout woke the process, not a packet.
        if wait is not None and wait > 0 and late >= -lag:
            lag = min(max(lag + (_LAG_STEP if late > 0 else -_LAG_STEP), 0), _MOST_LAG)
        while waiting and waiting[0][0] - lag <= time.monotonic_ns():
            _, _, far, packet = heapq.heappop(waiting)
            # A packet that the device refuses is lost, as on any cable.
            with contextlib.suppress(OSError):
                os.write(far, packet)


_BOTTLENECK_BURST = 4096
_SILENT_MILLISECONDS = 86_400_000
"""More than the minute of budget of a new destination; six times this fits an int."""

_ROUTER = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # Share flows by 5-tuple.
    "net/ipv4/fib_multipath_hash_policy": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",
}
_NO_ICMP_BUDGET = {"net/ipv4/icmp_msgs_per_sec": "1000000", "net/ipv4/icmp_msgs_burst": "100000"}
# A loss-based congestion control fills the queue of the bottleneck.
_HOST = {"net/ipv4/tcp_congestion_control": "reno"}


@dataclass(frozen=True, slots=True)
class Network:
    """The descriptors that keep the lab's network alive."""

    spaces: dict[str, int]
    """Namespaces by node."""
    cables: tuple[Cable, ...]
    """Links with a delay; packets pass while `cable.carry` runs."""


def icmp_limits(plan: LabPlan, node: str, silent: bool) -> dict[str, str]:
    """Return sysctls that limit the ICMP errors of `node`, except for path MTU discovery."""
    limited = round(LIMITED_SECONDS * 1000) if node in plan.limited else 0
    milliseconds = str(_SILENT_MILLISECONDS if silent else limited)
    return {"net/ipv4/icmp_ratelimit": milliseconds, "net/ipv6/icmp/ratelimit": milliseconds}


async def build(plan: LabPlan) -> Network:
    """Create the network. Raises OSError and KernelError."""
    spaces = {name: netns.fresh() for name in plan.nodes}
    for name, ns in spaces.items():
        role = _HOST if name in (CLIENT, SERVER) else _ROUTER
        limits = icmp_limits(plan, name, name in plan.silent)
        netns.write_sysctls(ns, role | _NO_ICMP_BUDGET | limits)
    hosts = {name: await netns.open_host(ns) for name, ns in spaces.items()}
    cables = []
    with _asking_for("links"):
        for link in plan.links:
            far = (spaces[link.right], link.right_interface)
            if link.delay:
                near = open_end(spaces[link.left], link.left_interface)
                cables.append(Cable(near, open_end(*far), link.delay))
            else:
                mtu = plan.mtu if link.left == CLIENT else netns.MTU
                await netns.add_veth(hosts[link.left], link.left_interface, *far, mtu)
    with _asking_for("IPv4 and IPv6 addresses and routes"):
        await asyncio.gather(
            *(_configure(hosts[name], ns, name, plan) for name, ns in spaces.items())
        )
    for link in plan.links:
        for name, interface in (
            (link.left, link.left_interface),
            (link.right, link.right_interface),
        ):
            await netns.wait_until_running(hosts[name], netns.ifindex(spaces[name], interface))
    if plan.bottleneck_bits:
        with _asking_for("a bottleneck (qdisc tbf)"):
            await hosts[plan.bottleneck].tc(
                "add",
                "tbf",
                index=netns.ifindex(spaces[plan.bottleneck], "right"),
                rate=plan.bottleneck_bits // 8,
                latency=f"{BOTTLENECK_SECONDS * 1000:.0f}ms",
                burst=_BOTTLENECK_BURST,
            )
    for host in hosts.values():
        host.close()
    return Network(spaces, tuple(cables))


async def switch(plan: LabPlan, spaces: dict[str, int], detour: bool) -> None:
    """Route packets by the detour or the plain path without loss. Raises KernelError."""
    assert plan.detour
    node = plan.plain[plan.detour.link]
    host = netns.open_netlink(spaces[node])
    with _asking_for("another route"):
        await _default(host, "replace", plan.forward(node, detour), 2)
    host.close()


@contextmanager
def _asking_for(what: str) -> Iterator[None]:
    # Imported here, as in netns: the main process needs only the plan, not netlink.
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise KernelError(f"the kernel refuses {what}: {os.strerror(error.code)}") from None


async def _configure(host: AsyncIPRoute, ns: int, node: str, plan: LabPlan) -> None:
    """Set addresses and routes of `node`: default to the server, prefixes to the client."""
    for link in plan.links:
        for end, name, interface in (
            (1, link.left, link.left_interface),
            (2, link.right, link.right_interface),
        ):
            if name == node:
                index = netns.ifindex(ns, interface)
                await netns.bring_up(host, index, link.ipv4(end), link.ipv6(end))
    links, end = ([plan.backward(node)], 1) if node == SERVER else (plan.forward(node), 2)
    await _default(host, "add", links, end)
    if node in (CLIENT, SERVER):
        return
    back, own = plan.backward(node), plan.addresses(node)
    for link in plan.links[: back.place]:
        # Without prefsrc, IPv6 errors come from the address of the link that the packet came by.
        for dst, gateway, source in (
            (f"{link.ipv4(0)}/24", back.ipv4(1), own.ipv4),
            (f"{link.ipv6(0)}/64", back.ipv6(1), own.ipv6),
        ):
            await host.route("add", dst=dst, gateway=gateway, prefsrc=source)


async def _default(host: AsyncIPRoute, command: str, links: Sequence[LabLink], end: int) -> None:
    """Set the default route to the nodes at `end` (1 left, 2 right) of `links`."""
    for family, gateways in (
        (socket.AF_INET, [link.ipv4(end) for link in links]),
        (socket.AF_INET6, [link.ipv6(end) for link in links]),
    ):
        hops = [{"gateway": gateway} for gateway in gateways]
        await host.route(command, dst="default", family=family, multipath=hops)
