"""Waiting until no CPU runs a program that was just swapped out.

A swap is one write, but a packet that is inside the old program stays there. Reading or emptying
the old program's maps before it has left loses or doubles what it counts.
"""

from __future__ import annotations

import ctypes as ct
import os
import time
from dataclasses import dataclass

from bpf.abi import MapType
from bpf.syscall import MapSpec, map_create, map_update, online_cpus

_LIBC = ct.CDLL(None, use_errno=True)
_NR_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine, 324)
_MEMBARRIER_CMD_GLOBAL = 1


@dataclass(frozen=True, slots=True)
class Grace:
    """How a grace period was waited for."""

    method: str
    """`visit`, `membarrier` or `map-in-map`."""
    seconds: float


def wait() -> Grace:
    """Return when every run of a packet program that had begun before the call has ended.

    Packet programs run with bottom halves off, so they can't be preempted: to have been scheduled
    on a CPU is proof that none is under way there. That takes 50 us where the kernel would take
    10 ms for the same promise; it does not hold on PREEMPT_RT, nor where a CPU is closed to us.
    """
    started = time.perf_counter()
    method = "visit"
    if _is_realtime() or not _visit_every_cpu():
        method = "membarrier" if _membarrier() else "map-in-map"
        if method == "map-in-map":
            _update_map_in_map()
    return Grace(method, time.perf_counter() - started)


def _is_realtime() -> bool:
    return os.path.exists("/sys/kernel/realtime")


def _visit_every_cpu() -> bool:
    """Run this thread on each CPU in turn, ahead of every ordinary task."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    affinity = os.sched_getaffinity(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    except OSError:
        return False
    try:
        for cpu in online_cpus():
            os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    finally:
        os.sched_setaffinity(0, affinity)
        os.sched_setscheduler(0, policy, parameters)
    return True


def _membarrier() -> bool:
    """A synchronize_rcu() from user space; refused where a CPU is nohz_full (membarrier(2))."""
    return bool(_LIBC.syscall(_NR_MEMBARRIER, _MEMBARRIER_CMD_GLOBAL, 0, 0) == 0)


def _update_map_in_map() -> None:
    """The kernel ends an update of a map of maps with synchronize_rcu()."""
    inner = map_create(MapSpec("grace_inner", MapType.ARRAY, 4, 4, 1))
    outer = map_create(MapSpec("grace_outer", MapType.ARRAY_OF_MAPS, 4, 4, 1), inner_map_fd=inner)
    try:
        map_update(outer, bytes(4), inner.to_bytes(4, "little"))
    finally:
        os.close(outer)
        os.close(inner)
