"""A user without privileges, wherever the checkout is."""

from __future__ import annotations

import ctypes as ct
import os
import struct

_LIBC = ct.CDLL(None, use_errno=True)
_NOBODY = 65534
_CAP_DAC_READ_SEARCH = 2
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522


def become_nobody() -> None:
    """Give up every privilege but to read files: a checkout may be in root's own directory.

    For `preexec_fn` of a subprocess.
    """
    _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kept = 1 << _CAP_DAC_READ_SEARCH
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", kept, kept, kept, 0, 0, 0)
    if _LIBC.capset(header, data):
        raise OSError(ct.get_errno(), "capset")
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0)
