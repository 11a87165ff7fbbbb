"""Makes the programs that come with probedeck: of the built-in probes, for all their options.

    python -m probes.control.prebuilt [FOLDER [AT OF]]

Each probe starts on hooks without an interface, and the compiler stores the results. So a run asks
for the same programs. `3 40` makes a sample: of each 40 choices of options the one behind three
others. Root and bcc are needed. The bytes hold for x86-64 and arm64: both are little-endian
machines of 64 bits. The sources see their difference as `HAS_ATOMICS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Protocol

from bpf.attach.attachment import Hook
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.compiler.store import BUNDLED, Store
from probes.drops import probe as drops
from probes.flow.clock import FlowClock, GivenClock, TickClock, TimerClock
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe, has_wide_keys
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from probes.monitor.actions import programs as actions
from probes.monitor.applications import catalog
from probes.monitor.applications.application import ApplicationProbe
from probes.monitor.counting import outgoing
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.policy.model import BUILT_IN
from probes.monitor.probe import MonitorProbe
from probes.names.probe import NamesProbe, names_config
from probes.path.options import Order, PathOptions
from probes.path.probe import PathProbe
from probes.ring.options import RingOptions
from probes.ring.probe import RingProbe
from probes.segment.options import SegmentOptions
from probes.segment.probe import SegmentProbe, segment_config
from probes.sockets.holders import SOURCE, Holders, SocketEvents
from probes.tunnels import Tunnels

KERNELS = ({"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 1}, {"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 0})
"""Macros of kernels from 5.11 on; before 5.12, on arm64 before 5.18, there are no atomics."""
_RECEIVER = Receiver("192.0.2.1", 1, "192.0.2.2", 1)
_RECORDS = 64
"""Of a CPU, for tables that count nothing."""
_MONITORS = (
    MonitorOptions(),
    MonitorOptions(tunnels=Tunnels.INNER),
    MonitorOptions(input=Input.TELEMETRY, receivers=(_RECEIVER,)),
)
_REGULAR_ONLY = "tcp_health"
"""An application that takes no telemetry."""


class _Closable(Protocol):
    def close(self) -> None: ...


class _AnyHooks(Hooks):
    """Hooks of one interface that no packet reaches."""

    def __init__(self, interface: Interface) -> None:
        super().__init__(lambda point: None)
        self._interface = interface

    def find(self, name: str) -> Interface:
        return self._interface


def make(folder: Path, at: int = 0, of: int = 1) -> None:
    """Compile all programs into a folder, or a sample of them; those that it has stay."""
    numbers = count()
    for macros in KERNELS:
        with Compiler(stores=[Store(folder, own=False)], macros=macros) as compiler:
            for interface in (
                Interface("prebuilt", 0, ethernet=True),
                Interface("prebuilt", 0, ethernet=False),
                InterfaceGroup("prebuilt", 0, ethernet=True),
            ):
                hooks = _AnyHooks(interface)
                for start in _starts(compiler, hooks, interface, macros["HAS_ATOMICS"]):
                    if next(numbers) % of == at:
                        start().close()


def _starts(
    compiler: Compiler, hooks: Hooks, interface: Interface, atomics: int
) -> Iterator[Callable[[], _Closable]]:
    """Yield the start of a built-in probe for each choice of its options; the caller closes it."""
    several = isinstance(interface, InterfaceGroup)
    has_xdp = interface.ethernet and not several
    incoming = (Hook.XDP, Hook.TC_INGRESS) if has_xdp else (Hook.TC_INGRESS,)
    clocks: list[type[FlowClock]] = [TickClock, TimerClock]
    # Captures run as by XDP.
    clocks += [GivenClock] if has_xdp else []
    for hook, tunnels, clock in product((*incoming, Hook.TC_EGRESS), Tunnels, clocks):
        way = FlowDirection.EGRESS if hook is Hook.TC_EGRESS else FlowDirection.INGRESS
        sizes = TableSizes(_RECORDS, wide=has_wide_keys(interface, tunnels))
        where = [(hook, way)]
        yield partial(
            FlowProbe, compiler, interface, where, hooks, FlowOptions(tunnels=tunnels),
            sizes=sizes, clock=clock(),
        )  # fmt: skip
    # Paths and segments are of one interface.
    for hook, order in product(incoming if atomics and not several else (), Order):
        yield partial(PathProbe, compiler, interface, hook, hooks, PathOptions(order=order))
    for hook, options, names in product(incoming, _MONITORS, (BUILT_IN[::2], BUILT_IN[1::2])):
        yield partial(_monitor, compiler, interface, hooks, replace(options, ingress=hook), names)
    for hook, inside in product(incoming, (False, True)):
        yield partial(
            RingProbe, compiler, interface, hook, hooks, RingOptions("1MiB", tunnels=inside)
        )
    yield partial(NamesProbe.of, compiler, hooks, names_config(interface.name))
    segment = SegmentOptions("key")
    if not several:
        yield partial(
            SegmentProbe.of, compiler, hooks, segment_config(interface.name, segment), segment
        )
    yield lambda: drops.prepare(compiler, hooks, interface, 1.0)()
    yield partial(Holders, compiler)
    yield partial(SocketEvents.compile, compiler, SOURCE.read_text(encoding="utf-8"))


def _monitor(
    compiler: Compiler, interface: Interface, hooks: Hooks, options: MonitorOptions,
    names: Sequence[str],
) -> _Closable:  # fmt: skip
    """Start the parts of a monitor, and behind it some applications; only the monitor stays."""
    monitor = MonitorProbe(compiler, interface, hooks, options)
    outgoing.compile_source(compiler, interface, options).close()
    if options.input is Input.REGULAR:
        for hook in (monitor.points()["ingress"].hook, Hook.TC_EGRESS):
            actions.compile_source(
                compiler, interface, hook, options.tunnels is not Tunnels.OUTER
            ).close()
    for name in names:
        if options.input is not Input.TELEMETRY or name != _REGULAR_ONLY:
            ApplicationProbe.of(compiler, hooks, catalog.built_in(name, interface.name)).close()
    return monitor


if __name__ == "__main__":
    make(Path(sys.argv[1]) if sys.argv[1:] else BUNDLED, *map(int, sys.argv[2:]))
