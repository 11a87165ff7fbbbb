"""Network namespaces without names: only threads and descriptors keep them alive.

Nothing is mounted under /run/netns, so a killed process leaves no namespace.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bpf.machine import CLONE_NEWNET, LIBC, checked, enter_network

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute

    from app.api.sockets import Listening

_IFA_F_NODAD = 2
_LOOPBACK = 1
MTU = 1500
"""Most bytes of a packet on a cable, by default."""
MAX_MTU = 65535
"""Of a veth."""
_RUNNING_SECONDS = 10.0

_HOST = {
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv6/conf/default/mldv2_unsolicited_report_interval": "1",
}
"""Addresses work at once, hosts look for no router, and report multicast groups within
milliseconds."""


def unshare_net() -> None:
    """Move the calling thread into a new network namespace. Raises OSError (EPERM)."""
    checked(LIBC.unshare(CLONE_NEWNET), "unshare(CLONE_NEWNET)")


def current() -> int:
    """Return a descriptor of the thread's network namespace; the caller closes it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


@contextmanager
def _excursion() -> Iterator[None]:
    before = current()
    try:
        yield
    finally:
        enter_network(before)
        os.close(before)


@contextmanager
def inside(fd: int) -> Iterator[None]:
    """Move the calling thread into namespace `fd` for the block. Raises OSError.

    A socket stays in the namespace of its creation. The block must not await: other tasks of the
    event loop run in this thread.
    """
    with _excursion():
        enter_network(fd)
        yield


@contextmanager
def host_listener() -> Iterator[Callable[[str], Listening]]:
    """Give a function that listens by TCP in the namespace of now, from any other one."""
    home = current()

    def listen(address: str) -> Listening:
        from app.api.sockets import tcp

        with inside(home):
            return tcp(address)

    try:
        yield listen
    finally:
        os.close(home)


def fresh() -> int:
    """Return a descriptor of a new, empty namespace; the caller closes it."""
    with _excursion():
        unshare_net()
        return current()


def write_sysctls(ns: int, values: dict[str, str]) -> None:
    """Write the known ones of `values` (path below /proc/sys to value) in `ns`. Raises OSError."""
    with inside(ns):
        for name, value in values.items():
            path = Path("/proc/sys", name)
            if path.exists():
                path.write_text(value, encoding="ascii")


def ifindex(ns: int, name: str) -> int:
    """Return the index of interface `name` in namespace `ns`. Raises OSError."""
    with inside(ns):
        return socket.if_nametoindex(name)


def open_netlink(ns: int) -> AsyncIPRoute:
    """Return a netlink socket of namespace `ns` for the event loop; the caller closes it."""
    # Imported here: pyroute2 takes 0.1 s, and most users of this module need no netlink.
    from pyroute2 import AsyncIPRoute

    with inside(ns):
        plain = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)
    return AsyncIPRoute(fileno=plain.detach())


async def open_host(ns: int) -> AsyncIPRoute:
    """Set up the new namespace `ns` as a host; return its netlink socket for closing."""
    write_sysctls(ns, _HOST)
    netlink = open_netlink(ns)
    await netlink.link("set", index=_LOOPBACK, state="up")
    return netlink


async def add_veth(
    netlink: AsyncIPRoute, name: str, peer_ns: int, peer_name: str, mtu: int = MTU
) -> None:
    """Join the namespace of `netlink` to namespace `peer_ns` by a veth; both ends are down."""
    peer = {"ifname": peer_name, "net_ns_fd": peer_ns, "mtu": mtu}
    await netlink.link("add", kind="veth", ifname=name, mtu=mtu, peer=peer)


async def bring_up(netlink: AsyncIPRoute, index: int, ipv4: str, ipv6: str) -> None:
    """Set interface `index` up, with `ipv4`/24 and `ipv6`/64 usable at once."""
    await netlink.link("set", index=index, state="up")
    await netlink.addr("add", index=index, address=ipv4, prefixlen=24)
    await netlink.addr("add", index=index, address=ipv6, prefixlen=64, flags=_IFA_F_NODAD)


async def wait_until_running(netlink: AsyncIPRoute, index: int) -> None:
    """Wait until interface `index` sends packets, once both ends of its link are up.

    The kernel activates the queue of the end that came up first some time later, in a worker
    (net/core/link_watch.c). Until then the queue drops every packet. Raises TimeoutError.
    """
    deadline = time.monotonic() + _RUNNING_SECONDS
    # The kernel knows no state of a TUN device.
    while await _operstate(netlink, index) not in ("UP", "UNKNOWN"):
        if time.monotonic() > deadline:
            raise TimeoutError("a new network interface does not start")
        await asyncio.sleep(0.001)


async def _operstate(netlink: AsyncIPRoute, index: int) -> str:
    (link,) = await netlink.link("get", index=index)
    return str(link.get_attr("IFLA_OPERSTATE"))
