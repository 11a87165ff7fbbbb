"""A compile helper for all tests of probes, and flow probes that see only what a test runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from probes.flow.clock import FlowClock
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from probes.tunnels import Tunnels
from tests.support.compiling import SharedCompiler


@dataclass
class LooseProbe:
    """A flow probe on one loose hook."""

    probe: FlowProbe
    hook: Hook
    fd: int
    """The dispatcher, to be run."""


@pytest.fixture(autouse=True)
def _any_cpu() -> Iterator[None]:
    """A test may bind itself to a CPU."""
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


EMULATED_S = 120.0
"""CPU time for a compile: an emulated machine is slow, and counts time when it does not run."""


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    with SharedCompiler(cpu_limit=EMULATED_S) as compiler:
        yield compiler


MakeProbe = Callable[..., LooseProbe]


@pytest.fixture
def make_probe(compiler: Compiler) -> Iterator[MakeProbe]:
    """Make flow probes that see only what is run through them."""
    with ExitStack() as stack:

        def make(
            hook: Hook = Hook.XDP,
            *,
            ethernet: bool = True,
            capture: str = "",
            records: int = 4096,
            sizes: TableSizes | None = None,
            memory: int | None = None,
            tunnels: Tunnels = Tunnels.OUTER,
            clock: FlowClock | None = None,
        ) -> LooseProbe:
            interface = Interface("test", 0, ethernet)
            hooks = Hooks(lambda point: None)
            direction = FlowDirection.EGRESS if hook is Hook.TC_EGRESS else FlowDirection.INGRESS
            probe = FlowProbe(
                compiler,
                interface,
                [(hook, direction)],
                hooks,
                FlowOptions(capture=capture, tunnels=tunnels),
                sizes or TableSizes(records, wide=tunnels is not Tunnels.OUTER),
                memory=memory,
                clock=clock,
            )
            stack.callback(probe.close)
            return LooseProbe(probe, hook, hooks.in_use()[0].chain.fd)

        yield make
