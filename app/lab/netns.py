"""Network namespaces without names: each lives only through the threads and descriptors holding it.

Nothing is ever mounted under /run/netns, so a process that is killed leaves no namespace behind.
"""

from __future__ import annotations

import ctypes as ct
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute

_LIBC = ct.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_IFA_F_NODAD = 2
_LOOPBACK = 1
MTU = 1500
"""Bytes of a packet that a cable takes, if nothing else is said."""

_HOST = {
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv6/conf/default/mldv2_unsolicited_report_interval": "1",
}
"""Every address is usable at once, no host asks for a router that is not there, and what it says of
its multicast groups is said within milliseconds."""


def _check(result: int, call: str) -> None:
    if result < 0:
        code = ct.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def unshare_net() -> None:
    """Move the calling thread into a new, empty network namespace.

    Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    _check(_LIBC.unshare(_CLONE_NEWNET), "unshare(CLONE_NEWNET)")


def setns(fd: int) -> None:
    """Move the calling thread into the network namespace of descriptor `fd`; raises OSError."""
    _check(_LIBC.setns(fd, _CLONE_NEWNET), "setns(CLONE_NEWNET)")


def current() -> int:
    """A descriptor of the calling thread's network namespace; the caller closes it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


@contextmanager
def _excursion() -> Iterator[None]:
    """Bring the calling thread back to the namespace it is in now."""
    before = current()
    try:
        yield
    finally:
        setns(before)
        os.close(before)


@contextmanager
def inside(fd: int) -> Iterator[None]:
    """Have the calling thread in namespace `fd`, then back where it was; raises OSError.

    A socket stays in the namespace where it was opened. Never await inside: the other tasks of
    the event loop run in this thread too.
    """
    with _excursion():
        setns(fd)
        yield


def fresh() -> int:
    """A descriptor of a new, empty namespace; the calling thread stays where it is.

    The caller closes it. The namespace ends with its last descriptor, thread and socket.
    """
    with _excursion():
        unshare_net()
        return current()


def write_sysctls(ns: int, values: dict[str, str]) -> None:
    """Write `values` (path below /proc/sys to value) in namespace `ns`; raises OSError.

    A setting that the kernel does not have, or has not per namespace, is left out.
    """
    with inside(ns):
        for name, value in values.items():
            path = Path("/proc/sys", name)
            if path.exists():
                path.write_text(value, encoding="ascii")


def ifindex(ns: int, name: str) -> int:
    """Index of interface `name` in namespace `ns`; raises OSError where there is none."""
    with inside(ns):
        return socket.if_nametoindex(name)


def open_netlink(ns: int) -> AsyncIPRoute:
    """The netlink socket of namespace `ns`, for the running event loop; the caller closes it."""
    # Imported here: pyroute2 takes 0.1 s, and most users of this module need no netlink.
    from pyroute2 import AsyncIPRoute

    with inside(ns):
        plain = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)
    return AsyncIPRoute(fileno=plain.detach())


async def open_host(ns: int) -> AsyncIPRoute:
    """Prepare the new namespace `ns` as a host with `lo`; returns its netlink socket, to close."""
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
