"""The outputs of a run: they share the controller's items, and fail each on its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from app.exporters.backlog import Backlog
from app.exporters.delivery import Delivery
from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.outputs.owners.owner_join import OwnerJoin
from bpf.errors import ReadOnlyError, UsageError, did_you_mean
from probes.control.controller import Controller
from probes.output_control import OutputConfig, OutputStatus
from probes.snapshot import Item

FLUSH_S = 3.0
"""Seconds that an ended output has for the records that wait."""
_MOST_ENDED = 16
"""Ended outputs whose status stays."""


class Outputs:
    """Adds, removes and watches outputs. Any thread may call a method."""

    def __init__(self, controller: Controller) -> None:
        self.ledger = Ledger()
        self._controller = controller
        self._lock = threading.Lock()
        """Keeps the order of items in `_hear`; nothing below it waits."""
        self._changing = threading.Lock()
        self._running: tuple[Delivery, ...] = ()
        self._ended: tuple[OutputStatus, ...] = ()
        self._owners = OwnerJoin(controller.looks_for_owners)
        controller.listen(self._hear)

    def add(self, config: OutputConfig) -> OutputStatus:
        if reason := self._controller.read_only:
            raise ReadOnlyError(f"read only: {reason}")
        checked = parse(config)
        with self._changing:
            taken = {each.name for each in self._running}
            if checked.name in taken:
                raise UsageError(
                    f"an output {checked.name} runs", hint="remove it, or give another name"
                )
            name = checked.name or _unused(checked.kind.scheme.replace("+", "-"), taken)
            backlog = Backlog(checked.options.queue, partial(self.ledger.not_sent, name))
            delivery = Delivery(name, checked.shown, backlog, self._controller.publish)
            named = replace(checked, name=name)
            host = ExportHost(named, self._controller, self.ledger, backlog.lost)
            delivery.start(make(host))
            self._running = (*self._running, delivery)
            self._ended = tuple(each for each in self._ended if each.name != name)
        return delivery.status()

    def remove(self, name: str) -> OutputStatus:
        if reason := self._controller.read_only:
            raise ReadOnlyError(f"read only: {reason}")
        with self._changing:
            found = {each.name: each for each in self._running}
            if name not in found:
                hint = did_you_mean(name, found) or "there are none"
                raise UsageError(f"no output {name!r}", hint=hint)
            removed = found.pop(name)
            self._running = tuple(found.values())
        return self._end([removed])[0]

    def status(self) -> tuple[OutputStatus, ...]:
        return (*self._ended, *(each.status() for each in self._running))

    def close(self) -> None:
        with self._lock:
            for item in self._owners.rest():
                self._offer(item)
        with self._changing:
            running, self._running = self._running, ()
        self._end(running)

    def _end(self, running: Iterable[Delivery]) -> tuple[OutputStatus, ...]:
        ending = tuple(running)
        for each in ending:
            each.stop()
        deadline = time.monotonic() + FLUSH_S
        for each in ending:
            each.join(deadline)
        ended = tuple(each.status() for each in ending)
        self._ended = (*self._ended, *ended)[-_MOST_ENDED:]
        return ended

    def _hear(self, item: Item) -> None:
        self.ledger.take(item)
        with self._lock:
            for each in self._owners.take(item):
                self._offer(each)

    def _offer(self, item: Item) -> None:
        for delivery in self._running:
            delivery.offer(item)


def _unused(scheme: str, taken: set[str]) -> str:
    """Return the scheme, numbered if that is taken."""
    name, number = scheme, 1
    while name in taken:
        number += 1
        name = f"{scheme}-{number}"
    return name
