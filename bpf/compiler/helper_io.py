"""Messages between a helper and its client, see process.py.

A message is its length and JSON. File descriptors travel behind it (SCM_RIGHTS). Helpers alone load
this module: it imports nothing of probedeck.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

FDS_PER_MESSAGE = 250  # the kernel takes at most SCM_MAX_FD = 253


def connected(fd: str) -> socket.socket:
    """Return the helper's end of the socket pair, and leave a terminal's Ctrl-C to the client."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return socket.socket(fileno=int(fd))


def requests(sock: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield requests until the client goes away."""
    stream = sock.makefile("rb")
    while header := stream.read(4):
        yield json.loads(stream.read(int.from_bytes(header, "little")))


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message, and descriptors behind it."""
    parts = [fds[i : i + FDS_PER_MESSAGE] for i in range(0, len(fds), FDS_PER_MESSAGE)]
    counts = {"fds": len(fds), "fd_messages": len(parts)}
    payload = json.dumps({**message, **counts}).encode()
    sock.sendall(len(payload).to_bytes(4, "little") + payload)
    for part in parts:
        socket.send_fds(sock, [b"F"], part)
