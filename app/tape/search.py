"""Search with the regular expressions of tapes."""

from __future__ import annotations

import re
import signal
from typing import NoReturn

from bpf.errors import ProbedeckError

LONGEST = 1.0
"""Seconds of the longest search: `(a+)+b` may take years, and blocks even signals."""


def found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the text has the pattern. Main thread only. Raises ProbedeckError if it is slow."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        return pattern.search(text) is not None
    except TimeoutError:
        problem = f"the search took more than {LONGEST:g} s"
        raise ProbedeckError(problem, hint="the expression can match in too many ways") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(*_: object) -> NoReturn:
    raise TimeoutError
