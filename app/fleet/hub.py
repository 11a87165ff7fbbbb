"""The connections to all hosts of a fleet, in one thread with one event loop."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from app.api.address import Access, trusted
from app.api.models import ControllerStatus
from app.fleet.host_state import HostState
from app.fleet.hosts import FleetHost
from app.fleet.link import HostLink
from bpf.errors import UsageError
from probes.snapshot import Item

HubListener = Callable[[str, Item], None]
"""Receives the name of a host, and an item that it published."""
TOP = 500
"""Flows of a window that a host sends, the largest ones; `Snapshot.rest` counts the others."""
_TICK_S = 1.0
_CONNECTS_S = 500.0
"""Hosts that are connected to per second at the start."""
_RESOLVERS = 32
"""Threads that resolve names. More than one: a name server may not answer."""


class Hub:
    """Follows the controllers of a fleet.

    Each host connects, streams and is retried on its own: none waits for another. The hub keeps
    the state of each host, and no windows. Times of items are by the clock here: where a host's
    clock is off by more than the error of the measurement, the hub subtracts the offset.
    """

    def __init__(self, hosts: Sequence[FleetHost], *, top: int = TOP) -> None:
        """Raises UsageError for an impossible address, token or certificate of a host."""
        self.hosts = tuple(hosts)
        self._listeners: tuple[HubListener, ...] = ()
        contexts: dict[str, ssl.SSLContext] = {}
        self._links: dict[str, HostLink] = {}
        for host in hosts:
            try:
                access = Access.of(host.remote)
                if access.tls and access.authorities not in contexts:
                    contexts[access.authorities] = trusted(access.authorities)
            except UsageError as error:
                raise UsageError(f"host {host.name}: {error.message}", hint=error.hint) from None
            tls = contexts[access.authorities] if access.tls else None
            self._links[host.name] = HostLink(host, access, tls, top, self._publish)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def listen(self, listener: HubListener) -> None:
        """Call `listener` with each item of each host, in the hub's thread. It must not wait."""
        self._listeners = (*self._listeners, listener)

    def states(self) -> tuple[HostState, ...]:
        """Return the state of each host now, in the order of `hosts`; from any thread."""
        return tuple(link.state for link in self._links.values())

    def state(self, name: str) -> HostState:
        """Return the state of one host. Raises KeyError for an unknown name."""
        return self._links[name].state

    def status(self, name: str) -> ControllerStatus | None:
        """Return the last status of a host, None before its first answer. Raises KeyError."""
        return self._links[name].status

    def start(self) -> None:
        """Connect to every host; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End every connection; the hosts go on measuring."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _publish(self, host: str, item: Item) -> None:
        for listener in self._listeners:
            listener(host, item)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._follow())

    async def _follow(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS, "resolve"))
        spread = len(self._links) / _CONNECTS_S
        tasks = [
            self._loop.create_task(link.run(random.uniform(0, spread)))
            for link in self._links.values()
        ]
        tasks.append(self._loop.create_task(self._tick()))
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for link in self._links.values():
                link.tick(now, now - before)
            before = now
