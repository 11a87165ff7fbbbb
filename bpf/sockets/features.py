"""Sources of sockets that work on this host, found by trying.

A trial returns if the source works, and raises OSError if not. Nothing is attached, and sockets of
trials are bound to loopback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from contextlib import ExitStack

import numpy as np

from bpf.abi import AttachType, ProgType
from bpf.arrays import Rows
from bpf.assembler import Assembler
from bpf.errors import KernelError
from bpf.kernel_types import kernel_types
from bpf.links import iterator_open, link_create
from bpf.sockets.conntrack import IN_USE, Conntrack
from bpf.sockets.diag import TCP, TUPLE, UDP, ClosingSockets, SocketDiag
from bpf.syscall import opened, prog_load

_LOOPBACK = "127.0.0.1"
_PATIENCE_S = 0.5
"""Longest wait for the event of a closed socket; the kernel takes some 2 ms."""
_BUFFER = 1 << 20
"""Bytes: other sockets of the host may close during the trial."""


def try_questions() -> bool:
    """Ask for a TCP and a UDP socket of this process; returns whether the kernel tells cgroups."""
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server((_LOOPBACK, 0)))
        udp = stack.enter_context(_udp())
        diag = stack.enter_context(contextlib.closing(SocketDiag()))
        asked = np.concatenate([_tuple(TCP, tcp), _tuple(UDP, udp)])
        found = diag.ask(asked)
        if not found["found"].all():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return bool(found["cgroup"].any())


def try_closing() -> bool:
    """Close a socket and hear of it; returns whether other namespaces are heard, too."""
    everywhere = True
    try:
        closing = ClosingSockets(_BUFFER, everywhere=True)
    except PermissionError:
        everywhere = False
        closing = ClosingSockets(_BUFFER)
    with contextlib.closing(closing):
        with _udp() as udp:
            port = udp.getsockname()[1]
        end = time.monotonic() + _PATIENCE_S
        while (left := end - time.monotonic()) > 0:
            select.select([closing], [], [], left)
            tuples, _ = closing.read()
            if ((tuples["near_port"] == port) & (tuples["protocol"] == UDP)).any():
                return everywhere
    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def try_events() -> None:
    """Load a program of the kind that sees sockets open, and one that sees them close."""
    code = Assembler()
    code.exit(1)
    for attach_type in (AttachType.CGROUP_INET_SOCK_CREATE, AttachType.CGROUP_INET_SOCK_RELEASE):
        program = code.assemble()
        os.close(prog_load(program, ProgType.CGROUP_SOCK, "doctor", attach_type=attach_type))


def try_iterator() -> None:
    """Load an iterator of descriptors, and begin a pass."""
    try:
        number = kernel_types().function("bpf_iter_task_file")
    except KernelError as error:
        raise OSError(errno.ENOENT, error.message) from None
    code = Assembler()
    code.exit(0)
    kind = AttachType.TRACE_ITER
    program = prog_load(
        code.assemble(), ProgType.TRACING, "doctor", attach_type=kind, attach_btf_id=number
    )
    with opened(program), opened(link_create(program, 0, kind)) as link:
        os.close(iterator_open(link))


def try_translation() -> bool:
    """Ask for a connection that does not exist; returns whether the kernel tracks connections."""
    if not IN_USE.exists():
        return False
    with contextlib.closing(Conntrack()) as conntrack, _udp() as udp:
        conntrack.inner(_tuple(UDP, udp))
    return True


def _udp() -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind((_LOOPBACK, 0))
    return sock


def _tuple(protocol: int, sock: socket.socket) -> Rows[TUPLE]:
    made = np.zeros(1, TUPLE)
    address, port = sock.getsockname()
    made["near"][:, :4] = list(socket.inet_aton(address))
    made["near_port"], made["protocol"], made["version"] = port, protocol, 4
    return made
