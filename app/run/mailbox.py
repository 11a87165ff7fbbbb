"""A queue from the probes' threads to the thread that writes tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from probes.snapshot import Item, Snapshot

if TYPE_CHECKING:
    from app.outputs.owners.owner_join import ItemStream
    from probes.control_plane import ControlPlane

_QUEUE_BYTES = 512 << 20
"""Most bytes of rows in the queue. If the disk is slower, windows last longer and lose packets."""


class Mailbox:
    """A queue of items, bounded in bytes."""

    def __init__(self, max_bytes: float = _QUEUE_BYTES) -> None:
        # The handler of a signal, which may interrupt this code, can use a SimpleQueue only.
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self.stopped = False
        self._bytes = 0
        self._max_bytes = max_bytes
        self._room = threading.Condition()

    def put(self, item: Item) -> None:
        """Add an item. A snapshot waits while the queue is full.

        An event never waits: the thread that takes items out also adds events.
        """
        self._wait(item)
        self._add(item)

    def follow(self, plane: ControlPlane, stream: ItemStream) -> None:
        """Take the items of a stream. A publisher waits after an item, as in `put` before it:
        within the stream nobody may wait."""
        stream.follow(self._add)
        plane.listen(self._wait)

    def _wait(self, item: Item) -> None:
        if _size(item):
            with self._room:
                self._room.wait_for(lambda: self._bytes < self._max_bytes)

    def _add(self, item: Item) -> None:
        with self._room:
            self._bytes += _size(item)
        self._items.put(item)

    def stop(self) -> None:
        """End `until_stopped`; the handler of a signal may call this."""
        self.stopped = True
        self._items.put(None)

    def until_stopped(self, deadline: float) -> Iterator[Item]:
        """Yield items until `stop` or the deadline, a time of time.monotonic()."""
        while not self.stopped and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                if item := self._items.get(timeout=min(left, 3600)):
                    yield self._taken(item)

    def let_all_in(self) -> None:
        """Drop the bound: `put` no longer waits."""
        with self._room:
            self._max_bytes = float("inf")
            self._room.notify_all()

    def rest(self) -> Iterator[Item]:
        """Yield the items that are in the queue now."""
        with suppress(Empty):
            while True:
                if item := self._items.get_nowait():
                    yield self._taken(item)

    def _taken(self, item: Item) -> Item:
        with self._room:
            self._bytes -= _size(item)
            self._room.notify_all()
        return item


def _size(item: Item) -> int:
    return item.rows.nbytes if isinstance(item, Snapshot) else 0
