"""A run in lines: from its start to its exit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from app.console.plain.session import HELP, PlainSession
from app.run.headless import fall_silent, on_signals, say
from app.run.mailbox import Mailbox
from app.run.spec import RunSpec
from app.run.start import start
from app.run.totals import Totals
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.snapshot import Item

_STDIN = 0


def run(spec: RunSpec) -> None:
    """Print changes until q, a signal or the duration. Raises ProbedeckError."""
    try:
        _run(spec)
    except BrokenPipeError:
        # The reader of standard output has left: a normal end.
        fall_silent()


def _run(spec: RunSpec) -> None:
    mailbox, totals, controller = Mailbox(), Totals(), Controller()
    failures: list[ProbedeckError] = []
    broken: list[OSError] = []
    on_signals(mailbox.stop)

    def write(line: str) -> None:
        print(line, flush=True)

    def listener(item: Item) -> None:
        mailbox.put(item)
        if failure := controller.failure():
            failures.append(failure)
            mailbox.stop()

    def take(item: Item) -> None:
        totals.add(item)
        session.state.take(item)

    def beside_over() -> None:
        if spec.duration is None:
            time.sleep(spec.interval)
            mailbox.stop()

    def answer() -> None:
        try:
            answer_typed_lines(session, mailbox.stop)
        except OSError as error:
            broken.append(error)
            mailbox.stop()

    session = PlainSession(controller, write)
    controller.listen(listener)
    with ExitStack() as stack:
        stack.callback(controller.close)
        stack.callback(lambda: totals.note(controller.traced()))
        stack.callback(mailbox.let_all_in)
        write(f"probedeck measures {spec.interface or 'probes'}; {HELP}")
        start(controller, spec, stack, over=beside_over)
        # Daemon: nothing interrupts its read of standard input.
        threading.Thread(target=answer, name="typed lines", daemon=True).start()
        period = max(1.0, spec.interval)
        deadline = time.monotonic() + (spec.duration or float("inf"))
        while not mailbox.stopped and (now := time.monotonic()) < deadline:
            for item in mailbox.until_stopped(min(deadline, now + period)):
                take(item)
            if not mailbox.stopped:
                session.tell()
    for item in mailbox.rest():
        take(item)
    if broken:
        raise broken[0]
    if totals.any or not failures:
        say(str(totals))
    if failures:
        raise failures[0]


def answer_typed_lines(
    session: PlainSession, stop: Callable[[], None], descriptor: int = _STDIN
) -> None:
    """Answer the lines of a descriptor until q, or until its end; q stops the run.

    At a terminal its end stops the run, too: the user typed ctrl+d.
    """
    typed_by_user = os.isatty(descriptor)
    for line in _typed(descriptor):
        if not session.answer(line):
            stop()
            return
    if typed_by_user:
        stop()


def _typed(descriptor: int) -> Iterator[str]:
    """Yield lines until the end of input.

    By read(2): a thread that waits in `sys.stdin` makes Python fail when it exits.
    """
    rest = b""
    with suppress(OSError):
        while data := os.read(descriptor, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
