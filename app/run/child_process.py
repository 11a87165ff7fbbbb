"""The program of `probedeck trace -- PROGRAM`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread

from bpf.errors import UsageError

_BY_ITSELF_S = 0.5
"""Time to end before SIGTERM: a ctrl+c reaches the child, too."""
_PATIENCE_S = 5.0
"""Time to end after SIGTERM."""


class ChildProcess:
    """A child with the streams, namespaces and privileges of this process."""

    def __init__(self, arguments: Sequence[str], *, stdout: int | None = None) -> None:
        """`stdout` is a descriptor that replaces standard output."""
        self._arguments = arguments
        self._stdout = stdout
        self.code = 0
        """Exit code; 128 + n if signal n ended the child."""

    @contextlib.contextmanager
    def running(self, ended: Callable[[], None]) -> Iterator[None]:
        """Run the child during the block. A thread calls `ended` when the child has ended.

        Leaving the block ends the child by SIGTERM, then by SIGKILL. Raises UsageError if the child
        does not start.
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
