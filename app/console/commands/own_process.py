"""A program of the user's: with the user's rights, a clean environment, and limits."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.files import environment_of, invoker, rights_of
from bpf.errors import UsageError, current

MOST_BYTES = 1 << 20
SECONDS = 60.0
_LOOK_S = 0.25
"""Seconds between two checks of the time, while the program writes nothing."""


def run(words: Sequence[str], heard: Callable[[bytes], object]) -> str:
    """Run a program; return in words how it ended. Raises UsageError if it does not start.

    `heard` receives its output and errors. The end kills its process group, and so does the
    cancellation of this thread's work.
    """
    who = invoker()
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            bufsize=0, start_new_session=True, env=environment_of(who), **rights_of(who),
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{words[0]}: {error.strerror}") from None

    def kill() -> None:
        # Until wait() below the number is taken, also after the program's end.
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    cut = ""
    try:
        with current().on_cancel(kill):
            cut = _hear(process, heard)
            kill()
    finally:
        kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # it may wait for a disk
        assert process.stdout is not None
        process.stdout.close()
    current().check()
    code = process.returncode
    if code is None:
        return cut or "it does not end"
    return cut or (f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}")


def _hear(process: subprocess.Popen[bytes], heard: Callable[[bytes], object]) -> str:
    """Pass on the output until the program ends; return why it must end, or an empty text."""
    assert process.stdout is not None
    output, end = process.stdout.fileno(), os.pidfd_open(process.pid)
    left, deadline, cancel = MOST_BYTES, time.monotonic() + SECONDS, current()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while not cancel.asked:
                if (time_left := deadline - time.monotonic()) <= 0:
                    return f"ended after {SECONDS:g} s"
                ready = [key.fd for key, _ in selector.select(min(time_left, _LOOK_S))]
                if output in ready:
                    part = os.read(output, min(left, 1 << 16))
                    if not part:
                        selector.unregister(output)
                    elif not (left := left - len(part)):
                        heard(part)
                        return f"ended after {MOST_BYTES >> 20} MiB of output"
                    else:
                        heard(part)
                elif end in ready:
                    break
    finally:
        os.close(end)
    return ""
