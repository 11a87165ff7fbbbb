"""An exporter whose receiver does what a test wants, and windows for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from app.exporters.backlog import Backlog
from app.exporters.delivery import Delivery
from app.exporters.exporter import DeliveryError, RejectedError
from probes.flow.records import FLOW
from probes.output_control import OutputStatus
from probes.snapshot import Event, Item, Snapshot
from tests.support.console.feed import window

PACKETS = 3
"""Packets of each record of `flows`."""


def flows(number: int, count: int) -> Snapshot:
    rows = np.zeros(count, FLOW)
    rows["packets"], rows["bytes"] = PACKETS, 100 * PACKETS
    rows["source_port"] = np.arange(count)
    return window(rows, number)


class Receiver:
    """Keeps the records that it takes, as pairs of a window and a row."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []
        self.alive = True
        self.takes = 1 << 30
        """Records that it takes before its connection breaks once."""
        self.refuses: frozenset[int] = frozenset()
        """Rows that it refuses."""
        self.gate = threading.Event()
        """Cleared: it takes nothing, and its peer waits."""
        self.gate.set()
        self.opened = self.ticks = self.closed = 0
        self.entered = threading.Event()
        """Set while a delivery runs."""

    def records(self, item: Item) -> int:
        return len(item.rows) if isinstance(item, Snapshot) else 0

    def open(self) -> None:
        if not self.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        self.opened += 1

    def deliver(self, item: Item, skip: int) -> None:
        assert isinstance(item, Snapshot)
        self.entered.set()
        self.gate.wait()
        for row in range(skip, len(item.rows)):
            if not self.alive:
                raise DeliveryError("connection reset", row)
            if row in self.refuses:
                raise RejectedError("this row is wrong", 1, row)
            if not self.takes:
                self.takes = 1 << 30
                raise DeliveryError("connection reset", row)
            self.takes -= 1
            self.got.append((item.window, row))

    def tick(self) -> None:
        self.ticks += 1

    def close(self) -> None:
        self.closed += 1


@contextmanager
def delivering(receiver: Receiver, queue: int = 1 << 20) -> Iterator[tuple[Delivery, list[Event]]]:
    events: list[Event] = []
    backlog = Backlog(queue)
    delivery = Delivery("main", "toy://there:1", backlog, events.append)
    delivery.start(receiver)
    try:
        yield delivery, events
    finally:
        receiver.gate.set()
        delivery.stop()
        delivery.join(time.monotonic() + 2)


def until(holds: Callable[[], object], seconds: float = 10) -> bool:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def adds_up(status: OutputStatus, offered: int) -> bool:
    return status.delivered + status.lost + status.queued == offered
