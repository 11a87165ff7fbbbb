"""Monitoring without a screen: a controller's snapshots and events become tables."""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING

from app.exporters.backlog import NOT_WRITTEN
from app.outputs.view import is_table
from app.run.item_loop import ItemLoop
from app.run.options import OutputSpec
from app.run.readiness import Watchdog, priority
from app.run.spec import RunSpec
from app.run.start import new_controller
from app.run.table_writer import TableWriter
from app.run.totals import Totals
from app.run.unprobed import reasons
from bpf.errors import ProbedeckError
from probes.control.budget_keeper import LONGER
from probes.path.records import HOPS_TABLE
from probes.snapshot import Event, Item

if TYPE_CHECKING:
    from app.run.child_process import ChildProcess
    from app.run.report import ReportWriter

_READING_S = 0.5
"""Longest time until the probes publish what they have read."""
_MOST_REASONS = 16
"""Destinations whose missing probes are explained in the last lines; a report has all."""
_LOOK_S = 0.05
"""Time between two checks whether all answers have arrived."""


def run(
    spec: RunSpec, output: OutputSpec, child: ChildProcess | None = None,
    report: ReportWriter | None = None,
) -> None:  # fmt: skip
    """Write tables until a signal, the duration, the child's exit or a closed standard output.

    The child starts once all probes run. The report comes last. Raises ProbedeckError; tables and
    report are written all the same.
    """
    try:
        _run(spec, output, child, report)
    except BrokenPipeError:
        # The reader of standard output has left, as `head` does: a normal end.
        fall_silent()


def fall_silent() -> None:
    """Send further output to /dev/null, so that Python reports no broken pipe at exit."""
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


def _run(
    spec: RunSpec, output: OutputSpec, child: ChildProcess | None, report: ReportWriter | None
) -> None:
    totals, (controller, stream) = Totals(), new_controller()
    options = spec.options
    loop = ItemLoop(controller, stream)
    # The CPU budget may make windows longer.
    longest = options.flow.interval * (LONGER if options.budget else 1)
    watchdog = Watchdog(None if options.only else longest)
    tables = TableWriter(output, spec.probes, controller, spec.describe)
    with tables.sink:

        def write(item: Item) -> None:
            totals.add(item)
            if is_table(item, "path", HOPS_TABLE):
                # A destination may leave before the run ends, as may the interface.
                totals.note(controller.traced())
            if report:
                report.add(item)
            # An error that ends the run is printed at its end.
            if isinstance(item, Event) and (item.severity != "error" or not loop.failures):
                say(f"{item.source}: {item.text}", item.severity)
            tables.write(item)
            watchdog.take(item)

        def child_ended() -> None:
            """Stop when the last answers have arrived."""
            deadline = time.monotonic() + spec.paths.timeout + _READING_S
            while not loop.stopped and time.monotonic() < deadline:
                if sum(traced.sent for traced in controller.traced()) <= totals.probes:
                    break
                time.sleep(_LOOK_S)
            loop.stop()

        with loop.running(controller, spec, totals) as stack:
            if child:
                stack.enter_context(child.running(child_ended))
            # Called before the child is ended, so that `child_ended` does not wait for answers.
            stack.callback(loop.stop)
            for item in loop.items():
                write(item)
        for item in loop.rest():
            write(item)
    if totals.any or not loop.failures:
        why = reasons(totals.traced.values(), spec.interface)
        if report:
            report.write(totals.traced.values(), why)
        for destination, sentences in islice(why.items(), _MOST_REASONS):
            for sentence in sentences:
                say(f"{destination}: {sentence}")
        say("; ".join(filter(None, map(str, (totals, tables.filtering)))))
        for each in controller.outputs.status():
            say(str(each))
    if loop.failures:
        raise loop.failures[0]
    tables.check()
    if unwritten := [
        each.name for each in controller.outputs.status() if NOT_WRITTEN in each.undelivered
    ]:
        raise ProbedeckError(f"could not be written: output {', '.join(unwritten)}")


def say(text: str, severity: str = "info") -> None:
    """Print a line to standard error. Raises BrokenPipeError for a pipe without a reader."""
    try:
        print(f"{priority(severity)}probedeck: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        # A full disk under standard error does not end the run.
        return
