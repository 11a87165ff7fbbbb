"""CPU time of asking the kernel for sockets: by tuple, by dump, and as they close.

Connections are made on loopback of a new namespace. Least of several rounds, in one run.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from app.lab import netns
from bpf.sockets.diag import TCP, ClosingSockets, SocketDiag, SocketState
from tests.bpf.sockets.tools import loopback_up

CONNECTIONS = 5_000
ROUNDS = 7
LINGER = struct.pack("=ii", 1, 0)
"""SO_LINGER of zero seconds: a reset instead of TIME_WAIT."""


def least_ms(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Milliseconds of CPU time of the calling thread."""
    spent = []
    for _ in range(rounds):
        begin = time.thread_time()
        action()
        spent.append(time.thread_time() - begin)
    return min(spent) * 1e3


@contextmanager
def connections(count: int) -> Iterator[list[socket.socket]]:
    """Make established connections: two sockets each."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        made = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            accepted = stack.enter_context(listener.accept()[0])
            made += [client, accepted]
        yield made


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CONNECTIONS, 4 * CONNECTIONS))
    space = netns.fresh()
    with netns.inside(space):
        loopback_up()
        measure()
    os.close(space)


def measure() -> None:
    with (
        closing(SocketDiag()) as diag,
        closing(ClosingSockets()) as ended,
        connections(CONNECTIONS) as made,
    ):
        live = 1 << SocketState.ESTABLISHED
        tuples, _ = diag.dump(TCP, 4, live)
        asked = tuples[np.random.default_rng(1).permutation(len(tuples))]
        assert diag.ask(asked)["found"].all()
        nobody = asked.copy()
        nobody["far_port"] ^= 0x5555
        count = len(asked)
        for label, action in (
            ("asked by tuple", lambda: diag.ask(asked)),
            ("asked in vain", lambda: diag.ask(nobody)),
            ("dumped", lambda: diag.dump(TCP, 4, live)),
        ):
            spent = least_ms(action)
            print(f"{count} {label}: {spent:.1f} ms, {spent / count * 1e3:.2f} us each", flush=True)
        for sock in made:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            sock.close()
        told, begin, spent = 0, time.monotonic(), 0.0
        while told + ended.lost < count and time.monotonic() < begin + 10:
            time.sleep(0.2)
            start = time.thread_time()
            told += len(ended.read()[0])
            spent += time.thread_time() - start
        print(f"{told} closed, {ended.lost} lost: {spent / max(told, 1) * 1e6:.2f} us each")


if __name__ == "__main__":
    main()
