"""System call numbers of the supported machines."""

from __future__ import annotations

import functools
import os
import struct
import sys
from dataclasses import dataclass

from bpf.errors import KernelError, UsageError


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """Numbers of system calls for which libc has no function."""

    bpf: int
    membarrier: int
    setgroups: int
    """The calling thread's file-system user; libc's function changes all threads."""


_NUMBERS = {"x86_64": SystemCalls(321, 324, 116), "aarch64": SystemCalls(280, 283, 159)}
_POINTER = struct.calcsize("P")


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
