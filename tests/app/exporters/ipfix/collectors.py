"""Collectors of tests, of Python: a UDP port, and a TCP or TLS server that can stop reading."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.exporters.exporter import DeliveryError
from app.exporters.ipfix.exporter import FlowExporter
from app.exporters.ipfix.message import read_header
from probes.snapshot import Snapshot
from tests.app.exporters.ipfix.reader import Reader


def deliver(exporter: FlowExporter, flows: Snapshot, tries: int = 1, skip: int = 0) -> int:
    """Deliver a window as an output does. Returns the records that are delivered."""
    done = skip
    for _ in range(tries):
        try:
            exporter.open()
            exporter.deliver(flows, done)
        except DeliveryError as error:
            done = max(done, error.delivered)
        else:
            return exporter.records(flows)
    return done


_SO_RCVBUFFORCE = 33


class UdpCollector:
    """A UDP port of 127.0.0.1, or of ::1."""

    def __init__(self, port: int = 0, address: str = "127.0.0.1") -> None:
        self.reader = Reader()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self._socket.bind((address, port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def fill_soon(self) -> None:
        """Give the port the smallest buffer: datagrams are dropped."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    def take_with_gaps(self) -> int:
        """Read what has come; returns the records that are missing by the sequence numbers."""
        missing = 0
        expected: int | None = None
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return missing
            header = read_header(data)
            assert header is not None
            missing += 0 if expected is None else header[1] - expected
            self.reader.sequences.clear()
            self.reader.read(data)
            expected = self.reader.sequences[header[0]]

    def take(self) -> Reader:
        """Read what has come, and return the reader."""
        while True:
            try:
                self.reader.read(self._socket.recv(1 << 16))
            except BlockingIOError:
                return self.reader

    def die(self) -> None:
        """Read what has come, and close the port."""
        self.take()
        self._socket.close()


class StreamCollector:
    """A TCP server of 127.0.0.1 that reads in a thread, each connection with its own reader."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, buffer: int = 1 << 20) -> None:
        self.readers: list[Reader] = []
        self.reads = threading.Event()
        """It reads while this is set."""
        self.reads.set()
        self.drops = False
        """The next read ends the connection, and what it read is lost."""
        self._tls = tls
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            self._connection = connection
            reader, rest = Reader(), b""
            self.readers.append(reader)
            try:
                while self.reads.wait() and (data := connection.recv(1 << 16)):
                    if self.drops:
                        break
                    rest = reader.stream(rest + data)
            except OSError:
                pass
            connection.close()

    def cut(self) -> None:
        """End the connection. The thread waits for the next one."""
        assert self._connection is not None
        # The method of a TLS connection would make the thread read what is encrypted.
        socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def sums(self) -> tuple[int, int, int]:
        """Return flows, packets and bytes of all connections."""
        each = [reader.sums() for reader in list(self.readers)]
        return sum(one[0] for one in each), sum(one[1] for one in each), sum(one[2] for one in each)

    def close(self) -> None:
        self.reads.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._connection is not None:
            # A close alone would not wake the thread.
            with contextlib.suppress(OSError):
                self.cut()
        self._thread.join(5)


@contextmanager
def stream_collector(
    tls: ssl.SSLContext | None = None, *, buffer: int = 1 << 20
) -> Iterator[StreamCollector]:
    made = StreamCollector(tls, buffer=buffer)
    try:
        yield made
    finally:
        made.close()
