"""CPU time of a run: of its process without the console, and of its programs in the kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from bpf.abi import ProgType
from bpf.programs.trial import floor_ns
from bpf.syscall import enable_run_time_stats, opened
from probes.hooks.interface_hook import InterfaceHook

_COLLECTORS = ("poll ", "output ", "health ", "hooks", "tables", "api", "budget")
"""How names of threads begin whose work returns with each window."""
_PER_THREAD, _SCHEDULED = 4, 2
"""Bits of a clock's number: CPUCLOCK_PERTHREAD, CPUCLOCK_SCHED (include/linux/posix-timers.h)."""
_SAMPLE_S = 0.05


class CollectorTime:
    """CPU seconds of this process without the console and without work by request.

    Threads of libc, such as the visitors of a grace period, belong to the collector. Compile
    helpers are other processes, and work by request.
    """

    def __init__(self, *, draws: bool) -> None:
        """`draws`: whether the main thread draws a console. Otherwise it writes tables."""
        self._draws = draws
        self._seen: dict[int, float] = {}
        self._others = 0.0
        self._lock = threading.Lock()
        self._began = 0.0
        self._began = self()

    def __call__(self) -> float:
        """Return the seconds since the start."""
        with self._lock:
            seen: dict[int, float] = {}
            for thread in threading.enumerate():
                if (number := thread.native_id) is None or self._collects(thread):
                    continue
                with suppress(OSError):  # It has ended.
                    seen[number] = _thread_seconds(number)
                    self._others += max(0.0, seen[number] - self._seen.get(number, 0.0))
            self._seen = seen
            return time.process_time() - self._others - self._began

    def _collects(self, thread: threading.Thread) -> bool:
        if thread is threading.main_thread():
            return not self._draws
        return thread.name.startswith(_COLLECTORS)


def _thread_seconds(number: int) -> float:
    """Return the CPU seconds of a thread of this process, by the clock of pthread_getcpuclockid."""
    return time.clock_gettime(~number << 3 | _PER_THREAD | _SCHEDULED)


class KernelTime:
    """The share of a core that the programs of hooks take, by the kernel's run-time statistics.

    They cover all programs of a chain, on the real packets. They are on for 50 ms at a time, as
    they cost each packet some 60 ns; their own part of the measured time is subtracted.
    """

    def __init__(self) -> None:
        """Raises OSError without the right to turn statistics on."""
        self._floor_ns = floor_ns(ProgType.SCHED_CLS, by_statistics=True)

    def share(self, hooks: Sequence[InterfaceHook]) -> float:
        """Measure for 50 ms. Raises OSError."""
        with opened(enable_run_time_stats()):
            began, before = time.monotonic_ns(), _totals(hooks)
            time.sleep(_SAMPLE_S)
            passed_ns, after = time.monotonic_ns() - began, _totals(hooks)
        spent = 0.0
        for number in before.keys() & after.keys():
            ns, runs = (now - then for now, then in zip(after[number], before[number], strict=True))
            spent += max(0.0, ns - runs * self._floor_ns)
        return spent / passed_ns


def _totals(hooks: Collection[InterfaceHook]) -> dict[int, tuple[int, int]]:
    """Return nanoseconds and runs of each hook's chain, by the id of its program."""
    infos = [hook.chain.info() for hook in hooks]
    return {info.id: (info.run_time_ns, info.run_count) for info in infos}
