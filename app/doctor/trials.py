"""Checks of kernel features, by trials. Trials on an interface use a new namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from app.lab import netns
from bpf import features
from bpf.attach import interface
from bpf.attach.attachment import Hook, attach
from bpf.errors import ProbedeckError, UsageError
from bpf.machine import reserved_cpus
from bpf.maps.kinds import unlock
from bpf.programs import grace
from bpf.quantities import duration
from bpf.requirements import NOT_ALLOWED, HostCheck, fatal, missing, note, ok, trial
from probes import memory_limit as memory
from probes.flow.clock import flow_clock
from probes.flow.sizes import TableSizes

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
