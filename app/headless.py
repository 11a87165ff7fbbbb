"""Monitoring without a screen: the controller's snapshots and events go into tables."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from app.outputs import VIEWS, Sink
from bpf.attach import Hook
from probes.controller import Controller
from probes.flow import FlowFilter
from probes.snapshot import Event, Loss, LossReason, Snapshot

_QUEUE_BYTES = 512 << 20
"""Rows that may wait for a slow disk; then windows get longer, and what they can't hold is lost."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is watched, and where it goes."""

    interface: str
    interval: float
    """Seconds."""
    ingress: Hook
    capture: FlowFilter
    duration: float | None
    """Seconds; None: until stopped."""
    target: str
    """A directory, or `-`."""
    format: str
    views: tuple[str, ...]


class Mailbox:
    """Items from the probes' threads to the one that writes them, bounded in bytes."""

    def __init__(self, max_bytes: int = _QUEUE_BYTES) -> None:
        self._items: deque[Snapshot | Event] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._stopped = False
        # Reentrant, so that a signal's handler may call stop() wherever this thread is.
        self._changed = threading.Condition(threading.RLock())

    def put(self, item: Snapshot | Event) -> None:
        """Add an item; waits while there are too many bytes, unless stopped."""
        size = item.rows.nbytes if isinstance(item, Snapshot) else 0
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._max_bytes or self._stopped)
            self._items.append(item)
            self._bytes += size
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def until_stopped(self, deadline: float) -> Iterator[Snapshot | Event]:
        """Items as they come, until stop() or the deadline (of time.monotonic())."""
        while not self._stopped and (left := deadline - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._stopped, min(left, 3600))
            yield from self.rest()

    def rest(self) -> Iterator[Snapshot | Event]:
        """Items that are there now."""
        while self._items:
            with self._changed:
                item = self._items.popleft()
                if isinstance(item, Snapshot):
                    self._bytes -= item.rows.nbytes
                self._changed.notify_all()
            yield item


class Totals:
    """What is said at the end."""

    def __init__(self) -> None:
        self.windows = 0
        self.packets = 0
        self.losses: dict[LossReason, Loss] = {}

    def add(self, item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            self.windows += 1
            self.packets += int(item.rows["packets"].sum())
            for reason, loss in item.losses.items():
                self.losses[reason] = self.losses.get(reason, Loss()) + loss

    def __str__(self) -> str:
        left_out = ", ".join(
            f"{loss.packets} {reason.name.lower().replace('_', ' ')}"
            for reason, loss in sorted(self.losses.items())
        )
        lost = sum(loss.packets for reason, loss in self.losses.items() if reason.is_loss)
        return f"{self.windows} windows, {self.packets} packets in flows, {lost} lost" + (
            f" ({left_out})" if left_out else ""
        )


def run(options: Options) -> None:
    """Watch until SIGTERM, SIGINT or the duration; everything collected is written, then detached.

    Raises DeckError subclasses; what was collected before is written.
    """
    sink = Sink(options.target, options.format, [VIEWS[name] for name in options.views])
    mailbox = Mailbox()
    totals = Totals()

    def on_signal(number: int, frame: FrameType | None) -> None:
        mailbox.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)

    controller = Controller()

    def listener(item: Snapshot | Event) -> None:
        mailbox.put(item)
        if controller.failure() is not None:
            mailbox.stop()

    def write(item: Snapshot | Event) -> None:
        totals.add(item)
        if isinstance(item, Event):
            print(f"probedeck: {item.source}: {item.text}", file=sys.stderr, flush=True)
        sink.write(item)

    controller.listen(listener)
    try:
        controller.watch_flows(
            options.interface,
            interval=options.interval,
            ingress=options.ingress,
            capture=options.capture,
        )
        deadline = time.monotonic() + (options.duration or float("inf"))
        for item in mailbox.until_stopped(deadline):
            write(item)
    finally:
        failure = controller.failure()
        mailbox.stop()
        controller.close()
        try:
            for item in mailbox.rest():
                write(item)
        finally:
            sink.close()
    if failure is not None:
        raise failure
    print(f"probedeck: {totals}", file=sys.stderr)
