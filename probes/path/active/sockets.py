"""Sockets of one interface, with the kernel's times of the messages."""

from __future__ import annotations

import ctypes as ct
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from probes.path.slots import Destination

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
ClassicProgram = list[tuple[int, int, int, int]]
"""Instructions: code, two jumps, operand."""

_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_MOST_MESSAGES = 4096
"""That are read in one call, and errors."""
_MOST_BYTES = 2048
"""Bytes of a message that are read: routers quote at most 576 or 1280 bytes."""


class Received(NamedTuple):
    data: bytes
    sender: str
    at_ns: int
    """CLOCK_MONOTONIC."""
    ancillary: list[tuple[int, int, bytes]]


def received(opened: socket.socket, flags: int = 0) -> Iterator[Received]:
    """Yield the waiting messages of a socket with `stamp_times`."""
    for _ in range(_MOST_MESSAGES):
        try:
            data, ancillary, _, where = opened.recvmsg(_MOST_BYTES, 512, flags)
        except BlockingIOError:
            return
        except OSError:
            continue  # An error of an earlier request, reported once.
        at_ns = time.monotonic_ns()
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, ns = struct.unpack("qq", value)
                # An interruption between the two clocks makes the difference larger.
                offset_ns = min(-time.time_ns() + time.monotonic_ns() for _ in range(3))
                at_ns = min(at_ns, seconds * 10**9 + ns + offset_ns)
        sender = where[0].partition("%")[0] if where else ""
        yield Received(data, sender, at_ns, ancillary)


def stamp_times(opened: socket.socket) -> None:
    """Have the kernel tell when each message arrived.

    The kernel begins soon after the first socket asks: messages before that have the time of
    reading.
    """
    opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def bind_to(opened: socket.socket, interface: str) -> None:
    """Send and receive by this interface only. Raises OSError."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


def source_to(destination: Destination, interface: str) -> str:
    """Return the address from which this host sends to a destination. Raises OSError."""
    with socket.socket(FAMILY[destination.version], socket.SOCK_DGRAM) as opened:
        bind_to(opened, interface)
        opened.connect((destination.text, 9))
        return str(opened.getsockname()[0])


def attach_filter(opened: socket.socket, program: ClassicProgram) -> None:
    """Attach classic BPF (bpf(4)), which takes or drops each message."""
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ct.create_string_buffer(code, len(code))
    fprog = struct.pack("HL", len(program), ct.addressof(buffer))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
