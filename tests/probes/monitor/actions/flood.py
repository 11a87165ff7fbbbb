"""A flood to one port, and a conversation beside it whose packets are counted one by one."""

from __future__ import annotations

import fcntl
import socket
import struct
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.lab import netns
from bpf.compiler import Compiler
from tests.support.generator import Generator
from tests.support.veth import End

PORT = 7777
"""Of the conversation; the flood goes to port 2000."""
SO_RCVBUFFORCE = 33
_SIOCGIFHWADDR, _SIOCETHTOOL, _ETHTOOL_SGRO = 0x8927, 0x8946, 0x2C
_SLICE_S = 0.05


def received() -> int:
    """Packets that the network stack behind the hook got, in the namespace of this thread."""
    lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Ip:"))
    return int(values[names.index("InReceives")])


def generator_of(compiler: Compiler, left: End, right: End, flows: int = 100) -> Generator:
    """Frames to the watched end's own address: the network stack counts no others."""
    made = Generator(compiler, left, flows=flows, cpu=1)
    with socket.socket() as asking:
        packed = struct.pack("16s24x", right.ifname.encode())
        address = fcntl.ioctl(asking, _SIOCGIFHWADDR, packed)[18:24]
        # Without XDP, a veth takes the generator's frames only if it merges received packets.
        merges = array("I", [_ETHTOOL_SGRO, 1])
        packed = struct.pack("16sP16x", right.ifname.encode(), merges.buffer_info()[0])
        fcntl.ioctl(asking, _SIOCETHTOOL, packed)
    made.frame = address + made.frame[6:]
    return made


@contextmanager
def flooding(generator: Generator, rate: int = 500_000) -> Iterator[None]:
    """Send some `rate` packets a second until the block ends."""
    over = threading.Event()

    def send() -> None:
        due = time.monotonic()
        while not over.is_set():
            generator.send(round(rate * _SLICE_S))
            due += _SLICE_S
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Others:
    """Numbered datagrams to another port, one each 2 ms, and those that arrived."""

    def __init__(self, left: End, right: End) -> None:
        self.sent = self.arrived = 0
        self._over = threading.Event()
        with netns.inside(right.ns):
            self._to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._to.bind((right.ipv4, PORT))
            self._to.setblocking(False)
            self._to.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
        with netns.inside(left.ns):
            self._from = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._from.connect((right.ipv4, PORT))
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(0.002):
            self._from.send(b"?")
            self.sent += 1

    def finish(self) -> None:
        self._over.set()
        self._thread.join()
        time.sleep(0.2)
        try:
            while self._to.recv(100):
                self.arrived += 1
        except BlockingIOError:
            pass
        self._to.close()
        self._from.close()
