"""Windows of flows that wait for their owners before they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from app.outputs.view import OwnedFlows, is_table
from probes.snapshot import REMOVED, Event, Item, Snapshot
from probes.sockets.records import OWNERSHIP_TABLE, PROBE

_MOST_WAITING = 2
"""Windows that wait. If answers take longer, the oldest is written without owners."""


def with_owners(flows: Snapshot, items: Iterable[Snapshot]) -> Snapshot:
    """Return a window of flows as OwnedFlows if `items` have all tables of its owners."""
    tables = {
        item.metric: item
        for item in items
        if item.probe == PROBE and (item.window, item.end_ns) == (flows.window, flows.end_ns)
    }
    # The table of reasons comes last.
    return OwnedFlows.of(flows, tables) if OWNERSHIP_TABLE in tables else flows


class OwnerJoin:
    """Joins each window of flows with the tables of its owners.

    Without a probe of sockets, every item passes at once. Items other than flows never wait.
    """

    def __init__(self, looks: Callable[[], bool]) -> None:
        """`looks` returns whether a probe of sockets runs now."""
        self._looks = looks
        self._expects = False
        self._waiting: dict[int, Snapshot] = {}
        """Windows of flows by number, the oldest first."""
        self._tables: dict[str, Snapshot] = {}
        """Tables of the probe of sockets that came last."""

    def take(self, item: Item) -> Iterator[Item]:
        """Yield the items to write now."""
        self._expects |= self._looks()
        if is_table(item, "flow", "") and self._expects:
            self._waiting[item.window] = item
            if len(self._waiting) > _MOST_WAITING:
                yield self._waiting.pop(next(iter(self._waiting)))
            return
        if isinstance(item, Snapshot) and item.probe == PROBE:
            self._tables[item.metric] = item
            yield item
            # Flows come behind the owners that they have: a recording is read in this order.
            if item.metric == OWNERSHIP_TABLE:
                yield from self._owned(item.window)
            return
        if isinstance(item, Event) and (item.source, item.text) == (PROBE, REMOVED):
            self._expects = False
            yield from self.rest()
        yield item

    def rest(self) -> Iterator[Item]:
        """Yield the windows that still wait."""
        waiting, self._waiting = self._waiting, {}
        yield from waiting.values()

    def _owned(self, window: int) -> Iterator[Item]:
        for number in [number for number in self._waiting if number <= window]:
            flows = self._waiting.pop(number)
            yield OwnedFlows.of(flows, self._tables) if number == window else flows


class ItemSource(Protocol):
    """A controller."""

    def looks_for_owners(self) -> bool: ...

    def listen(self, listener: Callable[[Item], None]) -> None: ...


class ItemStream:
    """The items of a controller in one order for its tables and all outputs, each window of flows
    with its owners. So a recording has the rows of the tables."""

    def __init__(self, controller: ItemSource) -> None:
        self._join = OwnerJoin(controller.looks_for_owners)
        self._takers: tuple[Callable[[Item], None], ...] = ()
        self._lock = threading.Lock()
        """Keeps the order; nothing below it waits."""
        controller.listen(self._hear)

    def follow(self, take: Callable[[Item], None]) -> None:
        """Give the items to `take`, which must not wait; any thread calls it."""
        self._takers = (*self._takers, take)

    def finish(self) -> None:
        """Give the windows that still wait: the run is over."""
        with self._lock:
            self._give(self._join.rest())

    def _hear(self, item: Item) -> None:
        with self._lock:
            self._give(self._join.take(item))

    def _give(self, items: Iterable[Item]) -> None:
        for item in items:
            for take in self._takers:
                take(item)
