"""Closing sockets in a new namespace: the kernel reports or loses each, and counts lost ones."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.lab import netns
from bpf.sockets.diag import TCP, UDP, ClosingSockets
from tests.bpf.sockets.tools import cookie, ends, loopback_up

PATIENCE_S = 30
"""The first closed socket waits for the kernel to load two modules."""


@pytest.fixture
def space() -> Iterator[int]:
    """A new namespace with loopback; the test's thread is in it."""
    ns = netns.fresh()
    with netns.inside(ns):
        loopback_up()
        yield ns
    os.close(ns)


def told(closing: ClosingSockets, count: int) -> tuple[Any, Any]:
    """Wait until the kernel has reported or lost `count` sockets."""
    tuples, info = closing.read()
    while len(info) + closing.lost < count:
        assert select.select([closing], [], [], PATIENCE_S)[0], "too few closed sockets"
        some, numbers = closing.read()
        tuples, info = np.concatenate([tuples, some]), np.concatenate([info, numbers])
    return tuples, info


@pytest.mark.usefixtures("space")
def test_all_kinds_of_sockets() -> None:
    with contextlib.closing(ClosingSockets()) as closing:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            nowhere = ("0.0.0.0" if family == socket.AF_INET else "::", 0)
            listener = socket.create_server((address, 0), family=family)
            client = socket.create_connection(listener.getsockname()[:2])
            accepted, _ = listener.accept()
            client.sendall(b"hello")
            accepted.recv(5)
            bound, other = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
            bound.bind((address, 0))
            other.connect(bound.getsockname())
            here, there = client.getsockname()[:2], accepted.getsockname()[:2]
            expected = {
                cookie(client): (TCP, here, there),
                cookie(accepted): (TCP, there, here),
                cookie(listener): (TCP, there, nowhere),
                cookie(bound): (UDP, bound.getsockname()[:2], nowhere),
                cookie(other): (UDP, other.getsockname()[:2], bound.getsockname()[:2]),
            }
            sent, received = cookie(client), cookie(accepted)
            for sock in (client, accepted, listener, bound, other):
                sock.close()
            tuples, info = told(closing, 5)
            found = {int(i["cookie"]): ends(t) for t, i in zip(tuples, info, strict=True)}
            assert found == expected
            assert info["found"].all()
            last = {int(row["cookie"]): row for row in info}
            assert last[sent]["bytes_sent"] == 5
            # The kernel counts FIN as a received byte.
            assert last[received]["bytes_received"] == 5 + 1
            assert last[sent]["rtt_us"] > 0
        assert closing.lost == 0
        assert len(closing.read()[0]) == 0


@pytest.mark.usefixtures("space")
def test_ipv4_over_a_dual_stack_socket_is_ipv4() -> None:
    with contextlib.closing(ClosingSockets()) as closing:
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()
        client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
        here, there = client.getsockname(), client.getpeername()
        for sock in (accepted, client, listener):
            sock.close()
        tuples, _ = told(closing, 3)
        assert {ends(row) for row in tuples} == {
            (TCP, here, there),
            (TCP, there, here),
            (TCP, ("::", there[1]), ("::", 0)),
        }


@pytest.mark.usefixtures("space")
def test_lost_sockets_are_counted() -> None:
    with contextlib.closing(ClosingSockets(buffer=1)) as closing:
        bound = []
        for _ in range(300):
            bound.append(socket.socket(type=socket.SOCK_DGRAM))
            bound[-1].bind(("127.0.0.1", 0))
        for sock in bound:
            sock.close()
        deadline = time.monotonic() + PATIENCE_S
        while not closing.lost:
            assert time.monotonic() < deadline
        _, info = told(closing, 300)
        assert 0 < len(info) < 300
        assert closing.lost == 300 - len(info)
