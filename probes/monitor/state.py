"""Names of the monitor and its tables, and policies' states; imported without numpy."""

from __future__ import annotations

from enum import IntEnum

PROBE = "monitor"
"""Name of the monitor's probe."""
METRICS_TABLE = "metrics"
POLICIES_TABLE = "policies"
TRIGGERS_TABLE = "triggers"
"""Names of its three tables: `Snapshot.metric`."""
MAX_POLICIES = 40
"""Policies and their conditions share 64 selections, and a replacement needs a spare one."""


class PolicyState(IntEnum):
    """State of a policy. Its applications run in ACTIVE and HOLD only."""

    OFF = 0
    """Only an operator activates it."""
    ARMED = 1
    """Its condition is evaluated after each window."""
    ACTIVE = 2
    HOLD = 3
    """Its reason is over, but the minimum time is not."""
    COOLDOWN = 4
    """It was active; its condition is not evaluated for a while."""

    @property
    def runs(self) -> bool:
        """Whether its applications run."""
        return self in (PolicyState.ACTIVE, PolicyState.HOLD)

    @property
    def label(self) -> str:
        """As an operator reads it: `cool-down`."""
        return "cool-down" if self is PolicyState.COOLDOWN else self.name.lower()


def phase_of(before: int, after: int) -> str:
    """Return `begin` or `end`, if a change of state begins or ends a policy's applications."""
    was, runs = PolicyState(before).runs, PolicyState(after).runs
    return "" if was == runs else "begin" if runs else "end"
