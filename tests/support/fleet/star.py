"""A namespace of a console, joined to a namespace for each host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from app.lab.netns import (
    add_veth,
    bring_up,
    fresh,
    ifindex,
    open_host,
    open_netlink,
    wait_until_running,
)


@dataclass(frozen=True, slots=True)
class Star:
    """The namespaces, as descriptors that are closed when the star ends.

    Host n has interface `eth0` with address `address(n)`.
    """

    console: int
    hosts: tuple[int, ...]

    def address(self, host: int) -> str:
        return f"10.96.{host + 1}.2"

    def cut(self, host: int, *, down: bool = True) -> None:
        """Take the link of a host away, or put it back."""
        state = "down" if down else "up"
        index = ifindex(self.console, f"to{host}")

        async def change() -> None:
            netlink = open_netlink(self.console)
            await netlink.link("set", index=index, state=state)
            if not down:
                await wait_until_running(netlink, index)
            netlink.close()

        _in_thread(change)


@contextmanager
def star(count: int) -> Iterator[Star]:
    """Yield a star of `count` hosts. Raises OSError."""
    with ExitStack() as stack:
        spaces = [fresh() for _ in range(count + 1)]
        for space in spaces:
            stack.callback(os.close, space)
        console, *hosts = spaces
        made = Star(console, tuple(hosts))

        async def join() -> None:
            centre = await open_host(console)
            for number, space in enumerate(hosts):
                end = await open_host(space)
                name, at = f"to{number}", f"10.96.{number + 1}"
                await add_veth(centre, name, space, "eth0")
                near, far = ifindex(console, name), ifindex(space, "eth0")
                await bring_up(centre, near, f"{at}.1", f"fd96:{number}::1")
                await bring_up(end, far, f"{at}.2", f"fd96:{number}::2")
                await wait_until_running(centre, near)
                await wait_until_running(end, far)
                end.close()
            centre.close()

        _in_thread(join)
        yield made


def _in_thread(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(call())).result()
