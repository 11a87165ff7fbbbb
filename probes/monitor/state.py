"""Names of the monitor and its tables, and where a policy may stand; imported without numpy."""

from __future__ import annotations

from enum import IntEnum

PROBE = "monitor"
"""Name of the probe that is the monitor."""
METRICS_TABLE = "metrics"
POLICIES_TABLE = "policies"
TRIGGERS_TABLE = "triggers"
"""Names of its three tables: `Snapshot.metric`."""
MAX_POLICIES = 31
"""The router has one bit a policy in a 32-bit word, and needs a spare one to replace a policy."""


class PolicyState(IntEnum):
    """Where a policy stands. Its applications run in ACTIVE and HOLD, and in no other."""

    OFF = 0
    """Only an operator activates it."""
    ARMED = 1
    """Its condition is looked at after each window."""
    ACTIVE = 2
    HOLD = 3
    """Its reason is over, and it stays active until it has been so for the minimum time."""
    COOLDOWN = 4
    """It was active, and is not looked at for a while."""

    @property
    def runs(self) -> bool:
        """Whether its applications run."""
        return self in (PolicyState.ACTIVE, PolicyState.HOLD)

    @property
    def label(self) -> str:
        """As an operator reads it: `cool-down`."""
        return "cool-down" if self is PolicyState.COOLDOWN else self.name.lower()
