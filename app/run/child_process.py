"""The program of `probedeck trace -- PROGRAM`."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread

from bpf.errors import ProbedeckError

_BY_ITSELF_S = 0.5
"""Time to end before SIGTERM: a ctrl+c reaches the child, too."""
_PATIENCE_S = 5.0
"""Time to end after SIGTERM."""


class ProgramError(ProbedeckError):
    """A program that cannot be started. The exit codes follow shells, env and nohup."""

    def __init__(self, name: str, error: OSError | ValueError) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        super().__init__(f"cannot run {name}: {reason}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


class ChildProcess:
    """A child with the streams, namespaces and privileges of this process."""

    def __init__(self, arguments: Sequence[str], *, stdout: int | None = None) -> None:
        """`stdout` is a descriptor that replaces standard output.

        Raises ProgramError if the program does not exist or is not executable.
        """
        _check(arguments[0])
        self._arguments = arguments
        self._stdout = stdout
        self.code = 0
        """Exit code; 128 + n if signal n ended the child."""

    @contextlib.contextmanager
    def running(self, ended: Callable[[], None]) -> Iterator[None]:
        """Run the child during the block. A thread calls `ended` when the child has ended.

        Leaving the block ends the child by SIGTERM, then by SIGKILL. Raises ProgramError if the
        child does not start.
        """
        try:
            process = subprocess.Popen(self._arguments, stdout=self._stdout, env=os.environ)
        except (OSError, ValueError) as error:
            raise ProgramError(self._arguments[0], error) from None
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


def _check(name: str) -> None:
    """Raise ProgramError if execvp(3) would find no program to execute."""
    if "\0" in name:
        raise ProgramError(name, ValueError("embedded null byte"))
    if shutil.which(name):
        return
    places = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    there = any(os.path.exists(os.path.join(place, name)) for place in places)
    code = errno.EACCES if there else errno.ENOENT
    # OSError makes a FileNotFoundError or a PermissionError.
    raise ProgramError(name, OSError(code, os.strerror(code)))
