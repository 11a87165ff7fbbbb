"""A program that a run of probedeck starts, and ends with."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread

from bpf.errors import UsageError

_BY_ITSELF_S = 0.5
"""To end before it is told to: a key such as ctrl+c reaches it, too."""
_PATIENCE_S = 5.0
"""For one that was told to."""


class ChildProcess:
    """Has this process's standard streams, namespaces and rights."""

    def __init__(self, arguments: Sequence[str], *, stdout: int | None = None) -> None:
        """`stdout` is a descriptor in place of standard output."""
        self._arguments = arguments
        self._stdout = stdout
        self.code = 0
        """What it ended with; 128 + n where signal n ended it."""

    @contextlib.contextmanager
    def running(self, ended: Callable[[], None]) -> Iterator[None]:
        """Start it; `ended` is called by another thread when it has ended.

        Where the block is left before, it is told to end by SIGTERM, and killed where it does not.
        Raises UsageError where it can't be started.
        """
        try:
            process = subprocess.Popen(self._arguments, stdout=self._stdout)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"cannot run {self._arguments[0]}: {reason}") from None
        over = Event()

        def wait() -> None:
            process.wait()
            over.set()
            ended()

        thread = Thread(target=wait, name="program", daemon=True)
        thread.start()
        try:
            yield
        finally:
            if not over.wait(_BY_ITSELF_S):
                process.terminate()
            if not over.wait(_PATIENCE_S):
                process.kill()
            thread.join()
            code = process.returncode
            self.code = code if code >= 0 else 128 - code
