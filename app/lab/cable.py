"""Cables of known delay: a TUN device at each end, and one process that carries the packets.

A packet leaves one delay after its arrival. The median of round trips is within 0.2 ms of the plan.
Single packets are late by some milliseconds on a busy machine, so tests use medians and allow 0.5
ms. An end holds 500 unread packets and loses further ones.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import fcntl
import heapq
import os
import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.lab import netns

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFREQ = struct.Struct("16sH22x")
_PR_SET_TIMERSLACK = 29
_PACKET_BYTES = 2048
"""More than the MTU; the kernel has cut larger segments."""
_BATCH = 64
"""Packets read from one end before the next end is read."""
_FIRST_LAG, _LAG_STEP, _MOST_LAG = 50_000, 1_000, 300_000
"""ns. A longer lag comes from a busy machine, not from the time to wake up."""


@dataclass(frozen=True, slots=True)
class Cable:
    """The descriptors of the TUN devices at the ends of a link, and its delay."""

    left: int
    right: int
    delay: float
    """Seconds, one way."""


def open_end(ns: int, name: str) -> int:
    """Create the TUN device `name` in namespace `ns`; closing it removes it. Raises OSError."""
    with netns.inside(ns):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, _IFREQ.pack(name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


def carry(cables: Sequence[Cable]) -> None:
    """Carry packets until the process is killed."""
    ct.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ways: dict[int, tuple[int, int]] = {}
    for cable in cables:
        delay = round(cable.delay * 1e9)
        ways |= {cable.left: (cable.right, delay), cable.right: (cable.left, delay)}
    number = 0
    waiting: list[tuple[int, int, int, bytes]] = []
    # The median time to wake up. A packet arrived by this time before it is read, and the process
    # must wake up by this time before the next packet is due.
    lag = _FIRST_LAG
    while True:
        wait = waiting[0][0] - lag - time.monotonic_ns() if waiting else None
        # Unlike poll and epoll, Python's select knows microseconds.
        timeout = None if wait is None else max(0.0, wait / 1e9)
        for end in select.select(ways, (), (), timeout)[0]:
            far, delay = ways[end]
            with contextlib.suppress(BlockingIOError):
                for _ in range(_BATCH):
                    packet = os.read(end, _PACKET_BYTES)
                    # The number keeps packets of one due time in order.
                    number += 1
                    due = time.monotonic_ns() - lag + delay
                    heapq.heappush(waiting, (due, number, far, packet))
        if not waiting:
            continue
        late = time.monotonic_ns() - waiting[0][0]
        # Only if the timeout woke the process, not a packet.
        if wait is not None and wait > 0 and late >= -lag:
            lag = min(max(lag + (_LAG_STEP if late > 0 else -_LAG_STEP), 0), _MOST_LAG)
        while waiting and waiting[0][0] - lag <= time.monotonic_ns():
            _, _, far, packet = heapq.heappop(waiting)
            # A packet that the device refuses is lost, as on any cable.
            with contextlib.suppress(OSError):
                os.write(far, packet)
