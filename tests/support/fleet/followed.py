"""A hub with everything that it publishes."""

from __future__ import annotations

import threading
from collections import Counter

from app.fleet.host_state import HostPhase
from app.fleet.hub import Hub
from probes.snapshot import Event, Item, Snapshot
from tests.support.sight import becomes


class Followed:
    """A hub, and what it publishes."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._items: list[tuple[str, Item]] = []
        self._lock = threading.Lock()
        hub.listen(self._take)

    def _take(self, host: str, item: Item) -> None:
        with self._lock:
            self._items.append((host, item))

    def items(self, host: str) -> list[Item]:
        with self._lock:
            return [item for name, item in self._items if name == host]

    def events(self, host: str) -> list[str]:
        return [item.text for item in self.items(host) if isinstance(item, Event)]

    def windows(self) -> Counter[str]:
        with self._lock:
            return Counter(name for name, item in self._items if isinstance(item, Snapshot))

    def is_in(self, phase: HostPhase, *names: str, seconds: float = 5) -> bool:
        return becomes(lambda: all(self.hub.state(n).state is phase for n in names), seconds)
