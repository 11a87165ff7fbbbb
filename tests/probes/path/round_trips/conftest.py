"""Flows whose packets the test makes up, seen by both kinds of ingress hooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.path.options import PathOptions
from tests.probes.path.round_trips.peers import Connection, Peers
from tests.probes.path.wire.frames import PEER, Tracing, Wire, wire

TIMEOUT_S = 0.3
Connect = Callable[[], Connection]
_ports = itertools.count(2000)


@pytest.fixture(scope="module", params=[Hook.XDP, Hook.TC_INGRESS], ids=["xdp", "tc"])
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[tuple[Wire, Tracing]]:
    with wire(ethernet=True) as opened:
        options = PathOptions(rate=0.1, timeout=TIMEOUT_S)
        tracing = Tracing(compiler, opened.name, options, request.param)
        for destination in PEER.values():
            tracing.probe.trace(destination)
        yield opened, tracing
        tracing.close()


@pytest.fixture(params=[4, 6], ids=["v4", "v6"])
def peers(request: pytest.FixtureRequest, host: tuple[Wire, Tracing]) -> Peers:
    return Peers(*host, request.param)


@pytest.fixture
def connection(peers: Peers) -> Connection:
    """A known flow."""
    found = Connection(peers, next(_ports))
    found.open()
    return found
