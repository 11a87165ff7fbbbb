"""The lab's network: client - r1 - ... - rN - server, one veth a link, with a bottleneck.

Link i (0 at the client) is 10.94.i.0/24 and fd94:0:0:i::/64; its left end is host 1, its right
end host 2. Interfaces are `eth0` on client and server, `left` and `right` on routers.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.lab import netns
from bpf.errors import KernelError

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute

CLIENT = "client"
SERVER = "server"
HOST_INTERFACE = "eth0"
MAX_ROUTERS = 30
"""The hop limit that path tracing looks at."""

BOTTLENECK_BITS = 20_000_000
"""Rate of the bottleneck, bit/s, from client to server."""
BOTTLENECK_SECONDS = 0.2
"""Delay of its full queue."""
_BOTTLENECK_BURST = 4096

_ROUTER = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
_NO_ICMP_LIMITS = {
    "net/ipv4/icmp_ratelimit": "0",
    "net/ipv4/icmp_msgs_per_sec": "1000000",
    "net/ipv4/icmp_msgs_burst": "100000",
    "net/ipv6/icmp/ratelimit": "0",
}
_HOST = {
    # A loss-based control fills the bottleneck's queue, which the default here may avoid.
    "net/ipv4/tcp_congestion_control": "reno",
}


def names(routers: int) -> tuple[str, ...]:
    """Every node from client to server."""
    return (CLIENT, *(f"r{i}" for i in range(1, routers + 1)), SERVER)


def ipv4(link: int, host: int) -> str:
    """Address of end `host` (1 left, 2 right) of `link`."""
    return f"10.94.{link}.{host}"


def ipv6(link: int, host: int) -> str:
    """Address of end `host` (1 left, 2 right) of `link`."""
    return f"fd94:0:0:{link}::{host}"


def bottleneck(routers: int) -> str:
    """The router whose `right` interface is the bottleneck."""
    return f"r{min(3, routers)}"


async def build(routers: int) -> dict[str, int]:
    """Make the network; returns a descriptor of each node's namespace.

    Raises OSError and KernelError. What was made until then ends with the process.
    """
    nodes = names(routers)
    spaces = {name: netns.fresh() for name in nodes}
    for name, ns in spaces.items():
        role = _HOST if name in (CLIENT, SERVER) else _ROUTER
        netns.write_sysctls(ns, role | _NO_ICMP_LIMITS)
    hosts = {name: await netns.open_host(ns) for name, ns in spaces.items()}
    with _asking_for("veth links"):
        for left, right in itertools.pairwise(nodes):
            near = HOST_INTERFACE if left == CLIENT else "right"
            far = HOST_INTERFACE if right == SERVER else "left"
            await netns.add_veth(hosts[left], near, spaces[right], far)
    with _asking_for("IPv4 and IPv6 addresses and routes"):
        await asyncio.gather(
            *(_configure(hosts[name], spaces[name], i, routers) for i, name in enumerate(nodes))
        )
    narrow = bottleneck(routers)
    with _asking_for("a bottleneck (qdisc tbf)"):
        await hosts[narrow].tc(
            "add",
            "tbf",
            index=netns.ifindex(spaces[narrow], "right"),
            rate=BOTTLENECK_BITS // 8,
            latency=f"{BOTTLENECK_SECONDS * 1000:.0f}ms",
            burst=_BOTTLENECK_BURST,
        )
    for host in hosts.values():
        host.close()
    return spaces


@contextmanager
def _asking_for(what: str) -> Iterator[None]:
    # Imported here, as in netns: the main process needs only the plan, not netlink.
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise KernelError(f"the kernel refuses {what}: {os.strerror(error.code)}") from None


async def _configure(host: AsyncIPRoute, ns: int, node: int, routers: int) -> None:
    """Addresses and routes of node number `node`: default to the server, prefixes to the client."""
    last = routers + 1
    if node > 0:
        name = HOST_INTERFACE if node == last else "left"
        link = node - 1
        await netns.bring_up(host, netns.ifindex(ns, name), ipv4(link, 2), ipv6(link, 2))
    if node < last:
        name = HOST_INTERFACE if node == 0 else "right"
        await netns.bring_up(host, netns.ifindex(ns, name), ipv4(node, 1), ipv6(node, 1))
        await _default(host, ipv4(node, 2), ipv6(node, 2))
        for link in range(node - 1):
            await host.route("add", dst=f"10.94.{link}.0/24", gateway=ipv4(node - 1, 1))
            await host.route("add", dst=f"fd94:0:0:{link}::/64", gateway=ipv6(node - 1, 1))
    else:
        await _default(host, ipv4(routers, 1), ipv6(routers, 1))


async def _default(host: AsyncIPRoute, gateway4: str, gateway6: str) -> None:
    await host.route("add", dst="default", family=socket.AF_INET, gateway=gateway4)
    await host.route("add", dst="default", family=socket.AF_INET6, gateway=gateway6)
