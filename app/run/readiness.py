"""Tells scripts and systemd that a run measures: a file, messages, and the priority of lines."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from app.files import as_invoker, expand, write_atomic
from bpf.errors import ProbedeckError, UsageError
from probes.snapshot import Item, Snapshot

_PRIORITIES = {"info": "<6>", "warning": "<4>", "error": "<3>"}
"""Prefixes of lines for the journal: sd-daemon(3)."""
_WINDOWS = 3
"""Windows that may be missing before systemd starts the service again."""
_NEVER = (1 << 64) - 1


def priority(severity: str) -> str:
    """Return the prefix of a line of this severity; empty unless the journal reads the lines."""
    return _PRIORITIES[severity] if _journal_reads() else ""


@cache
def _journal_reads() -> bool:
    try:
        error = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{error.st_dev}:{error.st_ino}"


class Watchdog:
    """Tells systemd that windows of flows come through to the end (sd_watchdog_enabled(3))."""

    def __init__(self, interval: float | None) -> None:
        """`interval` is the length of a window in seconds; None: there are no windows of flows."""
        limit = os.environ.get("WATCHDOG_USEC", "")
        of_this_process = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._is_on = limit.isdecimal() and of_this_process
        if not self._is_on:
            return
        # Without windows nothing shows whether the run is alive.
        least = _NEVER if interval is None else int(_WINDOWS * interval * 1e6)
        if int(limit) < least:
            _notify(f"WATCHDOG_USEC={least}")

    def take(self, item: Item) -> None:
        """Take an item that has been written."""
        if self._is_on and isinstance(item, Snapshot) and (item.probe, item.metric) == ("flow", ""):
            _notify("WATCHDOG=1")


@contextmanager
def announced(file: str) -> Iterator[None]:
    """Say that every probe runs; at the end of the block, that the run stops.

    The file has the process id, and is removed at the end; an empty name means no file. Raises
    ProbedeckError if the file cannot be written.
    """
    path = expand(file) if file else None
    if path is not None:
        try:
            write_atomic(path, [f"{os.getpid()}\n".encode()], sync=False)
        except OSError as error:
            misplaced = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
            kind = UsageError if misplaced else ProbedeckError
            raise kind(f"--ready-file {file}: {error.strerror}") from None
    _notify("READY=1")
    try:
        yield
    finally:
        _notify("STOPPING=1")
        if path is not None:
            with suppress(OSError), as_invoker():
                path.unlink()


def _notify(message: str) -> None:
    """Send a message as sd_notify(3) does; nobody may listen."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] not in ("/", "@"):
        return
    address = "\0" + name[1:] if name[0] == "@" else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(message.encode(), address)
