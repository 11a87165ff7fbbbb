"""A pair of network namespaces joined by a veth."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

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
        ends = [End(*each) for each in zip(spaces, names, (0, 0), ipv4, ipv6, strict=True)]
        yield join(*ends, mtu=mtu)


def join(*ends: End, mtu: int = MTU) -> tuple[End, End]:
    """Join two namespaces by a veth, also by a new one of the same names; raises OSError."""

    async def make() -> None:
        hosts = [await open_host(end.ns) for end in ends]
        await add_veth(hosts[0], ends[0].ifname, ends[1].ns, ends[1].ifname, mtu)
        for host, end in zip(hosts, ends, strict=True):
            await bring_up(host, ifindex(end.ns, end.ifname), end.ipv4, end.ipv6)
        for host, end in zip(hosts, ends, strict=True):
            await wait_until_running(host, ifindex(end.ns, end.ifname))
            host.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, make()).result()
    left, right = (replace(end, ifindex=ifindex(end.ns, end.ifname)) for end in ends)
    return left, right
