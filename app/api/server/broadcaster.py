"""Snapshots and events of a controller, for subscribers of the API."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator

from app.api import wire
from app.api.models import Events, Numbered
from app.api.server.windows import TopFlows
from bpf.errors import ProbedeckError
from probes.snapshot import Event, Snapshot

_ALIVE_S = 2.0
"""Longest silence of a stream."""
_BEHIND_NS, _STALE_NS = 1_500_000_000, 5_000_000_000
"""Age of a window at which its reader is behind, and at which it is dropped for newer ones."""


class TooManyError(ProbedeckError):
    """The limit of streams is reached."""


class Subscription:
    """One reader's queue. A full queue drops its oldest records; other readers lose nothing."""

    def __init__(
        self, max_bytes: int, max_items: int, top: int | None = None, behind: int | None = None
    ) -> None:
        """Windows have the `top` largest flows; those that come late have the `behind` largest,
        and stale ones are dropped. None: windows of all flows."""
        self._top = TopFlows(top) if top else None
        self._behind = TopFlows(behind) if behind else None
        self._max_bytes = max_bytes
        self._max_items = max_items
        # Two queues: large tables must not displace events.
        self._events: deque[Event] = deque()
        self._tables: deque[Snapshot] = deque()
        self._bytes = 0
        self._lost_windows: dict[str, int] = {}
        self._lost_events = 0
        self._last_lost: dict[str, int] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._closed = False

    def offer(self, item: Snapshot | Event) -> None:
        """Queue a record, from any thread, without waiting for the reader."""
        with self._lock:
            if isinstance(item, Event):
                self._events.append(item)
                if len(self._events) > self._max_items:
                    self._events.popleft()
                    self._lost_events += 1
            else:
                self._tables.append(item)
                self._bytes += item.rows.nbytes
                while self._bytes > self._max_bytes or len(self._tables) > self._max_items:
                    self._drop()
            self._wake()

    def close(self) -> None:
        """End `records`, from any thread."""
        with self._lock:
            self._closed = True
            self._wake()

    async def records(self) -> AsyncIterator[bytes]:
        """Yield encoded records, and signs of life while the queue is empty."""
        # The first bytes tell the reader that from now on it misses nothing.
        yield wire.ALIVE
        while not self._closed:
            if (record := self._take()) is not None:
                yield wire.encode(self._cut(record))
                continue
            try:
                await asyncio.wait_for(self._ready.wait(), _ALIVE_S)
            except TimeoutError:
                yield wire.ALIVE

    async def packed(self) -> AsyncIterator[bytes]:
        """Yield `records` as one gzip stream, each record complete."""
        packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS + 16)
        async for record in self.records():
            yield packer.compress(record) + packer.flush(zlib.Z_SYNC_FLUSH)

    def _cut(self, record: wire.WireRecord) -> wire.WireRecord:
        """Cut a window, in the thread of the API: publishers do not wait."""
        late = isinstance(record, Snapshot) and _age(record) > _BEHIND_NS
        top = (late and self._behind) or self._top
        return top.of(record) if top and not isinstance(record, wire.Lost) else record

    def _take(self) -> wire.WireRecord | None:
        with self._lock:
            while self._behind and len(self._tables) > 1 and _age(self._tables[0]) > _STALE_NS:
                self._drop()
            if lost := wire.Lost(self._lost_windows, self._lost_events):
                self._lost_windows, self._lost_events = {}, 0
                return lost
            if self._events:
                return self._events.popleft()
            if self._tables:
                return self._pop()
            self._ready.clear()
            return None

    def _pop(self) -> Snapshot:
        table = self._tables.popleft()
        self._bytes -= table.rows.nbytes
        return table

    def _drop(self) -> None:
        oldest = self._pop()
        key = oldest.probe, oldest.window
        while self._tables and (self._tables[0].probe, self._tables[0].window) == key:
            self._pop()
        # More tables of this window may follow.
        if self._last_lost.get(oldest.probe) != oldest.window:
            self._last_lost[oldest.probe] = oldest.window
            self._lost_windows[oldest.probe] = self._lost_windows.get(oldest.probe, 0) + 1

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)


def _age(table: Snapshot) -> int:
    return time.monotonic_ns() - table.end_ns


class Broadcaster:
    """Publishes the records of a control plane to subscriptions, without waiting for readers."""

    def __init__(
        self,
        *,
        max_subscriptions: int = 16,
        max_bytes: int = 64 << 20,
        max_items: int = 4096,
        max_events: int = 1000,
    ) -> None:
        """`max_bytes` and `max_items` limit each reader's queue."""
        self._max_subscriptions = max_subscriptions
        self._limits = max_bytes, max_items
        self._events: deque[Event] = deque(maxlen=max_events)
        self._count = 0
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()

    def publish(self, item: Snapshot | Event) -> None:
        with self._lock:
            if isinstance(item, Event):
                self._events.append(item)
                self._count += 1
            for subscription in self._subscriptions:
                subscription.offer(item)

    def events(self, after: int) -> Events:
        with self._lock:
            kept, last = tuple(self._events), self._count
        first = last - len(kept) + 1
        numbered = (Numbered(number, event) for number, event in enumerate(kept, first))
        return Events(
            tuple(item for item in numbered if item.number > after),
            last,
            max(0, first - 1 - after),
        )

    def open(self, top: int | None = None, behind: int | None = None) -> Subscription:
        """Open a `Subscription` in the reader's event loop. Raises TooManyError."""
        with self._lock:
            if len(self._subscriptions) >= self._max_subscriptions:
                count = len(self._subscriptions)
                raise TooManyError(f"there are {count} streams, and more are not allowed")
            subscription = Subscription(*self._limits, top, behind)
            self._subscriptions = (*self._subscriptions, subscription)
            return subscription

    def leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(
                other for other in self._subscriptions if other is not subscription
            )

    def close(self) -> None:
        """End every stream; later calls of `open` fail."""
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, ()
            self._max_subscriptions = 0
        for subscription in subscriptions:
            subscription.close()
