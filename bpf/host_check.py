"""Results of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Status(StrEnum):
    """Result of a check, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Not the best, or unknown; monitoring works."""
    MISSING = "missing"
    """A part of monitoring does not work."""
    FATAL = "fatal"
    """Monitoring does not work."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of a check."""

    status: Status
    name: str
    detail: str
    remedy: str = ""
    """The remedy in one line, or empty."""


ok = partial(HostCheck, Status.OK)
note = partial(HostCheck, Status.NOTE)
missing = partial(HostCheck, Status.MISSING)
fatal = partial(HostCheck, Status.FATAL)
