"""This machine: its C library and system call numbers, and its CPUs.

sysfs has the lists of CPUs (Documentation/admin-guide/cputopology.rst).
"""

from __future__ import annotations

import ctypes as ct
import functools
import os
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from bpf.errors import KernelError, UsageError


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """Numbers of system calls for which libc has no function."""

    bpf: int
    membarrier: int
    setgroups: int
    """The calling thread's file-system user; libc's function changes all threads."""
    perf_event_open: int
    pidfd_getfd: int


_NUMBERS = {
    "x86_64": SystemCalls(321, 324, 116, 298, 438),
    "aarch64": SystemCalls(280, 283, 159, 241, 438),
}
LOCKDOWN = Path("/sys/kernel/security/lockdown")
LOCKED_DOWN = (
    "Linux is locked down (confidentiality): no program may read the kernel's memory; boot with"
    " lockdown=integrity"
)
_POINTER = struct.calcsize("P")
LIBC = ct.CDLL(None, use_errno=True)
LIBC.syscall.restype = ct.c_long
_PRCTL = LIBC.prctl
"""Looked up here: a child that was forked beside threads must not load anything."""
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
CLONE_NEWNET = 0x40000000


def lockdown() -> str:
    """Return the mode of kernel_lockdown(7): `none`, `integrity`, `confidentiality`; empty if
    the kernel has no lockdown."""
    try:  # `[none] integrity confidentiality`
        return LOCKDOWN.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def is_locked_down(log: str) -> bool:
    """Return whether the verifier refused a program because of `lockdown=confidentiality`."""
    return "helper bpf_probe_read" in log and lockdown() == "confidentiality"


def checked(result: int, call: str = "", path: str | None = None) -> int:
    """Return the result of a function of libc. Raises OSError if it is negative."""
    if result < 0:
        code = ct.get_errno()
        words = f"{call}: {os.strerror(code)}" if call else os.strerror(code)
        raise OSError(code, words, path)
    return result


def enter_network(fd: int) -> None:
    """Move the calling thread into the network namespace of a descriptor. Raises OSError."""
    checked(LIBC.setns(fd, CLONE_NEWNET), "setns")


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def wake_precisely() -> None:
    """Let the kernel add no slack to this thread's waits."""
    _PRCTL(_PR_SET_TIMERSLACK, 1)


@functools.cache
def system_calls() -> SystemCalls:
    """The numbers of this machine.

    Raises KernelError on any other machine: there the same numbers mean other system calls.
    """
    machine = os.uname().machine
    if machine in _NUMBERS and sys.byteorder == "little" and _POINTER == 8:
        return _NUMBERS[machine]
    raise KernelError(
        f"probedeck does not run on {8 * _POINTER}-bit {sys.byteorder}-endian {machine}",
        hint=f"it runs on 64-bit little-endian {' and '.join(_NUMBERS)}",
    )


def time_limit(variable: str, usual: float) -> float:
    """Return the seconds of a variable of the environment, by which slow machines set a limit.

    Raises UsageError unless it is a whole number from 1 to 3600.
    """
    text = os.environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and 1 <= int(text) <= 3600):
        raise UsageError(f"{variable}: {text!r} is no number of seconds", hint="1 to 3600")
    return float(text or usual)


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
