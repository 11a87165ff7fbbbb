"""What one look of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a thing is, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Worse than it could be, or not known; monitoring goes on without."""
    MISSING = "missing"
    """A part of monitoring will not work."""
    FATAL = "fatal"
    """Nothing can be monitored."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """A thing that monitoring uses, and how it is here."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    """What to do about it, in one line; empty where there is nothing."""
