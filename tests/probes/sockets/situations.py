"""Situations that limit a TCP connection, made for real and at the same time.

    near - router - far 0
                  - far 1 ...

All connections begin in one namespace, and each ends in another one. The link behind the router has
a delay (`app.lab.topology`), a queue (`tc`) and a loss rate (`nft`).
"""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from app.lab import netns
from app.lab.topology import open_end
from bpf.arrays import Array
from bpf.sockets.diag import TUPLE, SocketDiag
from probes.sockets.records import Limit

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute

PORT = 5000
_SO_SNDBUF, _SO_RCVBUF, _SO_MAX_PACING_RATE = socket.SO_SNDBUF, socket.SO_RCVBUF, 47
_CARRY = """
import ast, sys
from app.lab.topology import Cable, carry
carry([Cable(*ends) for ends in ast.literal_eval(sys.argv[1])])
"""
_QUEUE = 5000
"""Packets that an end of a cable holds: a window of a long path fits."""
_HOST = {"net/ipv4/tcp_no_metrics_save": "1"}
_ROUTER = {"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "0"}

End = Callable[[socket.socket], None]
"""Sends or receives until its socket ends; runs in a thread."""


@dataclass(frozen=True)
class Link:
    rtt_ms: float = 0
    queue: str = ""
    """Arguments of `tc qdisc add dev DEVICE root`."""
    loss: float = 0
    """Percent of the packets to the receiver."""


@dataclass(frozen=True)
class Options:
    """Options of a socket; 0: the kernel's."""

    sndbuf: int = 0
    rcvbuf: int = 0
    pace: int = 0
    """Bytes/s."""
    congestion: str = "cubic"

    def apply(self, end: socket.socket) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.congestion.encode())
        for option, size in ((_SO_SNDBUF, self.sndbuf), (_SO_RCVBUF, self.rcvbuf)):
            if size:
                # The kernel doubles it.
                end.setsockopt(socket.SOL_SOCKET, option, size // 2)
        if self.pace:
            rate = struct.pack("=Q", self.pace)
            end.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)


@dataclass(frozen=True)
class Situation:
    name: str
    want: tuple[Limit, ...]
    """Right verdicts of the end that sends most."""
    near: End
    far: End
    link: Link = Link()
    options: Options = Options()
    """Of both ends."""
    far_sends: bool = False
    want_reading: tuple[Limit, ...] = ()
    """Right verdicts of the other end; empty: any."""


def bulk(end: socket.socket, size: int = 1 << 18) -> None:
    """Send as fast as possible."""
    data = bytes(size)
    while True:
        end.sendall(data)


def chunks(size: int, every: float) -> End:
    """Send `size` bytes each `every` seconds."""

    def run(end: socket.socket) -> None:
        data, due = bytes(size), time.monotonic()
        while True:
            end.sendall(data)
            due += every
            # The other end sends nothing, so only the end of the socket makes it readable.
            if select.select([end], [], [], max(0, due - time.monotonic()))[0]:
                return

    return run


def read(end: socket.socket) -> None:
    """Receive as fast as possible."""
    buffer = bytearray(1 << 18)
    while end.recv_into(buffer):
        pass


def read_slowly(rate: float) -> End:
    """Receive `rate` bytes/s."""

    def run(end: socket.socket) -> None:
        done, begin = 0, time.monotonic()
        while data := end.recv(min(65536, max(1000, int(rate / 20)))):
            done += len(data)
            time.sleep(max(0, done / rate - (time.monotonic() - begin)))

    return run


def read_nothing(end: socket.socket) -> None:
    """Wait for the end of the connection without a read."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    poll.poll()


def answer(size: int, think: float = 0) -> End:
    """Answer each request by `size` bytes, after `think` seconds."""

    def run(end: socket.socket) -> None:
        data = bytes(size)
        while end.recv(1000):
            time.sleep(think)
            end.sendall(data)

    return run


def ask(size: int) -> End:
    """Send requests, each after the whole answer of `size` bytes."""

    def run(end: socket.socket) -> None:
        while True:
            end.sendall(b"x" * 100)
            rest = size
            while rest:
                data = end.recv(rest)
                if not data:
                    return
                rest -= len(data)

    return run


class Situations:
    """Situations that run at the same time; `sample` reads the sockets of all."""

    def __init__(self, situations: Sequence[Situation]) -> None:
        self.situations = situations
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        try:
            self._build()
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Situations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for end in self._ends:
            end.close()
        self._ends.clear()
        self._stack.close()

    def sample(self) -> tuple[Array, Array]:
        """Return the states of all senders and of all receivers, each (situations,) INFO."""
        near = self._diag[0].ask(self._tuples[0])
        far = np.concatenate(
            [diag.ask(row) for diag, row in zip(self._diag[1:], self._tuples[1:], strict=True)]
        )
        swap = np.array([each.far_sends for each in self.situations])
        return np.where(swap, far, near), np.where(swap, near, far)

    def _space(self) -> int:
        space = netns.fresh()
        self._stack.callback(partial(os.close, space))
        return space

    def _build(self) -> None:
        self._near, self._router = self._space(), self._space()
        self._far = [self._space() for _ in self.situations]
        cables = asyncio.run(self._wire())
        if cables:
            fds = [fd for cable in cables for fd in cable[:2]]
            command = [sys.executable, "-I", "-c", _CARRY, repr(cables)]
            process = subprocess.Popen(command, pass_fds=fds)
            for fd in fds:
                os.close(fd)
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
        for number, situation in enumerate(self.situations):
            if queue := situation.link.queue:
                self._run(f"tc qdisc add dev r{number} root {queue}")
        lossy = [(n, each.link.loss) for n, each in enumerate(self.situations) if each.link.loss]
        if lossy:
            rules = "\n".join(
                f'oifname "r{n}" numgen random mod 10000 < {round(loss * 100)} drop'
                for n, loss in lossy
            )
            chain = "type filter hook forward priority 0;"
            self._run("nft -f -", f"table ip l {{\nchain f {{\n{chain}\n{rules}\n}}\n}}\n")

    def _run(self, command: str, stdin: str = "") -> None:
        """Run a program in the router. Raises CalledProcessError."""
        with netns.inside(self._router):
            subprocess.run(shlex.split(command), input=stdin, text=True, check=True)

    async def _wire(self) -> list[tuple[int, int, float]]:
        """Join the namespaces; return the cables: both ends and the delay."""
        for space in (self._near, *self._far):
            netns.write_sysctls(space, _HOST)
        netns.write_sysctls(self._router, _ROUTER)
        near, router = await netns.open_host(self._near), await netns.open_host(self._router)
        await netns.add_veth(near, "eth0", self._router, "left")
        await _up(near, self._near, "eth0", "10.60.255.1")
        await _up(router, self._router, "left", "10.60.255.2")
        await near.route("add", dst="default", gateway="10.60.255.2")
        cables = []
        for number, (space, situation) in enumerate(zip(self._far, self.situations, strict=True)):
            far = await netns.open_host(space)
            name = f"r{number}"
            if delay := situation.link.rtt_ms / 2000:
                ends = open_end(self._router, name), open_end(space, "eth0")
                cables.append((*ends, delay))
                for host, ns, end in ((router, self._router, name), (far, space, "eth0")):
                    await host.link("set", index=netns.ifindex(ns, end), txqlen=_QUEUE)
            else:
                await netns.add_veth(router, name, space, "eth0")
            await _up(router, self._router, name, f"10.60.{number}.1")
            await _up(far, space, "eth0", f"10.60.{number}.2")
            await far.route("add", dst="default", gateway=f"10.60.{number}.1")
            far.close()
        near.close()
        router.close()
        return cables

    def _connect(self) -> None:
        near_rows = np.zeros(len(self.situations), TUPLE)
        self._tuples, self._diag = [near_rows], [self._ask_in(self._near)]
        for number, situation in enumerate(self.situations):
            address = f"10.60.{number}.2"
            with netns.inside(self._far[number]):
                listener = socket.socket()
            situation.options.apply(listener)
            listener.bind((address, PORT))
            listener.listen()
            with netns.inside(self._near):
                near = socket.socket()
            self._ends.append(near)
            situation.options.apply(near)
            near.connect((address, PORT))
            far, _ = listener.accept()
            self._ends.append(far)
            listener.close()
            near_rows[number] = _tuple_of(near)
            self._tuples.append(np.array([_tuple_of(far)], TUPLE))
            self._diag.append(self._ask_in(self._far[number]))
            for run, end in ((situation.far, far), (situation.near, near)):
                thread = threading.Thread(target=_until_closed, args=(run, end))
                thread.start()
                self._threads.append(thread)

    def _ask_in(self, space: int) -> SocketDiag:
        with netns.inside(space):
            return self._stack.enter_context(closing(SocketDiag()))


async def _up(host: AsyncIPRoute, space: int, name: str, address: str) -> None:
    index = netns.ifindex(space, name)
    await host.link("set", index=index, state="up")
    await host.addr("add", index=index, address=address, prefixlen=24)


def _until_closed(run: End, end: socket.socket) -> None:
    with suppress(OSError):
        run(end)


def _tuple_of(end: socket.socket) -> Array:
    row = np.zeros((), TUPLE)
    for (address, port), side in ((end.getsockname(), "near"), (end.getpeername(), "far")):
        row[side][:4] = np.frombuffer(socket.inet_aton(address), "u1")
        row[f"{side}_port"] = port
    row["protocol"], row["version"] = socket.IPPROTO_TCP, 4
    return row
