"""The queue of an output: bounded in bytes, with a count for every record that was offered."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from app.outputs.view import OwnedFlows
from probes.snapshot import Item, Snapshot

_ITEM_BYTES = 1024
"""Bytes of an item beside its rows."""
FULL, ENDED, FAULT, NOT_WRITTEN = "queue full", "ended", "fault", "not written"
"""Reasons why records are undelivered; exporters give further ones."""


@dataclass(slots=True, eq=False)
class Waiting:
    """An item in the queue."""

    item: Item
    records: int
    size: int
    """Bytes."""
    done: int = 0
    """Records that are delivered or refused."""

    @property
    def left(self) -> int:
        return self.records - self.done


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Records of an output; the first three numbers add up to the offered ones."""

    delivered: int
    lost: int
    queued: int
    queued_bytes: int
    undelivered: dict[str, int]
    """By reason; `lost` is their sum."""


class Backlog:
    """Items between publishers, which never wait, and the thread that delivers them.

    If an item does not fit, the oldest items go. One thread takes items; any thread may call the
    other methods.
    """

    def __init__(
        self, most: int, unsent: Callable[[Item, int, int], None] = lambda *_: None
    ) -> None:
        """`most` are bytes. A larger item is taken if it is alone. `unsent` gets each item that
        loses records, the first of them and their number."""
        self._most = most
        self._unsent = unsent
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._busy = False
        """Whether the first item is being delivered."""
        self._delivered = 0
        self._undelivered: Counter[str] = Counter()
        self.stopping = False
        """Whether the output is to end."""
        self.over = False
        """Whether it has ended; later items are undelivered."""

    def put(self, item: Item, records: int) -> None:
        """Add an item of so many records. Never waits for the receiver."""
        added = Waiting(item, records, size_of(item))
        with self._changed:
            if self.over:
                self._lose(added, records, ENDED)
                return
            while self._bytes + added.size > self._most and len(self._queue) > self._busy:
                oldest = self._queue[self._busy]
                del self._queue[self._busy]
                self._bytes -= oldest.size
                self._lose(oldest, oldest.left, FULL)
            if self._queue and self._bytes + added.size > self._most:
                self._lose(added, records, FULL)
                return
            self._queue.append(added)
            self._bytes += added.size
            self._changed.notify_all()

    def first(self, timeout: float) -> Waiting | None:
        """Return the oldest item, which stays until `settle`; None without one in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.stopping, timeout)
            if not self._queue or self.over:
                return None
            self._busy = True
            return self._queue[0]

    def settle(self, taken: Waiting, delivered: int, refused: int = 0, reason: str = "") -> None:
        """Count records of the first item: `delivered` in all, and then `refused` ones.

        Without records left, the item leaves the queue.
        """
        with self._changed:
            self._busy = False
            if self.over:
                return  # its records count as ended
            delivered = min(max(delivered, taken.done), taken.records)
            self._delivered += delivered - taken.done
            taken.done = delivered
            if refused := min(refused, taken.left):
                self._lose(taken, refused, reason)
                taken.done += refused
            if not taken.left and self._queue and self._queue[0] is taken:
                self._queue.popleft()
                self._bytes -= taken.size

    def lost(self, records: int, reason: str) -> None:
        """Count records as undelivered that count as delivered."""
        with self._changed:
            self._delivered -= records
            self._undelivered[reason] += records

    def add_fault(self) -> None:
        """Count an item whose records an exporter could not even count."""
        with self._changed:
            self._undelivered[FAULT] += 1

    def stop(self) -> None:
        """Let `first` and `pause` return at once."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait for a time, or for `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, seconds)

    def end(self) -> None:
        """Count the waiting records, and all of an item on the way, as undelivered."""
        with self._changed:
            self.over = self.stopping = True
            for waiting in self._queue:
                self._lose(waiting, waiting.left, ENDED)
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()

    def wait_end(self, timeout: float) -> None:
        """Wait until the output has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.over, timeout)

    @property
    def dropped(self) -> int:
        """Records that found no room."""
        return self._undelivered[FULL]

    @property
    def busy(self) -> bool:
        return self._busy

    def __len__(self) -> int:
        return len(self._queue)

    def counts(self) -> RecordCounts:
        with self._changed:
            queued = sum(waiting.left for waiting in self._queue)
            lost = {reason: count for reason, count in self._undelivered.items() if count}
            return RecordCounts(self._delivered, sum(lost.values()), queued, self._bytes, lost)

    def _lose(self, waiting: Waiting, records: int, reason: str) -> None:
        self._undelivered[reason] += records
        self._unsent(waiting.item, waiting.done, records)


def size_of(item: Item) -> int:
    """Return the bytes of an item in a queue."""
    size = _ITEM_BYTES
    if isinstance(item, Snapshot):
        size += item.rows.nbytes
    if isinstance(item, OwnedFlows):
        size += sum(table.rows.nbytes for table in item.tables.values())
    return size
