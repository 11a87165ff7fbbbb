"""The outputs of a run. Each has a thread that delivers, tries again, and reports failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from app.exporters.backlog import FAULT, Backlog, Waiting
from app.exporters.exporter import DeliveryError, Exporter, RejectedError, words_of
from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.outputs.owners.owner_join import ItemStream
from bpf.errors import ProbedeckError, ReadOnlyError, UsageError, did_you_mean, wait_after
from probes.control.controller import Controller
from probes.reports import SOURCE, OutputConfig, OutputState, OutputStatus
from probes.snapshot import Event, Item

_CLOSE_S = 10.0
"""Longest time for an exporter to write out and disconnect."""
_TICK_S = 0.5
_LAST_TRIES = 2
"""Failed deliveries of an ended output before it gives up."""
_NO_ROOM = "the queue is full; the oldest records go"


class Delivery:
    """Delivers items by an exporter, in its own thread."""

    def __init__(
        self, name: str, shown: str, backlog: Backlog, publish: Callable[[Event], None]
    ) -> None:
        """`shown` is the URL without credentials."""
        self.name = name
        self._shown = shown
        self._backlog = backlog
        self._publish = publish
        self._exporter: Exporter
        self._state, self._since_utc_ns = OutputState.STARTING, time.time_ns()
        self._reason = ""
        self._fault = ""
        """A bug of the exporter that an item has met in `offer`."""
        self._dropped = 0
        """Dropped records that were reported."""
        self._retries = self._failures = 0
        """Retries since the start, and failed deliveries in a row."""
        self._ticked = 0.0
        self._refused = False
        """Whether the last delivery was refused."""
        self._thread = threading.Thread(target=self._run, name=f"output {name}", daemon=True)

    def start(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._thread.start()

    def offer(self, item: Item) -> None:
        """Add an item to the queue, if the exporter takes it. Never waits for the receiver."""
        try:
            records = self._exporter.records(item)
        except Exception as error:
            # A bug of the exporter must not reach the publisher.
            self._fault = _words(error)
            self._backlog.add_fault()
            return
        if records:
            self._backlog.put(item, records)

    def status(self) -> OutputStatus:
        counts = self._backlog.counts()
        return OutputStatus(
            self.name, self._shown, self._state, self._reason, self._since_utc_ns, counts.queued,
            counts.queued_bytes, counts.delivered, counts.undelivered, self._retries,
        )  # fmt: skip

    def stop(self) -> None:
        """Ask the thread to deliver what waits, and to end."""
        self._backlog.stop()

    def join(self, deadline: float) -> None:
        """Wait until the output has ended, or until the deadline, a time of time.monotonic().

        Records that still wait are then undelivered. The records of an unfinished item are
        undelivered, too.
        """
        self._backlog.wait_end(deadline - time.monotonic())
        stuck = self._backlog.busy
        self._backlog.end()
        self._thread.join(0 if stuck else _CLOSE_S)
        self._enter(OutputState.ENDED, self._reason)

    def _run(self) -> None:
        is_open = False
        while True:
            taken = self._backlog.first(_TICK_S if is_open else 0)
            if taken is None and self._backlog.stopping:
                break
            try:
                if not is_open:
                    self._exporter.open()
                    is_open = True
                self._deliver(taken)
            except (DeliveryError, OSError) as error:
                is_open = False
                why = error if isinstance(error, DeliveryError) else DeliveryError(_words(error))
                if taken is not None:
                    # A receiver that takes some records is slow, not away.
                    self._failures *= why.delivered <= taken.done
                    self._backlog.settle(taken, why.delivered)
                self._failures += 1
                self._retries += 1
                self._enter(OutputState.FAILING, str(why))
                if self._backlog.stopping and self._failures >= _LAST_TRIES:
                    break
                self._backlog.pause(max(wait_after(self._failures), why.wait_s))
            except Exception as error:
                self._refuse(taken, error)
                self._refused = True
                self._enter(OutputState.FAILING, _words(error))
            else:
                self._failures = 0
                # Only a delivery ends the failure of a delivery that was refused.
                self._refused = self._refused and taken is None
                if not self._refused:
                    self._judge()
        self._backlog.end()
        self._close()

    def _deliver(self, taken: Waiting | None) -> None:
        if taken is not None:
            self._exporter.deliver(taken.item, taken.done)
            self._backlog.settle(taken, taken.records)
        if (now := time.monotonic()) - self._ticked >= _TICK_S:
            self._ticked = now
            self._exporter.tick()

    def _refuse(self, taken: Waiting | None, error: Exception) -> None:
        """Count the records that no retry delivers."""
        if taken is None:
            return
        if isinstance(error, RejectedError):
            self._backlog.settle(taken, error.delivered, error.records, error.reason)
        else:
            # A bug of the exporter.
            self._backlog.settle(taken, 0, taken.left, FAULT)

    def _judge(self) -> None:
        """Enter the state after a delivery that did not fail."""
        dropped = self._backlog.dropped
        if self._fault:
            self._enter(OutputState.FAILING, self._fault)
            self._fault = ""
        elif dropped > self._dropped:
            self._enter(OutputState.FAILING, _NO_ROOM)
        elif self._reason != _NO_ROOM or not len(self._backlog):
            self._enter(OutputState.DELIVERING, "")
        self._dropped = dropped

    def _enter(self, state: OutputState, reason: str) -> None:
        before = self._state
        if before is OutputState.ENDED:
            return  # a delivery that outlasted the output
        self._reason = reason
        if state is before:
            return
        self._state, self._since_utc_ns = state, time.time_ns()
        if state is OutputState.FAILING:
            text = f"{self._shown} does not take records: {reason}"
            self._publish(Event.now("warning", SOURCE, text, self.name, "begin"))
        elif before is OutputState.FAILING:
            lost = self._backlog.counts().lost
            words = "takes records again" if state is OutputState.DELIVERING else "has ended"
            text = f"{self._shown} {words}; {lost} records are undelivered since the start"
            self._publish(Event.now("info", SOURCE, text, self.name, "end", lost, "records"))

    def _close(self) -> None:
        try:
            self._exporter.close()
        except Exception as error:
            text = f"{self._shown} did not end well: {_words(error)}"
            self._publish(Event.now("warning", SOURCE, text, self.name))


def _words(error: Exception) -> str:
    if isinstance(error, ProbedeckError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return words_of(error)
    return f"{type(error).__name__}: {error}"


FLUSH_S = 3.0
"""Seconds that an ended output has for the records that wait."""
_MOST_ENDED = 16
"""Ended outputs whose status stays."""


class Outputs:
    """Adds, removes and watches outputs. Any thread may call a method."""

    def __init__(self, controller: Controller) -> None:
        self.ledger = Ledger()
        self._controller = controller
        self._changing = threading.Lock()
        self._running: tuple[Delivery, ...] = ()
        self._ended: tuple[OutputStatus, ...] = ()
        controller.listen(self.ledger.take)
        self.stream = ItemStream(controller)
        self.stream.follow(self._offer)

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
        self.stream.finish()
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
