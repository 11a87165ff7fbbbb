"""The cost of counting a packet on this machine, in nanoseconds and in shares of a core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from bpf.abi import ProgType
from bpf.attach import order
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from bpf.programs.trial import cost, floor_ns
from bpf.quantities import percent, si
from bpf.requirements import HostCheck, note, ok
from bpf.syscall import enable_run_time_stats, opened, prog_fd_by_id, prog_info
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from probes.hooks import Hooks
from probes.monitor.options import MonitorOptions
from probes.monitor.probe import MonitorProbe
from probes.path.options import PathOptions
from probes.path.probe import PathProbe

_MPPS = 1e6
_LIVE_S = 1.0
_ROUNDS = 5


def packet_costs(interface: Interface) -> Iterator[HostCheck]:
    """Yield the cost of each hook's chain, with one probe after the other, and of live programs.

    Chains are tried on a test frame (BPF_PROG_TEST_RUN), and attached to nothing. Programs that are
    on the interface now are measured for a second on its packets, by the kernel's statistics.
    """
    try:
        yield from _tried(interface)
        yield from _live(interface)
    except (ProbedeckError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        yield note("cost", f"not measured: {reason}")


def _tried(real: Interface) -> Iterator[HostCheck]:
    interface = Interface("cost", 0, real.ethernet)
    hooks = Hooks(attach=lambda point: None)
    ingress = Hook.XDP if real.ethernet else Hook.TC_INGRESS
    where = [(ingress, FlowDirection.INGRESS), (Hook.TC_EGRESS, FlowDirection.EGRESS)]
    found: dict[Hook, tuple[int, float]] = {}
    with ExitStack() as stack:
        compiler = Compiler()
        stack.callback(compiler.close)
        for name in ("flows", "monitor", "paths"):
            if name == "flows":
                stack.callback(FlowProbe(compiler, interface, where, hooks).close)
            elif name == "monitor":
                options = MonitorOptions(ingress=ingress)
                stack.callback(MonitorProbe(compiler, interface, hooks, options).close)
            else:
                stack.callback(PathProbe(compiler, interface, ingress, hooks, PathOptions()).close)
            for point in hooks.in_use():
                if not isinstance(hook := point.hook, Hook):
                    continue
                programs, fd = len(point.chain), point.chain.fd
                ns = min(cost(fd, hook.prog_type) for _ in range(_ROUNDS))
                if programs > found.get(hook, (0, 0.0))[0]:
                    yield ok(name, f"{hook.value}: {_each(ns - found.get(hook, (0, 0.0))[1])}")
                    found[hook] = programs, ns
    for hook, (_, ns) in found.items():
        yield ok("together", f"{hook.value}: {_each(ns)}")


def _each(ns: float) -> str:
    ns = max(ns, 0.0)
    return f"{ns:.0f} ns a packet ({percent(ns * _MPPS / 1e9)} of a core at 1 Mpps)"


def _live(interface: Interface) -> Iterator[HostCheck]:
    """Yield the cost of each program that is on the interface now."""
    with opened(enable_run_time_stats()):
        before = _runs(interface)
        time.sleep(_LIVE_S)
        after = _runs(interface)
    floor = floor_ns(ProgType.SCHED_CLS, by_statistics=True)
    for (hook, name), (ns, runs) in after.items():
        ns_before, runs_before = before.get((hook, name), (ns, runs))
        count = runs - runs_before
        if count:
            each = max(0.0, (ns - ns_before) / count - floor)
            text = f"{name}: {each:.0f} ns a packet, {si(count / _LIVE_S)} packets/s"
        else:
            text = f"{name}: no packet in a second"
        yield ok(hook, f"live {text}")


def _runs(interface: Interface) -> dict[tuple[str, str], tuple[int, int]]:
    """Return nanoseconds and runs of each program, by hook and program."""
    found = {}
    for hook in (Hook.XDP, Hook.TC_INGRESS, Hook.TC_EGRESS):
        for program in order.on_hook(hook, interface.index):
            with suppress(OSError), opened(prog_fd_by_id(program.id)) as fd:
                info = prog_info(fd)
                if hook is Hook.XDP or not str(program).startswith("XDP"):
                    found[hook.value, str(program)] = info.run_time_ns, info.run_count
    return found
