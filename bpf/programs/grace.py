"""Waiting until no CPU runs a program that was just swapped out.

A swap is one write, but a packet may still be inside the old program. If its maps are read or
emptied before that packet has left, its count is lost or doubled.
"""

from __future__ import annotations

import ctypes as ct
import functools
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bpf.abi import MapType
from bpf.cpus import online_cpus, reserved_cpus
from bpf.machine import system_calls
from bpf.programs.visit import visit
from bpf.syscall import MapSpec, map_create, map_update, opened

_LIBC = ct.CDLL(None, use_errno=True)
_BUILD = Path("/proc/sys/kernel/version")
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
    return "PREEMPT_RT" in _BUILD.read_text(encoding="utf-8") or _PATCHED.exists()


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
    return bool(_LIBC.syscall(number, _MEMBARRIER_CMD_GLOBAL, 0, 0) == 0)


def _update_map_in_map() -> None:
    """The kernel ends an update of a map of maps with synchronize_rcu()."""
    spec = MapSpec("grace_outer", MapType.ARRAY_OF_MAPS, 4, 4, 1)
    with (
        opened(map_create(MapSpec("grace_inner", MapType.ARRAY, 4, 4, 1))) as inner,
        opened(map_create(spec, inner_map_fd=inner)) as outer,
    ):
        map_update(outer, bytes(4), inner.to_bytes(4, "little"))
