"""The built-in probes: an entry each, by which `Controller.start` starts one on an interface.

Another probe needs an entry and a class. If its snapshots have a schema, as a user's metrics do,
files and the API have its tables without further code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe, has_wide_keys
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from probes.life import LiveProbe
from probes.memory_limit import flow_share, path_share, refuse_over, size_text
from probes.monitor.options import MonitorOptions
from probes.monitor.state import PROBE
from probes.path.options import PathOptions
from probes.poller import Publish
from probes.snapshot import Event
from probes.switches import Switch
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.monitor.probe import MonitorProbe
    from probes.path.probe import PathProbe
    from probes.ring.options import RingOptions
    from probes.ring.probe import RingProbe
    from probes.segment.options import SegmentOptions
    from probes.segment.probe import SegmentProbe

P = TypeVar("P", bound=LiveProbe[Any])
O = TypeVar("O")  # noqa: E741 - options


@dataclass(frozen=True, slots=True)
class ProbeHost:
    """Services of a controller for a probe that it starts."""

    compiler: Compiler
    hooks: Hooks
    memory_limit: int
    """Bytes of kernel memory that the maps of all probes may take."""
    memory_used: int
    """Bytes that they take now."""
    publish: Publish


@dataclass(frozen=True, slots=True)
class BuiltinEntry(Generic[P, O]):
    """One built-in probe, and how to start it."""

    name: str
    prepare: Callable[[ProbeHost, Interface, O], Callable[[], P]]
    """Check options and memory, and return a function that makes the probe on its hooks.

    The controller calls that function again if the driver refuses native XDP.
    """
    passes_all: bool = False
    """Whether its own programs pass every packet, so that an edited one that does not is a cut."""


def _prepare_flow(
    host: ProbeHost, interface: Interface, options: FlowOptions
) -> Callable[[], FlowProbe]:
    memory, free = flow_share(host.memory_limit), host.memory_limit - host.memory_used
    if free < memory:
        least = TableSizes.least().memory
        refuse_over(host.memory_limit, host.memory_used, least, FlowProbe.name)
        memory = free
    wide = has_wide_keys(interface, Tunnels(options.tunnels))
    sizes = TableSizes.within(memory, wide=wide)
    text = f"the tables take {sizes.summary} (--memory: {size_text(host.memory_limit)})"
    host.publish(Event.now("info", FlowProbe.name, text))

    def make() -> FlowProbe:
        ingress = host.hooks.choose(interface, options.hook).hook
        where = ((ingress, FlowDirection.INGRESS), (Hook.TC_EGRESS, FlowDirection.EGRESS))
        return FlowProbe(host.compiler, interface, where, host.hooks, options, sizes, memory=memory)

    return make


def _prepare_path(
    host: ProbeHost, interface: Interface, options: PathOptions
) -> Callable[[], PathProbe]:
    from probes.path.probe import PathProbe
    from probes.path.programs import memory_of

    memory = path_share(host.memory_limit)
    refuse_over(host.memory_limit, host.memory_used, memory_of(options, memory), PathProbe.name)

    def make() -> PathProbe:
        hook = host.hooks.choose(interface, options.ingress).hook
        return PathProbe(host.compiler, interface, hook, host.hooks, options, memory=memory)

    return make


def _prepare_monitor(
    host: ProbeHost, interface: Interface, options: MonitorOptions
) -> Callable[[], MonitorProbe]:
    from probes.monitor.probe import MonitorProbe

    refuse_over(host.memory_limit, host.memory_used, options.memory, PROBE)
    return lambda: MonitorProbe(host.compiler, interface, host.hooks, options)


def _prepare_ring(
    host: ProbeHost, interface: Interface, options: RingOptions
) -> Callable[[], RingProbe]:
    from probes.ring.probe import RingProbe

    options.check()
    refuse_over(host.memory_limit, host.memory_used, options.memory, RING_PROBE.name)

    def make() -> RingProbe:
        ingress = host.hooks.choose(interface, None).hook
        return RingProbe(host.compiler, interface, ingress, host.hooks, options)

    return make


def _prepare_segment(
    host: ProbeHost, interface: Interface, options: SegmentOptions
) -> Callable[[], SegmentProbe]:
    from probes.segment.probe import MEMORY, prepare

    refuse_over(host.memory_limit, host.memory_used, MEMORY, SEGMENT_PROBE.name)
    return prepare(host.compiler, host.hooks, interface.name, options)


FLOW_PROBE = BuiltinEntry("flow", _prepare_flow, passes_all=True)
PATH_PROBE = BuiltinEntry("path", _prepare_path)
MONITOR_PROBE = BuiltinEntry(PROBE, _prepare_monitor)
RING_PROBE = BuiltinEntry("ring", _prepare_ring, passes_all=True)
SEGMENT_PROBE = BuiltinEntry("segment", _prepare_segment, passes_all=True)


def optional(switch: Switch) -> BuiltinEntry[LiveProbe[Any], float]:
    """Return the entry of an optional probe; its option is the length of a window."""
    module = switch.load()

    def prepare(
        host: ProbeHost, interface: Interface, interval: float
    ) -> Callable[[], LiveProbe[Any]]:
        refuse_over(host.memory_limit, host.memory_used, module.MEMORY, switch.name)
        make = module.prepare(host.compiler, host.hooks, interface, interval)
        return cast("Callable[[], LiveProbe[Any]]", make)

    return BuiltinEntry(switch.name, prepare, switch.passes_all)
