"""UDP to a collector. The link knows the datagrams that the collector's host refuses."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from app.exporters.ipfix.message import Message, read_header

_BURST = 32
"""Datagrams in a row: 45 kB, of the 200 kB that a receiver's buffer has by default."""
_PAUSE_S = 0.001
_KEPT_BYTES = 1 << 20
"""Datagrams that may still be refused."""
_SETTLE_S = 0.03
"""Wait behind new templates: a collector with several threads reads them before records, and a
refusal comes back."""
_SEND_TIMEOUT = struct.pack("ll", 2, 0)
"""For a full queue of the interface: `struct timeval`."""
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_LONGEST_ERROR = 2048


class Sent(NamedTuple):
    """A message that the kernel took, while the collector may not have it."""

    message: Message
    sequence: int
    end: int
    """Bytes of all messages up to its end."""


class Link(Protocol):
    """A connection to a collector. OSError: it is broken; TimeoutError: it takes nothing now."""

    starts_anew: bool
    """Whether each connection starts with sequence 0 and without templates."""
    limit: int
    """Bytes of a message."""

    def open(self) -> None: ...

    def send(self, data: bytes, deadline: float) -> int:
        """Send a message, or nothing. Returns the bytes sent so far, with it."""

    def settle(self) -> None:
        """Wait until the collector may have read new templates; or raise OSError."""

    def check(self) -> None:
        """Raise OSError if the connection is broken; send what is held back."""

    def confirmed(self, sent: Sequence[Sent]) -> int:
        """Return how many of the first messages need not be kept."""

    def lost(self, sent: Sequence[Sent]) -> int:
        """Return the place of the first message that the collector does not have."""

    def close(self) -> None: ...


def connected(opened: socket.socket | None) -> socket.socket:
    """Return the socket of a link. Raises OSError if the link is closed."""
    if opened is None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    return opened


class UdpLink:
    """Datagrams to a collector, at most 45 kB in a millisecond."""

    starts_anew = False

    def __init__(self, host: str, port: int, limit: int) -> None:
        self.limit = limit
        self._host, self._port = host, port
        self._socket: socket.socket | None = None
        self._bytes = 0
        self._count = 0
        self._errors = select.poll()

    def open(self) -> None:
        self.close()
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            else:
                made.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            made.connect(address)
        except BaseException:
            made.close()
            raise
        self._socket = made
        self._errors = select.poll()
        self._errors.register(made, 0)

    def send(self, data: bytes, deadline: float) -> int:
        # `deadline` is for links whose receiver may block them.
        connected(self._socket).send(data)
        self._bytes += len(data)
        self._count += 1
        if self._count % _BURST == 0:
            time.sleep(_PAUSE_S)
            self._check(0)
        return self._bytes

    def settle(self) -> None:
        self._check(_SETTLE_S)

    def check(self) -> None:
        self._check(0)

    def _check(self, wait_s: float) -> None:
        if self._errors.poll(wait_s * 1000):
            number = connected(self._socket).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            number = number or errno.ECONNREFUSED
            raise OSError(number, os.strerror(number))

    def confirmed(self, sent: Sequence[Sent]) -> int:
        known = self._bytes - _KEPT_BYTES
        return next((i for i, each in enumerate(sent) if each.end > known), len(sent))

    def lost(self, sent: Sequence[Sent]) -> int:
        refused = {read_header(payload) for payload in self._refused()} - {None}
        if not refused:
            return len(sent)
        for place, each in enumerate(sent):
            if (each.message.domain.number, each.sequence & 0xFFFFFFFF) in refused:
                return place
        return len(sent)

    def _refused(self) -> list[bytes]:
        """Return the datagrams, as far as errors quote them, that came back (ip(7), IP_RECVERR)."""
        found: list[bytes] = []
        while self._socket is not None:
            try:
                flags = socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT
                found.append(self._socket.recvmsg(_LONGEST_ERROR, _LONGEST_ERROR, flags)[0])
            except OSError:
                break
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
