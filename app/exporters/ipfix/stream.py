"""TCP and TLS to a collector (RFC 7011 sections 10.4 and 11.1)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
import ssl
import struct
import termios
import time
from collections.abc import Sequence

from app.exporters.ipfix.sockets import Sent, connected

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
