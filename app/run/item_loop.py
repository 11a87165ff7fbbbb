"""The main thread of a run without a console: it takes items from a queue until the run ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from app.run.start import start
from bpf.errors import ProbedeckError
from probes.control_plane import ControlPlane
from probes.snapshot import Item, Snapshot

if TYPE_CHECKING:
    from app.outputs.owners.owner_join import ItemStream
    from app.run.spec import RunSpec
    from app.run.totals import Totals
    from probes.control.controller import Controller
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


_BLOCKED_S = 10
"""Seconds after a signal in which a start may still come to its end."""


class StartInterrupt(KeyboardInterrupt):
    """A signal during the start of a run. Not KeyboardInterrupt itself: if that passes an exec(),
    though it is caught, Python ends the process by SIGINT."""


class ItemLoop:
    """Takes the items of a control plane until `stop`, a signal, a time, or the plane's failure."""

    def __init__(self, plane: ControlPlane, stream: ItemStream | None = None) -> None:
        """The items come in the order of `stream`, if there is one."""
        self._plane = plane
        self._mailbox = Mailbox()
        self._deadline = float("inf")
        self.failures: list[ProbedeckError] = []
        """The plane's, once for each item since then."""
        self._starting = False
        on_signals(self._end)
        if stream is not None:
            self._mailbox.follow(plane, stream)
        else:
            plane.listen(self._mailbox.put)
        plane.listen(self._hear)

    def _hear(self, _: Item) -> None:
        if failure := self._plane.failure():
            self.failures.append(failure)
            self.stop()

    def stop(self) -> None:
        """End the loop; any thread and the handler of a signal may call this."""
        self._mailbox.stop()

    def _end(self) -> None:
        """End the loop, and interrupt a start. If that is blocked in C, as by a dead name server,
        SIGALRM ends it soon."""
        self.stop()
        if self._starting:
            signal.alarm(_BLOCKED_S)
            raise StartInterrupt

    @property
    def stopped(self) -> bool:
        return self._mailbox.stopped

    @property
    def ended(self) -> bool:
        return self.stopped or time.monotonic() >= self._deadline

    def items(self, seconds: float = float("inf")) -> Iterator[Item]:
        """Yield items until the loop ends, for at most so many seconds."""
        return self._mailbox.until_stopped(min(self._deadline, time.monotonic() + seconds))

    def rest(self) -> Iterator[Item]:
        """Yield the items that are left after the end."""
        return self._mailbox.rest()

    @contextmanager
    def running(self, controller: Controller, spec: RunSpec, totals: Totals) -> Iterator[ExitStack]:
        """Start a run on a controller, and close the controller in the end.

        `totals` gets the state of its paths. The stack ends before the controller. Raises
        ProbedeckError.
        """

        def beside_over() -> None:
            """Stop one window later, unless the run has a duration."""
            if spec.options.duration is None:
                time.sleep(spec.options.flow.interval)
                self.stop()

        with ExitStack() as stack:
            stack.callback(controller.close)
            stack.callback(lambda: totals.note(controller.traced()))
            stack.callback(self._mailbox.let_all_in)
            self._starting = True
            try:
                with suppress(StartInterrupt):
                    start(controller, spec, stack, over=beside_over)
            finally:
                self._starting = False
                signal.alarm(0)
            if spec.options.duration is not None:
                self._deadline = time.monotonic() + spec.options.duration
            yield stack


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` for each signal that ends a run."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup(1) ignores SIGHUP, so that a run outlives its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stop())
