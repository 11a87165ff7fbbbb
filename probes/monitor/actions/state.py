"""The state of a policy's action, as front ends see it; imported without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ActionState(StrEnum):
    """State of a policy's action."""

    WAITS = "waits"
    """Its policy is not active."""
    DRY = "dry run"
    """It counts the packets that it would act on."""
    ACTS = "acts"
    ENDED = "ended"
    """Its policy is active, and its time, its share or an operator ended it."""


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """A policy's action, as front ends see it. Counts are since it last began."""

    state: ActionState
    dry: bool
    """Whether it only counts: its text says so, or the run lacks the permission."""
    cause: str
    """Why it ended, in words; empty before."""
    until_utc_ns: int
    """Latest end of an action that runs; otherwise 0."""
    packets: int
    """Dropped or mirrored; in a dry run, those that would have been."""
    bytes: int
    spared: int
    """Selected packets of this host's control connections, which passed."""
    failed: int
    """Packets that could not be mirrored."""
    share: float
    """Of the packets of the last window, 0 to 1."""
