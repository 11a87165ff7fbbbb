"""The connections to all hosts of a fleet, in one thread with one event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from app.fleet.host_state import HostState
from app.fleet.hosts import FleetHost
from probes.snapshot import Item

HubListener = Callable[[str, Item], None]
"""Receives the name of a host, and an item that it published."""
TOP = 500
"""Flows of a window that a host sends, the largest ones; `Snapshot.rest` counts the others."""


class Hub:
    """Follows the controllers of a fleet.

    Each host connects, streams and is retried on its own: none waits for another. The hub keeps
    the state of each host, and no windows.
    """

    def __init__(self, hosts: Sequence[FleetHost], *, top: int = TOP) -> None:
        """Raises UsageError for an impossible address, token or certificate of a host."""
        self.hosts = tuple(hosts)
        self._top = top
        self._listeners: tuple[HubListener, ...] = ()
        self._states = {
            host.name: HostState(host.name, host.labels, host.remote.url) for host in hosts
        }

    def listen(self, listener: HubListener) -> None:
        """Call `listener` with each item of each host, in the hub's thread. It must not wait."""
        self._listeners = (*self._listeners, listener)

    def states(self) -> tuple[HostState, ...]:
        """Return the state of each host now, in the order of `hosts`; from any thread."""
        return tuple(self._states.values())

    def state(self, name: str) -> HostState:
        """Return the state of one host. Raises KeyError for an unknown name."""
        return self._states[name]

    def start(self) -> None:
        """Connect to every host; returns at once."""

    def close(self) -> None:
        """End every connection; the hosts go on measuring."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
