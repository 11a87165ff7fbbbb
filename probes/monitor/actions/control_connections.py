"""Connections by which operators reach this host; no action drops their packets.

They are the TCP connections of this process (REST, consoles, outputs), of its ancestors (the ssh
session that it was started in), and of every ssh daemon. Kernel 5.6 duplicates descriptors of other
processes: pidfd_getfd(2), which needs CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bpf.machine import LIBC, checked, system_calls
from bpf.syscall import opened

_DAEMONS = ("sshd", "sshd-session", "dropbear", "mosh-server")


def control_connections() -> frozenset[bytes]:
    """Return the flow keys of all found connections, of both directions, without tunnel."""
    keys = set[bytes]()
    for pid in {*_ancestors(), *_daemons()}:
        with suppress(OSError):
            for found in _sockets(pid):
                with found:
                    keys |= _keys(found)
    return frozenset(keys)


def _ancestors() -> Iterator[int]:
    """Yield this process, its parent, and so on to the first process, which is left out."""
    pid = os.getpid()
    while pid > 1:
        yield pid
        try:
            # The name of a program may have spaces and parentheses: proc(5).
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        pid = int(text.rpartition(")")[2].split()[1])


def _daemons() -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path("/proc", name, "comm").read_text(errors="replace").strip() in _DAEMONS:
                yield int(name)


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Yield duplicates of a process's sockets. Raises OSError."""
    folder = f"/proc/{pid}/fd"
    with opened(os.pidfd_open(pid)) as process:
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if os.readlink(f"{folder}/{name}").startswith("socket:"):
                    fd = LIBC.syscall(system_calls().pidfd_getfd, process, int(name), 0)
                    yield socket.socket(fileno=checked(fd))


def _keys(found: socket.socket) -> set[bytes]:
    """Return the flow keys of a connected TCP socket, of packets in both directions."""
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return set()
    try:
        ends = [_end(*name[:2]) for name in (found.getsockname(), found.getpeername())]
    except OSError:  # it listens
        return set()
    (near, near_port), (far, far_port) = ends
    kind = bytes((socket.IPPROTO_TCP, 4 if len(near) == 4 else 6, 0, 0))
    near, far = near.ljust(16, b"\0"), far.ljust(16, b"\0")
    return {near + far + near_port + far_port + kind, far + near + far_port + near_port + kind}


def _end(host: str, port: int) -> tuple[bytes, bytes]:
    """Return address and port in network order. A mapped IPv4 address is IPv4 on the wire."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).packed, port.to_bytes(2, "big")
