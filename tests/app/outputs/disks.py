"""Small disks, for tests of a disk that is full."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBC = ct.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_READ_ONLY, _AGAIN = 1, 32


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of `size` at a directory, which may be new."""
    place.mkdir(exist_ok=True)
    assert LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", 0, f"size={size}".encode()) == 0
    try:
        yield place
    finally:
        # Lazily: a test that failed may have a file open.
        LIBC.umount2(bytes(place), _MNT_DETACH)


def remount(place: Path, *, read_only: bool) -> None:
    """Let a disk be only read, or written, too. A file that is open for writing prevents it."""
    flags = _AGAIN | (_READ_ONLY if read_only else 0)
    assert LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", flags, None) == 0
