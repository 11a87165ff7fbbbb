"""Connections to a collector: UDP, TCP and TLS (RFC 7011 sections 10.4 and 11.1)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from app.exporters.ipfix.message import Message, read_header

_CONNECT_S = 5.0
_VERDICT_S = 0.5
"""Longest wait for the collector's verdict on this host's certificate."""
_LIMIT = 16384
"""Bytes of a message; the protocol allows 65,535."""
_SEND_BUFFER = 1 << 19
"""The kernel doubles it. So much may wait for a collector that reads slowly."""
_READ = 4096


class StreamLink:
    """A TCP connection, with TLS by option.

    The kernel knows which bytes the peer has acknowledged (SIOCOUTQ, tcp(7)): messages behind them
    are lost if the connection breaks, and only they.
    """

    starts_anew = True
    limit = _LIMIT

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port = host, port
        self._tls = tls
        self._socket: socket.socket | None = None
        self._cipher: _Cipher | None = None
        self._waiting = memoryview(b"")
        """Bytes that the kernel did not take yet."""
        self._written = 0
        """Bytes that the kernel took."""
        self._writable = select.poll()

    def open(self) -> None:
        self.close()
        made = socket.create_connection((self._host, self._port), _CONNECT_S)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            self._written, self._waiting = 0, memoryview(b"")
            if self._tls is not None:
                self._cipher = _Cipher(self._tls, self._host)
                self._written = self._cipher.shake_hands(made)
                self._await_verdict(made)
            made.setblocking(False)
        except BaseException:
            made.close()
            self._cipher = None
            raise
        self._socket = made
        self._writable = select.poll()
        self._writable.register(made, select.POLLOUT)

    def _await_verdict(self, made: socket.socket) -> None:
        """Raise OSError if the collector refuses this host's certificate.

        With TLS 1.3 the refusal comes after the handshake. Records that are sent before it would be
        acknowledged by the collector's kernel, and lost. A collector that accepts sends tickets.
        """
        assert self._cipher is not None
        made.settimeout(_VERDICT_S)
        with contextlib.suppress(TimeoutError):
            answer = made.recv(_READ)
            if not answer:
                raise ConnectionResetError(errno.ECONNRESET, "the collector ended the handshake")
            self._cipher.take(answer)

    def send(self, data: bytes, deadline: float) -> int:
        self.check()
        while self._waiting:
            left = deadline - time.monotonic()
            if left <= 0 or not self._writable.poll(left * 1000):
                raise TimeoutError(errno.ETIMEDOUT, "the collector reads too slowly")
            self._write()
        self._waiting = memoryview(data if self._cipher is None else self._cipher.encrypt(data))
        end = self._written + len(self._waiting)
        # The message counts as sent: a later call finds a broken connection again.
        with contextlib.suppress(OSError):
            self._write()
        return end

    def settle(self) -> None:
        """A connection keeps the order."""

    def check(self) -> None:
        try:
            answer = connected(self._socket).recv(_READ)
        except BlockingIOError:
            pass
        else:
            if not answer:
                raise ConnectionResetError(errno.ECONNRESET, "the collector closed the connection")
            if self._cipher is not None:
                self._cipher.take(answer)
        self._write()

    def _write(self) -> None:
        while self._waiting:
            try:
                count = connected(self._socket).send(self._waiting)
            except BlockingIOError:
                return
            self._written += count
            self._waiting = self._waiting[count:]

    def confirmed(self, sent: Sequence[Sent]) -> int:
        acknowledged = self._acknowledged()
        return next((i for i, each in enumerate(sent) if each.end > acknowledged), len(sent))

    lost = confirmed

    def _acknowledged(self) -> int:
        """Return how many bytes the peer's kernel has."""
        if self._socket is None:
            return 0
        answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, struct.pack("i", 0))
        return self._written - int(struct.unpack("i", answer)[0])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._cipher = None


class _Cipher:
    """The TLS layer, in memory, so that bytes on the connection can be counted."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._layer = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self, connection: socket.socket) -> int:
        """Return the bytes that were written."""
        written = 0
        while True:
            try:
                self._layer.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            data = self._outgoing.read()
            connection.sendall(data)
            written += len(data)
            if done:
                return written
            answer = connection.recv(_READ)
            if not answer:
                raise ConnectionResetError(errno.ECONNRESET, "the collector ended the handshake")
            self._incoming.write(answer)

    def encrypt(self, data: bytes) -> bytes:
        self._layer.write(data)
        return self._outgoing.read()

    def take(self, answer: bytes) -> None:
        """Take bytes of the peer: tickets, alerts, the end."""
        self._incoming.write(answer)
        try:
            if not self._layer.read(_READ):
                raise ConnectionResetError(errno.ECONNRESET, "the collector ended the session")
        except ssl.SSLWantReadError:
            pass


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
