"""An exporter whose receiver does what a test wants, and windows for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from app.exporters.backlog import Backlog
from app.exporters.delivery import Delivery
from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.host import ExportHost
from app.exporters.kinds import EXPORTERS, ExporterKind, UrlPlace, register
from app.exporters.options import ExporterOptions, duration, option
from probes.flow.records import FLOW
from probes.reports import OutputStatus
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


@dataclass(frozen=True, slots=True)
class ReceiverOptions(ExporterOptions):
    speed: int = option(1, "How fast.")
    active: float = option(60.0, "How long.", read=duration)
    key: str = option("", "Never shown.", secret=True)
    owners: bool = option(False, "Whether with owners.")


made: dict[str, Receiver] = {}
"""The receivers of outputs of kind KIND, by name."""


def receive(host: ExportHost) -> Receiver:
    receiver = made[host.config.name] = made.get(host.config.name, Receiver())
    return receiver


KIND = ExporterKind(
    "kept", "Keeps records.", "kept://HOST:PORT", ReceiverOptions, f"{__name__}:receive"
)


@contextmanager
def kinds() -> Iterator[None]:
    """Have the kind KIND, and one of local files, during a block."""
    local = replace(KIND, scheme="keptlocal", place=UrlPlace.PATH, local=True)
    for kind in (KIND, local):
        register(kind)
    try:
        yield
    finally:
        for kind in (KIND, local):
            del EXPORTERS[kind.scheme]
        made.clear()
