"""CPUs of this machine, by the lists of sysfs (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

import functools


def possible_cpus() -> int:
    """Number of possible CPUs: the number of values of a per-CPU map's entry."""
    return _cpu_list("possible")[-1] + 1


def online_cpus() -> list[int]:
    """Return the CPUs that can run a program now."""
    return _cpu_list("online")


def numbered_cpus() -> int:
    """Return the highest number of an online CPU plus one: the length of an array by CPU."""
    return online_cpus()[-1] + 1


@functools.cache
def reserved_cpus() -> frozenset[int]:
    """Return the CPUs that boot parameters protect from interruption: isolcpus and nohz_full."""
    return frozenset(_cpu_list("isolated") + _cpu_list("nohz_full"))


def _cpu_list(kind: str) -> list[int]:
    """Parse a list such as `0-3,8`, ascending; empty if the kernel has no such file."""
    try:
        with open(f"/sys/devices/system/cpu/{kind}", encoding="ascii") as file:
            text = file.read().strip()
    except FileNotFoundError:
        return []
    cpus: list[int] = []
    # Without nohz_full, some kernels write "(null)".
    for part in filter(None, text.replace("(null)", "").split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
