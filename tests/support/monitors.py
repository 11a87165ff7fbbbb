"""Windows of the monitor, made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, PROBE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Snapshot

END = 10**12
UTC = 1_767_225_600_123_456_789
CAUSE = 'flows = 812.4 (770 to 858) > 500, "certain"'
_VALUES = (20, 2000, 8, 800, 5, 500, 3, 300, 812.4467, 770.04, 858.96, 4, 3, 2, 1, 6, 5, 2, 1)


def table(name: str, rows: Any, window: int = 1) -> Snapshot:
    return Snapshot(
        PROBE, "eth0", window, 1, END - 10**9, END, UTC, rows, {}, 0.0, 50_000, 1_000_000,
        metric=name,
    )  # fmt: skip


def metrics(*, window: int = 1) -> Snapshot:
    """Of 20 packets 4 are neither TCP, UDP nor ICMP."""
    return table(METRICS_TABLE, np.array([_VALUES], METRIC), window)


def policies(*states: PolicyState, window: int = 1) -> Snapshot:
    """A row a state, of policies p0, p1, ...; the first one has nothing to compare."""
    rows = np.zeros(len(states), POLICY)
    rows["policy"] = [f"p{number}" for number in range(len(states))]
    rows["state"], rows["since_ns"] = states, END - 2 * 10**9
    rows["holds"], rows["certain"], rows["selected"] = 1, 0, 7
    for name, value in zip(
        ("value", "low", "high", "threshold"), (812.4, 770, 859, 500), strict=True
    ):
        rows[name] = value
        rows[name][:1] = np.nan
    return table(POLICIES_TABLE, rows, window)


def triggers(*after: PolicyState, window: int = 1) -> Snapshot:
    """A row a state that `flood` gets into, from the one before; the first one from ARMED."""
    rows = np.zeros(len(after), TRANSITION)
    rows["policy"], rows["cause"] = "flood", CAUSE
    rows["before"], rows["after"] = (PolicyState.ARMED, *after)[:-1], after
    rows["at_ns"] = END - 10**6
    rows["metrics"] = np.array(_VALUES, METRIC)
    return table(TRIGGERS_TABLE, rows, window)
