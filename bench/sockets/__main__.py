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
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, exactly
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


def asking(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Ask for all sockets of loopback by each way, then close them."""
    count = effort.of(CONNECTIONS, 50)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CONNECTIONS, 4 * CONNECTIONS))
    space = netns.fresh()
    stack.callback(os.close, space)
    stack.enter_context(netns.inside(space))
    loopback_up()
    diag, ended = stack.enter_context(closing(SocketDiag())), ClosingSockets()
    stack.callback(ended.close)
    made = stack.enter_context(connections(count))
    live = 1 << SocketState.ESTABLISHED
    tuples, _ = diag.dump(TCP, 4, live)
    asked = tuples[np.random.default_rng(1).permutation(len(tuples))]
    assert diag.ask(asked)["found"].all()
    nobody = asked.copy()
    nobody["far_port"] ^= 0x5555
    for label, action in (
        ("asked by tuple", lambda: diag.ask(asked)),
        ("asked in vain", lambda: diag.ask(nobody)),
        ("dumped", lambda: diag.dump(TCP, 4, live)),
    ):
        yield Case(f"{len(asked)} sockets, {label}", "us of CPU each",
                   constant(least_ms(action) / len(asked) * 1e3))  # fmt: skip
    for sock in made:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        sock.close()
    told, begin, spent = 0, time.monotonic(), 0.0
    while told + ended.lost < len(asked) and time.monotonic() < begin + 10:
        time.sleep(0.2)
        start = time.thread_time()
        told += len(ended.read()[0])
        spent += time.thread_time() - start
    yield Case(f"{len(asked)} sockets, seen as they close", "us of CPU each",
               constant(spent / max(told, 1) * 1e6))  # fmt: skip
    yield Case(f"{len(asked)} sockets, not seen as they close", "sockets",
               constant(len(asked) - told), goal=exactly(0))  # fmt: skip


GROUPS = (Group("asking", asking, 1, warm=False),)
