"""A TCP transfer that fills queues."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app.lab import netns
from app.lab.plan import CLIENT, SERVER
from tests.topologies.network import Topology

_PORT = 9010
_BLOCK = bytes(1 << 16)


class Transfer:
    """One connection from the client, and the bytes that it carried so far."""

    def __init__(self, network: Topology, address: str, download: bool) -> None:
        self.bytes = 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with netns.inside(network.nodes[SERVER]):
            listener = socket.create_server((address, _PORT), family=family)
        with netns.inside(network.nodes[CLIENT]):
            near = socket.create_connection((address, _PORT))
        far, _ = listener.accept()
        listener.close()
        self._ends = (far, near) if download else (near, far)
        self._threads = [threading.Thread(target=run) for run in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _send(self) -> None:
        with suppress(OSError):
            while True:
                self._ends[0].sendall(_BLOCK)

    def _receive(self) -> None:
        with suppress(OSError):
            while data := self._ends[1].recv(1 << 18):
                self.bytes += len(data)


@contextmanager
def bulk(network: Topology, address: str, *, download: bool = False) -> Iterator[Transfer]:
    """Transfer as much as TCP can, to the server at `address` or from it."""
    transfer = Transfer(network, address, download)
    try:
        yield transfer
    finally:
        transfer.close()
