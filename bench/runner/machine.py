"""The machine of a run: its facts, and whether other work disturbs the measurements."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from statistics import median, quantiles

_MOST_LOAD = 0.3
"""Of each CPU, before the first measurement."""
_MOST_STEAL = 0.01
_MOST_SPREAD = 0.1
"""Between the first and the last tenth of the calibration loops, of their median."""
_LOOP = 100_000


def facts() -> dict[str, object]:
    """Return the facts of this machine, for the results."""
    cpu = re.search(r"^(?:model name|Model)\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.M)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _times() -> tuple[int, int]:
    """Return the time that other virtual machines stole, and all time, in ticks."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return int(fields[7]), sum(map(int, fields[:8]))


class Noise:
    """Watches the machine from now on."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0] / (os.cpu_count() or 1)
        self._begin = _times()
        self._loops: list[float] = []

    def calibrate(self) -> None:
        """Time a loop that takes the same time on a quiet machine."""
        started = time.perf_counter()
        for _ in range(_LOOP):
            pass
        self._loops.append(time.perf_counter() - started)

    def __str__(self) -> str:
        """Name the disturbances; empty if the machine is quiet."""
        stolen, ticks = (now - then for now, then in zip(_times(), self._begin, strict=True))
        found = []
        if self._load > _MOST_LOAD:
            found.append(f"load {self._load:.2f} a CPU before the run")
        if stolen > _MOST_STEAL * ticks:
            found.append(f"{stolen / ticks:.1%} of the time stolen by the host")
        if len(self._loops) > 1:
            tenths = quantiles(self._loops, n=10, method="inclusive")
            spread = (tenths[-1] - tenths[0]) / median(self._loops)
            if spread > _MOST_SPREAD:
                found.append(f"a constant loop's time spreads by {spread:.0%}")
        return ", ".join(found)
