"""The open descriptors of the tests' process."""

from __future__ import annotations

import gc
import os


def open_fds() -> int:
    """Return the number of open descriptors, without the garbage of earlier tests.

    A shared compile helper that was idle for a minute ends, so there may be fewer after a test.
    """
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
