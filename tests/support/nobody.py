"""A user without privileges, wherever the checkout is."""

from __future__ import annotations

import ctypes as ct
import os
import struct
import tempfile
from pathlib import Path

HELD = "HELD_CAPABILITIES"
"""Variable with the numbers of the capabilities that a process of `WarmRun` keeps."""
_LIBC = ct.CDLL(None, use_errno=True)
_NOBODY = 65534
_CAP_DAC_READ_SEARCH = 2
_CAP_SYS_ADMIN = 21
_PR_CAPBSET_DROP = 24
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522


def become_nobody(*capabilities: int) -> None:
    """Give up all other privileges but to read files: a checkout may be in root's own directory.

    For `preexec_fn` of a subprocess.
    """
    _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kept = {_CAP_DAC_READ_SEARCH, *capabilities}
    low, high = (sum(1 << each - at for each in kept if 0 <= each - at < 32) for at in (0, 32))
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", low, low, low, high, high, high)
    if _LIBC.capset(header, data):
        raise OSError(ct.get_errno(), "capset")
    for each in kept:
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, each, 0, 0)


def without_sys_admin() -> None:
    """Give up CAP_SYS_ADMIN; for `preexec_fn` of a subprocess."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    held = ct.create_string_buffer(24)
    _LIBC.capget(header, held)
    low, high = struct.unpack_from("I", held, 4)[0], struct.unpack_from("I", held, 16)[0]
    low &= ~(1 << _CAP_SYS_ADMIN)
    _LIBC.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)
    if _LIBC.capset(header, struct.pack("6I", low, low, 0, high, high, 0)):
        raise OSError(ct.get_errno(), "capset")


def let_others_reach(directory: Path) -> None:
    """Let every account enter a directory below the one for temporary files, and those above it."""
    top = Path(tempfile.gettempdir())
    while directory != top:
        directory.chmod(0o755)
        directory = directory.parent
