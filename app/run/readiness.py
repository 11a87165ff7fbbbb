"""Tells scripts and systemd that a run measures: a file, and messages to `$NOTIFY_SOCKET`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app.files import as_invoker, expand, write_atomic
from bpf.errors import ProbedeckError


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
            raise ProbedeckError(f"--ready-file {file}: {error.strerror}") from None
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
