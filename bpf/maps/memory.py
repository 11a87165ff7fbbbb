"""Kernel memory of maps: how much this process holds, and how much it may lock on old kernels."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def held_maps() -> dict[int, int]:
    """Bytes of each map that this process holds by a descriptor or a mapping, by the map's id."""
    maps: dict[int, int] = {}
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found = fields(entry.read_text(encoding="ascii"))
            if "map_id" in found:
                maps[int(found["map_id"])] = int(found.get("memlock", 0))
    return maps


def fields(fdinfo: str) -> dict[str, str]:
    """Return the lines `label: value` of a file of /proc/PID/fdinfo."""
    return dict(line.split(":", 1) for line in fdinfo.splitlines() if ":" in line)


def map_memory(fd: int) -> int:
    """Bytes of kernel memory that a map takes: `memlock` of its fdinfo."""
    text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    return int(fields(text).get("memlock", 0))


def unlock() -> None:
    """Lift RLIMIT_MEMLOCK, against which kernels before 5.11 count maps and programs.

    Without CAP_SYS_RESOURCE only up to the hard limit: `probedeck doctor` says if that is too low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limits in (_UNLIMITED, (hard, hard)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
            return
