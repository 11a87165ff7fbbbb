"""A run in lines: from its start to its exit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from app.console.plain.session import HELP, PlainSession
from app.run.headless import fall_silent, say
from app.run.item_loop import ItemLoop
from app.run.spec import RunSpec
from app.run.start import new_controller
from app.run.totals import Totals
from probes.control_plane import ControlPlane
from probes.snapshot import Item

_STDIN = 0


def run(spec: RunSpec) -> None:
    """Print changes until q, a signal or the duration. Raises ProbedeckError."""
    (controller, _), totals = new_controller(), Totals()
    loop, session = ItemLoop(controller), PlainSession(controller, _write)

    def take(item: Item) -> None:
        totals.add(item)
        session.state.take(item)

    with _while_read():
        _write(f"probedeck measures {spec.interface or 'probes'}; {HELP}")
        with loop.running(controller, spec, totals):
            _converse(session, loop, take, spec.options.flow.interval)
        for item in loop.rest():
            take(item)
        if totals.any or not loop.failures:
            say(str(totals))
    if loop.failures:
        raise loop.failures[0]


def connect(plane: ControlPlane, url: str) -> None:
    """Print the changes of a running controller until q or a signal, and close the connection.

    Raises ProbedeckError.
    """
    with closing(plane), _while_read():
        loop, session = ItemLoop(plane), PlainSession(plane, _write)
        _write(f"connected to {url}; {HELP}")
        _converse(session, loop, session.state.take, plane.interval)
        if loop.failures:
            raise loop.failures[0]


def _write(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _while_read() -> Iterator[None]:
    """End the block normally if the reader of standard output leaves."""
    try:
        yield
    except BrokenPipeError:
        fall_silent()


def _converse(
    session: PlainSession, loop: ItemLoop, take: Callable[[Item], None], interval: float
) -> None:
    """Take items, print changes at most every second, and answer typed lines."""
    broken: list[OSError] = []

    def answer() -> None:
        try:
            answer_typed_lines(session, loop.stop)
        except OSError as error:
            broken.append(error)
            loop.stop()

    # Daemon: nothing interrupts its read of standard input.
    threading.Thread(target=answer, name="typed lines", daemon=True).start()
    while not loop.ended:
        for item in loop.items(max(1.0, interval)):
            take(item)
        if not loop.stopped:
            session.tell()
    if broken:
        raise broken[0]


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
