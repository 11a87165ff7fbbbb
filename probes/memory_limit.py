"""The limit of kernel memory that the maps of all probes share."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path

from bpf.errors import UsageError
from bpf.machine import numbered_cpus

_LIMITS = {
    "": ("sys/fs/cgroup", "memory.max"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
"""Mount point of each version of cgroups, and its file of a limit, by the controllers of a line."""


def default_limit() -> int:
    """Bytes: `usual_limit`, or an eighth of the memory that this process may use."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(usual_limit(numbered_cpus()), min(ram, cgroup_limit()) // 8)


def cgroup_limit(root: Path = Path("/")) -> int:
    """Bytes: the smallest memory limit of this process's cgroup and of those above it.

    The kernel counts maps among the memory of a cgroup. `root` is the folder of the host's files.
    """
    least = sys.maxsize
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            top, name = _LIMITS.get(controllers, ("", ""))
            folder = root / top / path.lstrip("/")
            for each in (folder, *folder.parents):
                # ValueError: `max`. OSError: other controllers, above the mount, or outside of a
                # container.
                with suppress(OSError, ValueError):
                    least = min(least, int((each / name).read_text()))
    return least


def usual_limit(cpus: int) -> int:
    """Bytes: 1 GiB, and more from 512 CPUs on."""
    return max(1 << 30, (2 << 20) * cpus)


def flow_share(limit: int, cpus: int | None = None) -> int:
    """Return the bytes that the flow tables may take; `cpus` is by default the online CPUs."""
    cpus = numbered_cpus() if cpus is None else cpus
    # Larger flow tables gain nothing: tables that fill end their window early.
    return min(limit * 3 // 4, max(160 << 20, (3 << 19) * cpus))


def limit_for_flows(share: int) -> int:
    """Return the smallest limit that lets the flow tables take `share` bytes."""
    return math.ceil(share * 4 / 3)


def path_share(limit: int) -> int:
    """Bytes that path tracing's tables may take."""
    return limit // 8


def refuse_over(limit: int, used: int, needed: int, name: str) -> None:
    """Raise UsageError if a probe needs more than is left of the limit."""
    if needed > limit - used:
        raise UsageError(
            f"probe {name} needs {size_text(needed)} of kernel memory; {size_text(used)} of "
            f"{size_text(limit)} are in use",
            hint="remove a probe, or start with a larger --memory",
        )


def size_text(size: int) -> str:
    """A size for an operator, rounded up: `105 MiB`, `800 KiB`."""
    return f"{-(-size >> 20)} MiB" if size >= 10 << 20 else f"{-(-size >> 10)} KiB"
