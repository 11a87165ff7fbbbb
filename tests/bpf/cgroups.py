"""Folders of cgroup2 for a test, and processes in them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.attach.interface import cgroup2
from bpf.errors import KernelError
from tests.support.waiting import wait_for


@contextlib.contextmanager
def cgroup(above: Path | None = None) -> Iterator[Path]:
    """A new folder, removed in the end; skips the test on a host without cgroup2."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="probedeck-test-", dir=above or cgroup2()))
    except KernelError as error:
        pytest.skip(str(error))
    try:
        yield folder
    finally:
        # A test that failed may have left a process; a killed one leaves the folder a little later.
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait_for(lambda: "populated 0" in (folder / "cgroup.events").read_text())
        folder.rmdir()


@contextlib.contextmanager
def python_in(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process of a cgroup; killed where the block leaves it running."""

    def enter() -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-I", "-S", "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, preexec_fn=enter) as process:
        try:
            yield process
        finally:
            process.kill()
