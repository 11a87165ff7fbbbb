"""Checks of privileges, kernel settings, the compiler, kernel features and the cost of a packet.

Features are tried. Trials on an interface use a new namespace.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from app.lab import netns
from app.run.monitor import policies_of
from bpf import features, requirements
from bpf.abi import ProgType
from bpf.attach import interface, order
from bpf.attach.attachment import Hook, attach
from bpf.attach.interface import Interface
from bpf.compiler import Compiler, client
from bpf.compiler.store import BUNDLED
from bpf.errors import ProbedeckError, UsageError
from bpf.machine import lockdown, reserved_cpus
from bpf.maps.kinds import unlock
from bpf.programs import grace
from bpf.programs.trial import cost, floor_ns
from bpf.quantities import duration, percent, si
from bpf.requirements import (
    NOT_ALLOWED,
    OPTIONAL,
    HostCheck,
    Status,
    fatal,
    install,
    missing,
    note,
    ok,
    trial,
)
from bpf.syscall import enable_run_time_stats, opened, prog_fd_by_id, prog_info
from probes import memory_limit as memory
from probes.flow.clock import flow_clock
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from probes.monitor.options import MonitorOptions
from probes.monitor.probe import MonitorProbe
from probes.path.options import PathOptions
from probes.path.probe import PathProbe

UAPI_HEADER = Path("/usr/include/linux/bpf.h")
_TRIAL = """
#include <uapi/linux/bpf.h>
BPF_HASH(seen, u32, u64);
int trial(struct xdp_md *ctx)
{
    seen.increment(0);
    return XDP_PASS;
}
"""


def privileges() -> Iterator[HostCheck]:
    """Check the requirements of every run, and privileges that it can do without."""
    yield from (required := list(requirements.requirements()))
    held = features.capabilities()
    for capability in dict.fromkeys(each.capability for each in OPTIONAL):
        if capability.name in (check.name for check in required):
            continue  # A kernel before 5.8 needs CAP_SYS_ADMIN.
        if capability in held:
            yield ok(capability.name, "held")
        else:
            lost = "; ".join(each.without for each in OPTIONAL if each.capability is capability)
            yield note(capability.name, f"not held: {lost}", requirements.get(capability))


def kernel() -> Iterator[HostCheck]:
    """Check the settings of the kernel."""
    system = os.uname()
    yield ok("kernel", f"{system.release} {system.machine}")
    is_mounted = " bpf " in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    yield ok("bpffs", "mounted" if is_mounted else "not mounted, and not needed: nothing is pinned")
    if Path("/sys/kernel/btf/vmlinux").exists():
        yield ok("BTF", "/sys/kernel/btf/vmlinux")
    else:
        remedy = "a kernel with CONFIG_DEBUG_INFO_BTF has it"
        yield note("BTF", "none; packet probes do without", remedy)
    yield _jit()
    yield _lockdown()
    if grace.is_realtime():
        yield note("PREEMPT_RT", "yes: a swap waits 10 ms, not 50 us")
    else:
        yield ok("PREEMPT_RT", "no")
    yield _unprivileged()


def compiler() -> Iterator[HostCheck]:
    """Check the stored programs, the headers and the compile helper: compile a small program.

    With stored programs, only sources of the user and filters need a compiler. If this process can
    load no map, which compiling does, only import bcc.
    """
    stored = len(os.listdir(BUNDLED)) if BUNDLED.is_dir() else 0
    lacks: Callable[..., HostCheck] = missing if stored else fatal
    if stored:
        yield ok("stored programs", f"{stored}: built-in probes start without a compiler")
    else:
        yield note("stored programs", "none: the first start of each built-in probe compiles")
    if UAPI_HEADER.exists():
        yield ok("UAPI headers", str(UAPI_HEADER))
    else:
        yield lacks("UAPI headers", f"no {UAPI_HEADER}", install("headers"))
    name = "bcc and LLVM"
    remedy = install("bcc", "headers")
    if why := client.missing():
        yield lacks(name, f"{why}: no new or edited source compiles", remedy)
        return
    started = time.perf_counter()
    try:
        if requirements.try_bpf().status is Status.OK:
            with Compiler(stores=()) as helper:
                helper.compile(_TRIAL, ProgType.XDP, name="trial.c").close()
                unconfined = helper.unconfined()
        else:
            subprocess.run(
                [client.SYSTEM_PYTHON, "-I", "-c", "import bcc"], capture_output=True, check=True
            )
            yield note(name, "installed; compiling needs the privileges above")
            return
    except ProbedeckError as error:
        yield lacks(name, error.message, error.hint or remedy)
        return
    except (OSError, subprocess.CalledProcessError) as error:
        yield lacks(name, f"the compile helper does not start: {error}", remedy)
        return
    seconds = time.perf_counter() - started
    yield ok(name, f"a trial compiles, {duration(seconds)} with the helper's start")
    if unconfined:
        detail = f"none ({unconfined}): the API takes no sources by TCP"
        remedy = "allow mounts in the container, or use a kernel with Landlock (5.13)"
        yield note("confinement", detail, remedy)
    else:
        yield ok("confinement", "sees no files but libraries and headers")


def _jit() -> HostCheck:
    try:
        is_on = features.jit_works()
    except OSError:
        return note("JIT", "not tried: no program can be loaded")
    if is_on:
        return ok("JIT", "on")
    detail = "off: programs are interpreted, several times slower"
    return note("JIT", detail, "sysctl -w net.core.bpf_jit_enable=1")


def _lockdown() -> HostCheck:
    mode = lockdown()
    if mode == "confidentiality":
        detail = "confidentiality: packets can be watched, kernel memory can't"
        return note("lockdown", detail, "boot with lockdown=integrity where a probe needs more")
    return ok("lockdown", mode or "none seen")


def _unprivileged() -> HostCheck:
    name = "unprivileged bpf"
    try:
        value = int(Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text(encoding="ascii"))
    except OSError:
        return ok(name, "this kernel does not say")
    if value == 0:
        remedy = "sysctl -w kernel.unprivileged_bpf_disabled=2; nothing here needs it"
        return note(name, "open to every user", remedy)
    return ok(name, f"closed (kernel.unprivileged_bpf_disabled = {value})")


_MILLISECOND_NS = 1_000_000


def try_features() -> Iterator[HostCheck]:
    """Yield a check for each feature."""
    yield from _attachments()
    untraced = "paths are not traced without"
    entries, batches = "drained entry by entry, slower", "drained in batches, slower"
    yield trial("atomic exchange", features.try_atomic_exchange, untraced, "5.12 (arm64: 5.18)")
    yield trial("batch operations", features.try_batch, entries, "5.6")
    yield trial("in-kernel drain", features.try_kernel_drain, batches, "5.14")
    yield _flow_clock()
    yield _memory()
    yield _statistics()
    yield _grace()


def _attachments() -> Iterator[HostCheck]:
    """Attach to `lo` of a new namespace: no real interface changes."""
    names = {Hook.XDP: "XDP bpf_link", Hook.TC_EGRESS: "TCX bpf_link"}
    try:
        namespace = netns.fresh()
    except OSError as error:
        for name in names.values():
            yield note(name, f"not tried in a namespace: {_reason(error)}")
        return
    try:
        for hook, name in names.items():
            with netns.inside(namespace):
                check = _attach(name, hook)
            yield check
    finally:
        os.close(namespace)


def _attach(name: str, hook: Hook) -> HostCheck:
    try:
        program = features.load_passing(hook)
    except OSError as error:
        if error.errno in NOT_ALLOWED:
            return note(name, "not tried: no program can be loaded")
        return _unattachable(name, hook, f"no such programs ({error.strerror})")
    try:
        attachment = attach(hook, program, interface.find("lo"))
    except ProbedeckError as error:
        return _unattachable(name, hook, error.message)
    finally:
        os.close(program)
    attachment.close()
    if attachment.mode in ("native", "generic", "tcx"):
        return ok(name, "works")
    detail = f"none; {attachment.mode} is used, removed at the end or next start"
    return note(name, detail, "kernel 6.6 has it")


def _unattachable(name: str, hook: Hook, reason: str) -> HostCheck:
    """Return the failure of a hook. Only TC counts egress; TC replaces XDP for ingress."""
    if hook is Hook.XDP:
        return missing(name, reason, "--ingress auto counts at TC")
    return fatal(name, reason, "a kernel with CONFIG_NET_CLS_BPF and CONFIG_BPF_JIT")


def _flow_clock() -> HostCheck:
    name = "clock of flows"
    try:
        with closing(flow_clock()) as clock:
            detail = f"exact to {duration(clock.error_ns / 1e9)}"
    except OSError:
        return note(name, "not tried: no program can be loaded")
    if clock.error_ns < _MILLISECOND_NS:
        return ok(name, detail)
    return note(name, detail, "kernel 5.15 without PREEMPT_RT has timers of programs")


def _statistics() -> HostCheck:
    name = "BPF statistics"
    try:
        features.try_statistics()
    except OSError as error:
        remedy = "run with CAP_SYS_ADMIN, or sysctl -w kernel.bpf_stats_enabled=1"
        return missing(name, f"{_reason(error)}: no cost of probes", remedy)
    return ok(name, "works")


def _memory() -> HostCheck:
    """Create a map as large as all flow tables of a run together."""
    name, limit = "kernel memory", memory.default_limit()
    try:
        sizes = TableSizes.within(memory.flow_share(limit))
    except UsageError as error:
        return fatal(name, error.message, error.hint)
    try:
        features.try_bpf()
    except OSError:
        return note(name, "not tried: no map can be made")
    unlock()
    try:
        features.try_memory(sizes.memory)
    except OSError as error:
        needs = f"{memory.size_text(sizes.memory)} of flow tables"
        remedy = "ulimit -l unlimited, or LimitMEMLOCK=infinity in a unit; or a smaller --memory"
        return fatal(name, f"{_reason(error)} for {needs}", remedy)
    return ok(name, f"flow tables take {sizes.summary} (--memory: {memory.size_text(limit)})")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0)


def _grace() -> HostCheck:
    try:
        waited = grace.wait()
    except OSError as error:
        return note("grace period", f"not tried: {error.strerror}")
    took = f"{duration(waited.seconds)} by {waited.method}"
    if waited.method == "visit":
        return ok("grace period", took)
    reserved = sorted(reserved_cpus())
    why = f"; isolated or nohz_full: {len(reserved)} CPUs" if reserved else ""
    return note("grace period", f"{took}, slower than by visit{why}")


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


def cost_of(path: str) -> Iterable[HostCheck]:
    """Measure each policy of a file. Raises UsageError for its mistakes."""
    found, said = policies_of(path, (), ())

    def checks() -> Iterable[HostCheck]:
        from app.lab.policy_cost import cost_texts

        for name, text in cost_texts(found.policies, MonitorOptions(**said)).items():
            yield ok(name, text)

    return checks()
