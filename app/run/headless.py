"""Monitoring without a screen: the controller's snapshots and events go into tables."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from app.outputs.sink import Sink
from app.outputs.view import is_table
from app.outputs.views import VIEWS, counted
from app.run.output_spec import OutputSpec
from app.run.spec import RunSpec
from app.run.start import start
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.path.records import HOPS_TABLE, ProbeOutcome
from probes.snapshot import REMOVED, Event, Item, Loss, LossReason, Snapshot, add_losses, lost_of

if TYPE_CHECKING:
    from app.run.child_process import ChildProcess
    from probes.config.model import ProbeConfig

_QUEUE_BYTES = 512 << 20
"""Rows that may wait for a slow disk; then windows get longer, and what they can't hold is lost."""

_READING_S = 0.5
"""Within which the probes publish what they know."""
_LOOK_S = 0.05
"""How often it is looked whether all answers are in."""


class Mailbox:
    """Items from the probes' threads to the one that writes them, bounded in bytes."""

    def __init__(self, max_bytes: int = _QUEUE_BYTES) -> None:
        # Not a Condition: this queue alone may be used by a signal's handler, wherever it strikes.
        self._items: SimpleQueue[Snapshot | Event | None] = SimpleQueue()
        self._stopped = False
        self._bytes = 0
        self._max_bytes = max_bytes
        self._unbounded = False
        self._room = threading.Condition()

    def put(self, item: Snapshot | Event) -> None:
        """Add an item; waits while there are too many bytes, but not with an event.

        The thread that takes items out puts in events too: it must not wait for itself.
        """
        with self._room:
            if size := _size(item):
                self._room.wait_for(lambda: self._bytes < self._max_bytes or self._unbounded)
                self._bytes += size
        self._items.put(item)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """End `until_stopped`; may be called by a signal's handler."""
        self._stopped = True
        self._items.put(None)

    def until_stopped(self, deadline: float) -> Iterator[Snapshot | Event]:
        """Items as they come, until stop() or the deadline (of time.monotonic())."""
        while not self._stopped and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                if item := self._items.get(timeout=min(left, 3600)):
                    yield self._taken(item)

    def let_all_in(self) -> None:
        """From now on nobody waits in `put`."""
        with self._room:
            self._unbounded = True
            self._room.notify_all()

    def rest(self) -> Iterator[Snapshot | Event]:
        """Items that are there now."""
        with contextlib.suppress(Empty):
            while True:
                if item := self._items.get_nowait():
                    yield self._taken(item)

    def _taken(self, item: Snapshot | Event) -> Snapshot | Event:
        with self._room:
            self._bytes -= _size(item)
            self._room.notify_all()
        return item


def _size(item: Snapshot | Event) -> int:
    return item.rows.nbytes if isinstance(item, Snapshot) else 0


class Totals:
    """What is said at the end."""

    def __init__(self) -> None:
        self.windows = 0
        self.tables = 0
        """Windows of metrics."""
        self.packets = 0
        self.losses: dict[LossReason, Loss] = {}
        self.traces = 0
        """Windows of path tracing."""
        self.outcomes = dict.fromkeys(ProbeOutcome, 0)
        """Probes."""
        self.monitored = 0
        """Windows of the monitor."""
        self.seen = 0
        """Packets in them."""
        self.transitions = 0
        """Of its policies."""

    def add(self, item: Snapshot | Event) -> None:
        if isinstance(item, Event):
            return
        if is_table(item, "path", HOPS_TABLE):
            self.traces += 1
            for outcome, probes in enumerate(np.bincount(item.rows["outcome"]).tolist()):
                self.outcomes[ProbeOutcome(outcome)] += probes
            return
        if is_table(item, PROBE, TRIGGERS_TABLE):
            self.transitions += len(item.rows)
        elif is_table(item, PROBE, METRICS_TABLE):
            self.monitored += 1
            self.seen += int(item.rows["packets"].sum())
        elif item.is_metric:
            self.tables += 1
        elif sums := counted(item):
            self.windows += 1
            self.packets += sums[0]
        add_losses(self.losses, item.losses)

    @property
    def probes(self) -> int:
        """That came to their end."""
        return sum(self.outcomes.values())

    def __str__(self) -> str:
        left_out = ", ".join(
            f"{loss.packets} {reason.label}" for reason, loss in sorted(self.losses.items())
        )
        lost = lost_of(self.losses).packets
        parts = []
        if self.windows or not (self.tables or self.traces or self.monitored):
            parts.append(f"{self.windows} windows, {self.packets} packets in flows")
        if self.tables:
            parts.append(f"{self.tables} tables of metrics")
        if parts:
            parts.append(f"{lost} lost" + (f" ({left_out})" if left_out else ""))
        return "; ".join(filter(None, (", ".join(parts), self._monitor(), self._probes())))

    def _monitor(self) -> str:
        """Empty where there was none."""
        if not self.monitored:
            return ""
        what = f"{self.monitored} windows monitored, {self.seen} packets"
        return f"{what}, {self.transitions} transitions"

    def _probes(self) -> str:
        """Of path tracing; empty where there was none."""
        if not self.traces:
            return ""
        found = self.outcomes
        answered = found[ProbeOutcome.ANSWERED] + found[ProbeOutcome.UNREACHABLE]
        return ", ".join(
            [
                f"{self.probes} probes, {answered} answered, {found[ProbeOutcome.UNANSWERED]} lost",
                f"{found[ProbeOutcome.OVERRUN]} overrun",
                *(
                    f"{found[o]} {o.label}"
                    for o in (
                        ProbeOutcome.DROPPED,
                        ProbeOutcome.IN_FLIGHT,
                        ProbeOutcome.BEYOND_PATH,
                    )
                    if found[o]
                ),
            ]
        )


def run(spec: RunSpec, output: OutputSpec, program: ChildProcess | None = None) -> None:
    """Watch until SIGTERM, SIGINT, SIGHUP, the duration, the end of `program`, which is started
    when all measures, or of who reads standard output; all that was collected is written.

    Raises ProbedeckError subclasses; what was collected before is written then too.
    """
    try:
        _run(spec, output, program)
    except BrokenPipeError:
        # The reader of our output has left, as `head` does: an end like any other.
        fall_silent()


def fall_silent() -> None:
    """Write nothing more: Python would complain at exit about what it could not write."""
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


class TableWriter:
    """Writes a controller's items into tables, as a context manager.

    Tables that fail and recover are events of the controller, which also knows how many rows were
    lost.
    """

    def __init__(
        self, output: OutputSpec, probes: Iterable[ProbeConfig], controller: Controller
    ) -> None:
        """`probes` are those that it runs at first."""
        self._format = output.format
        self._usual = output.format or "csv"
        self._controller = controller
        self._formats = self._formats_of(probes)
        self.filtering = output.filtering()
        if words := self.filtering.words(output.views):
            print(f"probedeck: {words}", file=sys.stderr, flush=True)
        self._sink = Sink(
            output.out, self._usual, [VIEWS[name] for name in output.views],
            metrics=output.metrics, formats=self._formats, keep=self.filtering.kept,
            report=controller.publish,
        )  # fmt: skip

    def __enter__(self) -> TableWriter:
        self._sink.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._sink.__exit__(*error)

    def _formats_of(self, probes: Iterable[ProbeConfig]) -> dict[str, str]:
        return {probe.name: self._format or probe.format for probe in probes}

    def check(self) -> None:
        """Raises ProbedeckError if a table lacks rows."""
        if missing := self._sink.incomplete():
            raise ProbedeckError(f"could not be written: {', '.join(missing)}")

    def write(self, item: Item) -> None:
        """Write the rows of an item. Raises BrokenPipeError for a pipe without a reader."""
        formats = self._formats
        if isinstance(item, Snapshot) and item.is_metric and item.probe not in formats:
            # Added by the API since. One that has left again is written as everything is.
            formats.update(self._formats_of(one.config for one in self._controller.probes()))
            formats.setdefault(item.probe, self._usual)
        self._sink.write(item)
        if isinstance(item, Event) and item.text == REMOVED:
            self._sink.end_probe(item.source)
            formats.pop(item.source, None)
        self._controller.unwritten = self._sink.lost


@contextlib.contextmanager
def writing(
    output: OutputSpec, probes: Iterable[ProbeConfig], controller: Controller
) -> Iterator[None]:
    """Write tables beside something else, by a thread, until the block is left and all is written.

    Raises ProbedeckError then if rows were lost.
    """
    mailbox = Mailbox()

    def write_all() -> None:
        try:
            with tables:
                for item in mailbox.until_stopped(float("inf")):
                    tables.write(item)
                for item in mailbox.rest():
                    tables.write(item)
        finally:
            mailbox.let_all_in()

    tables = TableWriter(output, probes, controller)
    controller.listen(mailbox.put)
    writer = threading.Thread(target=write_all, name="tables")
    writer.start()
    try:
        yield
    finally:
        mailbox.stop()
        writer.join()
    tables.check()


def _run(spec: RunSpec, output: OutputSpec, program: ChildProcess | None) -> None:
    mailbox = Mailbox()
    totals = Totals()
    failures: list[ProbedeckError] = []
    controller = Controller()
    _on_signals(mailbox.stop)

    with TableWriter(output, spec.probes, controller) as tables:

        def listener(item: Item) -> None:
            mailbox.put(item)
            if failure := controller.failure():
                failures.append(failure)
                mailbox.stop()

        def write(item: Item) -> None:
            totals.add(item)
            # An error is what ends the run, and is said at its end.
            if isinstance(item, Event) and (item.severity != "error" or not failures):
                _say(f"{item.source}: {item.text}")
            tables.write(item)

        def program_ended() -> None:
            """Let the last answers come in."""
            deadline = time.monotonic() + spec.paths.timeout + _READING_S
            while not mailbox.stopped and time.monotonic() < deadline:
                if sum(traced.sent for traced in controller.traced()) <= totals.probes:
                    break
                time.sleep(_LOOK_S)
            mailbox.stop()

        def beside_over() -> None:
            """Look one window further, if nothing was said of how long."""
            if spec.duration is None:
                time.sleep(spec.interval)
                mailbox.stop()

        controller.listen(listener)
        with ExitStack() as stack:
            stack.callback(controller.close)
            stack.callback(mailbox.let_all_in)
            start(controller, spec, stack, over=beside_over)
            if program:
                stack.enter_context(program.running(program_ended))
            # Before the program is left: then nobody waits for its last answers.
            stack.callback(mailbox.stop)
            deadline = time.monotonic() + (spec.duration or float("inf"))
            for item in mailbox.until_stopped(deadline):
                write(item)
        for item in mailbox.rest():
            write(item)
    if failures:
        raise failures[0]
    _say("; ".join(filter(None, map(str, (totals, tables.filtering)))))
    tables.check()


def _say(text: str) -> None:
    """Write a line to standard error, if that is possible. Raises BrokenPipeError for a pipe."""
    try:
        print(f"probedeck: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        # The disk that the messages go to is full, too: the run goes on.
        return


def _on_signals(stop: Callable[[], None]) -> None:
    """Have the signals that end a program call `stop`."""

    def handler(number: int, frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup(1) has it ignored, so that a run outlives its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
