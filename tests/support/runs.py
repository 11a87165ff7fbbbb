"""Runs of probedeck as its users start it: processes, their descriptors and their files."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from app.cli.main import main
from app.lab import netns
from bpf.syscall import prog_fd_by_id
from tests.bpf.tools import descriptor_numbers
from tests.support.sight import alive, becomes
from tests.support.warm import WarmRun

COMMAND = (sys.executable, "-I", "-m", "app")
SHARING = (
    *(sys.executable, "-I", "-c"),
    "import runpy; from tests.support import compiling; compiling.share(); "
    "runpy.run_module('app', run_name='__main__', alter_sys=True)",
)
"""The same with the compiled sources of other tests, so often without a compile helper."""
Run = subprocess.Popen[str]
Row = Mapping[str, str]


def _start(arguments: tuple[str, ...], ns: int | None, cold: bool, **options: Any) -> Run:
    """Start it as its users do where it is to be `cold`, or with options that only exec has."""
    cold = cold or not options.keys() <= {"stdin", "stdout", "stderr", "env"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with contextlib.nullcontext() if ns is None else netns.inside(ns):
        if cold:
            return subprocess.Popen([*COMMAND, *arguments], text=True, **options)
        return WarmRun(arguments, text=True, **options)


@contextlib.contextmanager
def deck(
    *arguments: str, ns: int | None = None, cold: bool = False, **options: Any
) -> Iterator[Run]:
    """A running `probedeck`, in namespace `ns`; killed where the block leaves it running.

    Its libraries are there already, unless it is to start `cold`.
    """
    with _start(arguments, ns, cold, **options) as run:
        try:
            yield run
        finally:
            run.kill()


def deck_ends(*arguments: str, ns: int | None = None, **options: Any) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a `probedeck` that ends without a signal."""
    options = {"stdin": subprocess.DEVNULL} | options
    with deck(*arguments, ns=ns, **options) as run:
        out, err = run.communicate(timeout=60)
    return run.returncode, out, err


def deck_here(*arguments: str, **environment: str) -> tuple[object, str, str]:
    """Return the same of a command line that this process runs: one that only answers or refuses.

    `environment` is added to this process's.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [(number, signal.getsignal(number)) for number in signals]
    try:
        with (
            patch.object(sys, "argv", ["probedeck", *arguments]),
            patch.object(sys, "unraisablehook", sys.unraisablehook),
            patch.dict(os.environ, environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    for stream in out, err:
        stream.seek(0)
    return ended.value.code, out.read(), err.read()


def stop(run: Run, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    """Send a signal; exit code, standard output and standard error."""
    run.send_signal(number)
    out, err = run.communicate(timeout=30)
    return run.returncode, out, err


def rows(path: Path) -> list[Row]:
    """Of a CSV table; empty while there is none. Every row must be whole."""
    if not path.exists():
        return []
    text = ""

    def is_whole() -> bool:
        nonlocal text
        text = path.read_text()
        return text == "" or text.endswith("\n")

    # A reader may see a part of a write.
    assert becomes(is_whole)
    table: list[Row] = list(csv.DictReader(text.splitlines()))
    assert all(None not in row and None not in row.values() for row in table)
    return table


def measures(directory: Path) -> bool:
    """Whether a run has attached, and has written its first window there; waits for it."""
    return becomes(lambda: len(rows(directory / "windows.csv")) > 0, 30)


def children(pid: int) -> tuple[int, ...]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return tuple(found)


def program_ids(*pids: int) -> set[int]:
    """Ids of the eBPF programs that the processes hold."""
    return descriptor_numbers("prog_id", *pids)


def is_loaded(prog_id: int) -> bool:
    try:
        os.close(prog_fd_by_id(prog_id))
    except FileNotFoundError:
        return False
    return True


class Remains:
    """The processes and programs of a run, which must be gone after its end."""

    def __init__(self, run: Run) -> None:
        self.pids = (run.pid, *children(run.pid))
        self.programs = program_ids(*self.pids)
        assert len(self.programs) >= 6  # dispatcher and two generations for two hooks

    def assert_gone(self) -> None:
        assert becomes(lambda: not alive(self.pids))
        assert becomes(lambda: not any(map(is_loaded, self.programs)))
