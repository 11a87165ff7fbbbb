"""Waiting until no CPU runs a program that was just swapped out.

A swap is one write, but a packet may still be inside the old program. If its maps are read or
emptied before that packet has left, its count is lost or doubled.

So real-time threads visit the CPUs, without the GIL and with a deadline. Each visitor is a thread
of libc alone: the kernel places it on one CPU, it returns from a trivial function there, and it
ends. No visitor runs Python code, so a visitor that waits for its CPU neither holds the GIL nor
waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import functools
import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpf.abi import MapType
from bpf.machine import LIBC, online_cpus, reserved_cpus, system_calls
from bpf.syscall import MapSpec, map_create, map_update, opened

_BRIEF = ct.PyDLL(None)
"""libc for calls that never wait: these keep the GIL, because to get it back may take 5 ms."""
_ENTRY = ct.cast(LIBC.getpid, ct.c_void_p)
"""Function that a visitor thread runs. Any short one will do: that it runs is the proof."""
_EXPLICIT_SCHED = 1
_ATTRIBUTES_SIZE = 128
"""Bytes; more than any machine's pthread_attr_t."""
_STACK_SIZE = 256 << 10
_PRIORITY = 20
"""Ahead of every ordinary task, behind most real-time applications."""


class _Timespec(ct.Structure):
    _fields_ = (("seconds", ct.c_long), ("nanoseconds", ct.c_long))


def visit(cpus: Sequence[int], seconds: float) -> bool:
    """Have a thread scheduled on each CPU; returns whether all were within `seconds`.

    Also returns False if the kernel refuses a visitor: without CAP_SYS_NICE, or for a CPU that is
    offline or outside the cpuset. No visitor stays behind. The caller's own policy and affinity
    never change.
    """
    visitors: dict[int, ct.c_ulong] = {}
    for cpu in cpus:
        thread = ct.c_ulong()
        if _BRIEF.pthread_create(ct.byref(thread), _attributes(cpu), _ENTRY, None):
            break
        visitors[cpu] = thread
    late = _join(visitors, time.monotonic_ns() + round(seconds * 1e9))
    if late:
        _recall(late, visitors.keys() - late.keys())
    return len(visitors) == len(cpus) and not late


@functools.cache
def _attributes(cpu: int) -> ct.Array[ct.c_char]:
    """A pthread_attr_t of a visitor: bound to the CPU, SCHED_FIFO."""
    attributes = ct.create_string_buffer(_ATTRIBUTES_SIZE)
    mask = _mask((cpu,))
    priority = ct.c_int(_PRIORITY)
    _BRIEF.pthread_attr_init(attributes)
    _BRIEF.pthread_attr_setstacksize(attributes, ct.c_size_t(_STACK_SIZE))
    _BRIEF.pthread_attr_setinheritsched(attributes, _EXPLICIT_SCHED)
    _BRIEF.pthread_attr_setschedpolicy(attributes, os.SCHED_FIFO)
    _BRIEF.pthread_attr_setschedparam(attributes, ct.byref(priority))
    _BRIEF.pthread_attr_setaffinity_np(attributes, ct.c_size_t(len(mask)), mask)
    return attributes


def _mask(cpus: Iterable[int]) -> ct.Array[ct.c_char]:
    """A cpu_set_t."""
    bits = sum(1 << cpu for cpu in cpus)
    size = (bits.bit_length() + 63) // 64 * 8
    return ct.create_string_buffer(bits.to_bytes(size, "little"), size)


def _join(visitors: dict[int, ct.c_ulong], deadline_ns: int) -> dict[int, ct.c_ulong]:
    """Wait for the visitors until a time of CLOCK_MONOTONIC; returns those that have not ended."""
    deadline = _Timespec(*divmod(deadline_ns, 1_000_000_000))
    late = _not_ended(visitors)
    while late:
        cpu, thread = next(iter(late.items()))
        if LIBC.pthread_clockjoin_np(thread, None, time.CLOCK_MONOTONIC, ct.byref(deadline)):
            break
        del late[cpu]
        late = _not_ended(late)
    return _not_ended(late)


def _not_ended(visitors: dict[int, ct.c_ulong]) -> dict[int, ct.c_ulong]:
    return {
        cpu: thread for cpu, thread in visitors.items() if _BRIEF.pthread_tryjoin_np(thread, None)
    }


def _recall(late: dict[int, ct.c_ulong], visited: Collection[int]) -> None:
    """Let late visitors end, on a CPU that is not taken if there is one."""
    affinity = os.sched_getaffinity(0)
    mask = _mask(visited or affinity)
    for thread in late.values():
        LIBC.pthread_setaffinity_np(thread, ct.c_size_t(len(mask)), mask)
        LIBC.pthread_detach(thread)
    # If a visitor ended just now, libc has set the affinity of the calling thread instead: for the
    # kernel, thread id 0 is the caller.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, affinity)


_PATCHED = Path("/sys/kernel/realtime")
_MEMBARRIER_CMD_GLOBAL = 1
_DEADLINE_S = 0.005
"""Visits on a busy machine take less than half of it."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 64.0


@dataclass(frozen=True, slots=True)
class Grace:
    """How a grace period was awaited."""

    method: str
    """`visit`, `membarrier` or `map-in-map`."""
    seconds: float


class Pause:
    """Time without visits after one that failed: doubled by each failure, ended by a success.

    If a real-time thread owns a CPU, few windows wait for the deadline in vain.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._until = 0.0

    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def report(self, *, success: bool) -> None:
        """Say how a visit ended."""
        with self._lock:
            longer = min(2 * self._seconds, _LONGEST_PAUSE_S) or _FIRST_PAUSE_S
            self._seconds = 0.0 if success else longer
            self._until = time.monotonic() + self._seconds


_pause = Pause()


def wait(*, preempted: bool = False) -> Grace:
    """Return when every run of a packet program that had begun before the call has ended.

    Packet programs run with bottom halves off, so nothing preempts them: a thread that was
    scheduled on a CPU proves that no older run is under way there. The visits take 50 us. If they
    are refused, late or no proof, the kernel's own RCU grace period is the proof for every
    CPU; it takes 10 ms. It is also the proof for programs of cgroups: they may be `preempted`.
    """
    started = time.perf_counter()
    method = "visit"
    if preempted or not _visit_every_cpu():
        method = "membarrier" if _membarrier() else "map-in-map"
        if method == "map-in-map":
            _update_map_in_map()
    return Grace(method, time.perf_counter() - started)


@functools.cache
def is_realtime() -> bool:
    """Whether the kernel is PREEMPT_RT, where packet programs are preempted."""
    # The file is of the patch set; mainline, since 6.12, only names it in the build's description.
    return "PREEMPT_RT" in os.uname().version or _PATCHED.exists()


def _visit_every_cpu() -> bool:
    """Visit each online CPU; False if it is refused, late or no proof.

    A CPU that is isolated or nohz_full is not disturbed. Packet programs may run there all the
    same, so with one of them online no CPU is visited: RCU vouches for all of them.
    """
    if is_realtime() or not _pause.is_over():
        return False
    online = online_cpus()
    if not reserved_cpus().isdisjoint(online):
        return False
    success = visit(online, _DEADLINE_S)
    _pause.report(success=success)
    return success


def _membarrier() -> bool:
    """A synchronize_rcu() from user space; refused where a CPU is nohz_full (membarrier(2))."""
    number = system_calls().membarrier
    return bool(LIBC.syscall(number, _MEMBARRIER_CMD_GLOBAL, 0, 0) == 0)


def _update_map_in_map() -> None:
    """The kernel ends an update of a map of maps with synchronize_rcu()."""
    spec = MapSpec("grace_outer", MapType.ARRAY_OF_MAPS, 4, 4, 1)
    with (
        opened(map_create(MapSpec("grace_inner", MapType.ARRAY, 4, 4, 1))) as inner,
        opened(map_create(spec, inner_map_fd=inner)) as outer,
    ):
        map_update(outer, bytes(4), inner.to_bytes(4, "little"))
