"""Small disks, for tests of a disk that is full."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBC = ct.CDLL(None, use_errno=True)
_MNT_DETACH = 2


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of `size` at a new directory."""
    place.mkdir()
    assert LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", 0, f"size={size}".encode()) == 0
    try:
        yield place
    finally:
        # Lazily: a test that failed may have a file open.
        LIBC.umount2(bytes(place), _MNT_DETACH)
