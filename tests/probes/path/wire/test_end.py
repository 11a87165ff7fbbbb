"""The end of tracing: answers that are still on the way."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from bpf.compiler import Compiler
from probes.path import probe as module
from probes.path.options import Guard
from tests.probes.path.network import answer
from tests.probes.path.wire.frames import (
    ECHO,
    PEER,
    ROUTER,
    Tracing,
    packed,
    tracing_options,
    wire,
)
from tests.probes.path.wire.test_whole import Host, echo, replies_in, reply_to


def test_replies_to_the_last_probes_do_not_reach_the_hosts_ping(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe of a ping reached the destination, and tracing ends before the reply comes."""
    with wire(ethernet=True) as opened:
        host = Host(opened, Tracing(compiler, opened.name, tracing_options(Guard.DISCARD)))
        first = host.probe_at(1, 4, ECHO[4], echo(4))
        host.wire.receive(answer(first, ROUTER[4] % 1))
        assert len(host.answered()) == 1
        last = host.probe_at(3, 4, ECHO[4], echo(4))
        waits = list[float]()

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            host.wire.receive(reply_to(last, PEER[4]))

        clock = SimpleNamespace(sleep=sleep, monotonic_ns=time.monotonic_ns)
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, ECHO[4]) as sock:
            sock.setblocking(False)
            monkeypatch.setattr(module, "time", clock)
            host.tracing.close()
            assert replies_in(sock, 4) == 0
        assert len(waits) == 1
        assert waits[0] <= 0.3
        assert packed(PEER[4]) == last.addresses[1]
