"""A pair of network namespaces joined by a veth."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from app.lab.netns import (
    MTU,
    add_veth,
    bring_up,
    fresh,
    ifindex,
    open_host,
    wait_until_running,
)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a veth pair, in its own namespace."""

    ns: int
    """Descriptor of the namespace; closed when the pair ends."""
    ifname: str
    ifindex: int
    ipv4: str
    ipv6: str


@contextmanager
def veth_pair(
    names: tuple[str, str] = ("left", "right"),
    *,
    ipv4: tuple[str, str] = ("10.95.0.1", "10.95.0.2"),
    ipv6: tuple[str, str] = ("fd95::1", "fd95::2"),
    mtu: int = MTU,
) -> Iterator[tuple[End, End]]:
    """Two new namespaces joined by a veth, with addresses (/24, /64) and up; raises OSError.

    The calling thread stays where it is, and may be running an event loop.
    """
    with ExitStack() as stack:
        spaces = []
        for _ in names:
            spaces.append(fresh())
            stack.callback(os.close, spaces[-1])

        async def join() -> None:
            hosts = [await open_host(ns) for ns in spaces]
            await add_veth(hosts[0], names[0], spaces[1], names[1], mtu)
            for host, ns, name, v4, v6 in zip(hosts, spaces, names, ipv4, ipv6, strict=True):
                await bring_up(host, ifindex(ns, name), v4, v6)
            for host, ns, name in zip(hosts, spaces, names, strict=True):
                await wait_until_running(host, ifindex(ns, name))
                host.close()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, join()).result()
        left, right = (
            End(ns, name, ifindex(ns, name), v4, v6)
            for ns, name, v4, v6 in zip(spaces, names, ipv4, ipv6, strict=True)
        )
        yield left, right
