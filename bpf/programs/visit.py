"""Short visits to CPUs by real-time threads, without the GIL and with a deadline.

Each visitor is a thread of libc alone: the kernel places it on one CPU, it returns from a trivial
function there, and it ends. No visitor runs Python code, so a visitor that waits for its CPU
neither holds the GIL nor waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import functools
import os
import time
from collections.abc import Collection, Iterable, Sequence

_LIBC = ct.CDLL(None, use_errno=True)
_BRIEF = ct.PyDLL(None)
"""libc for calls that never wait: these keep the GIL, because to get it back may take 5 ms."""
_ENTRY = ct.cast(_LIBC.getpid, ct.c_void_p)
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
        if _LIBC.pthread_clockjoin_np(thread, None, time.CLOCK_MONOTONIC, ct.byref(deadline)):
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
        _LIBC.pthread_setaffinity_np(thread, ct.c_size_t(len(mask)), mask)
        _LIBC.pthread_detach(thread)
    # If a visitor ended just now, libc has set the affinity of the calling thread instead: for the
    # kernel, thread id 0 is the caller.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, affinity)
