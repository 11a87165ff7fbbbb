"""Real sockets for tests, and their tuples."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np

from bpf.sockets.diag import TUPLE

SO_COOKIE = 57
End = tuple[str, int]
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def loopback_up() -> None:
    """Set loopback of the thread's network namespace up; ::1 has its address at once."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("=16sh14x", b"lo", _IFF_UP))


def ip(*lines: str) -> None:
    """Run commands of `ip` in the thread's namespace."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def cookie(sock: socket.socket) -> int:
    """Return the kernel's number of a socket."""
    found: int = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
    return found


def tuples(*rows: tuple[int, End, End]) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """TUPLE rows of (protocol, near end, far end), each end an address and a port."""
    made = np.zeros(len(rows), TUPLE)
    for row, (protocol, near, far) in zip(made, rows, strict=True):
        for side, (text, port) in (("near", near), ("far", far)):
            address = ipaddress.ip_address(text)
            row[side][: len(address.packed)] = list(address.packed)
            row[f"{side}_port"] = port
            row["version"] = address.version
        row["protocol"] = protocol
    return made


def ends(row: Any) -> tuple[int, End, End]:
    """Return (protocol, near end, far end) of a row of TUPLE."""
    size = 4 if row["version"] == 4 else 16
    near, far = (
        (str(ipaddress.ip_address(row[side][:size].tobytes())), int(row[f"{side}_port"]))
        for side in ("near", "far")
    )
    return int(row["protocol"]), near, far


def of(protocol: int, near: socket.socket, far: Sequence[Any] | None = None) -> Any:
    """The TUPLE row (1,) of a socket, with its peer or `far` as the far end."""
    other = far or near.getpeername()
    return tuples((protocol, near.getsockname()[:2], (other[0], other[1])))
