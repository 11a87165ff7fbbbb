"""Processes that may not mount, or that miss files of the system: for `preexec_fn`."""

from __future__ import annotations

import ctypes as ct
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bpf.compiler import confinement

ROOT = Path(__file__).parents[3]
MULTIARCH = f"/usr/include/{platform.machine()}-linux-gnu"
_LIBC = ct.CDLL(None, use_errno=True)
_MAKE_CHAR = ct.c_uint64(1 << 6)
_MAX_LAYERS = 16


def has_landlock() -> bool:
    return bool(_LIBC.syscall(confinement.LANDLOCK_CREATE_RULESET, None, 0, 1) > 0)


def forbid_mounts() -> None:
    """As a container's AppArmor profile does: the kernel lets nobody under Landlock mount."""
    _stack(1)


def forbid_mounts_and_landlock() -> None:
    """As above, and no further Landlock rules either."""
    _stack(_MAX_LAYERS)


def hide(path: str) -> Callable[[], None]:
    """Hide a directory, in a mount namespace of the process."""
    return partial(_hide, path)


def run(script: str, before: Callable[[], None]) -> str:
    """Run `script` in a Python that can import the project, prepared by `before`."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=before,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def _stack(layers: int) -> None:
    _LIBC.prctl(confinement.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for _ in range(layers):
        size = ct.sizeof(_MAKE_CHAR)
        create = confinement.LANDLOCK_CREATE_RULESET
        ruleset = _LIBC.syscall(create, ct.byref(_MAKE_CHAR), size, 0)
        if _LIBC.syscall(confinement.LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise OSError(ct.get_errno(), "landlock_restrict_self")
        os.close(ruleset)


def _hide(path: str) -> None:
    private = confinement.MS_REC | confinement.MS_SLAVE
    if (
        _LIBC.unshare(confinement.CLONE_NEWNS)
        or _LIBC.mount(b"none", b"/", None, private, None)
        or _LIBC.mount(b"none", path.encode(), b"tmpfs", 0, None)
    ):
        raise OSError(ct.get_errno(), f"hide {path}")
