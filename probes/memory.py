"""The limit of kernel memory that the maps of all probes share."""

from __future__ import annotations

import os
import re

from bpf.errors import UsageError
from bpf.syscall import numbered_cpus

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_USUAL = 256 << 20
_PER_CPU = 2 << 20
_OF_RAM = 8
_FLOWS_SHARE = (3, 4)


def parse(text: str) -> int:
    """Bytes of a size such as `256M`, `1.5G` or `64MiB`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is no size", hint="write a number with K, M or G, such as 256M")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def default_limit() -> int:
    """Bytes: 256 MiB, more from 128 CPUs on, and at most an eighth of this machine's RAM."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(_USUAL, _PER_CPU * numbered_cpus()), ram // _OF_RAM)


def flow_share(limit: int) -> int:
    """Bytes that the flow tables may take; the rest is for the other probes."""
    part, whole = _FLOWS_SHARE
    return limit * part // whole


def shown(size: int) -> str:
    """A size for an operator, rounded up: `105 MiB`."""
    return f"{-(-size >> 20)} MiB"
