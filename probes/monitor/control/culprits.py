"""Finds the culprits of policies that begin, in the flow rows of the window that woke them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bpf.arrays import Rows
from bpf.attach.group import InterfaceGroup
from probes.flow.records import FLOW, NAME, FlowDirection
from probes.monitor.condition.terms import MetricTerm, parts
from probes.monitor.engine import PolicyStatus
from probes.monitor.finding import Finding, finding_of
from probes.monitor.options import Input
from probes.monitor.owners.text import is_of_owners
from probes.monitor.owners.window import OwnerWindow
from probes.monitor.probe import MonitorProbe
from probes.monitor.selected import OUT
from probes.snapshot import Snapshot

_TICK_NS = 4_000_000
"""Packets are dated at most so early."""
_DISTINCT = {"flows", "sources", "destinations", "ports", "protocols"}
"""Metrics that count distinct values: the culprit has most of the flows."""


class FlowWindows(Protocol):
    """The part of a controller that has the flow table."""

    def flow_windows(
        self, interface: str, start_ns: int, end_ns: int
    ) -> tuple[Sequence[Snapshot], str]:
        """Return the windows of the interface's flows that overlap a time (CLOCK_MONOTONIC), the
        oldest first. A phrase names the flows that they lack, or the reason for an empty array."""


class Culprits:
    """Makes the findings of policies that begin."""

    def __init__(self, host: FlowWindows, probe: MonitorProbe) -> None:
        self._host = host
        self._probe = probe

    def find(
        self, begun: Sequence[PolicyStatus], start_ns: int, end_ns: int
    ) -> Mapping[str, Finding]:
        """Return a finding for each policy by its name; the window's times are CLOCK_MONOTONIC."""
        if self._probe.options.input is Input.TELEMETRY:
            return _unknown(begun, "the flow table has no records of telemetry")
        windows, note = self._host.flow_windows(self._probe.interface.name, start_ns, end_ns)
        if not windows:
            return _unknown(begun, note)
        rows = np.concatenate([window.rows for window in windows], dtype=FLOW)
        rows = rows[rows["last_ns"] >= start_ns - _TICK_NS]
        if isinstance(group := self._probe.interface, InterfaceGroup):
            # The monitor counts by the direction of the hook: reverse flows of inside interfaces.
            inside = np.frombuffer(group.names, NAME)[np.frombuffer(group.inside, bool)]
            rows["direction"] ^= np.isin(rows["interface"], inside)
        seconds = sum(window.seconds for window in windows)
        lost = sum(window.lost.packets for window in windows)
        owners = self._probe.owners.look()
        return {
            status.policy.name: finding_for(status, rows, seconds, lost, note, owners)
            for status in begun
        }


def _unknown(begun: Sequence[PolicyStatus], why: str) -> Mapping[str, Finding]:
    return {status.policy.name: Finding(f"who is unknown: {why}") for status in begun}


def finding_for(
    status: PolicyStatus,
    rows: Rows[FLOW],
    seconds: float,
    lost: int = 0,
    note: str = "",
    owners: OwnerWindow | None = None,
) -> Finding:
    """Return the finding of a policy that has just begun, of rows of dtype FLOW (n,); see
    `finding_of`. `owners` are of the last window that they are known of."""
    suspects, by, direction = _asked(status)
    rows = rows[rows["direction"] == direction]
    try:
        if any(map(is_of_owners, suspects)):
            if owners is None:
                return Finding("who is unknown: owners of flows are not known")
            rows, suspects = rows[owners.passing(rows, suspects)], ()
        found = finding_of(
            rows, suspects, seconds=seconds, lost=lost, by=by, note=note, policy=status.policy.name
        )
        return replace(found, outgoing=direction is FlowDirection.EGRESS)
    except Exception as error:  # One policy's failure stops no other.
        return Finding(f"who is unknown: {error}")


def _asked(status: PolicyStatus) -> tuple[Sequence[str], str, FlowDirection]:
    """Return the filters of the flows that a policy is about, the unit of their shares, and the
    direction of the metric that decided."""
    policy = status.policy
    reasons = status.outcome.reasons if status.outcome and not status.forced else ()
    metrics = [
        term for reason in reasons for term in parts(reason.of.left) if isinstance(term, MetricTerm)
    ]
    compared = [metric.selection for metric in metrics if metric.selection][:1]
    suspects = (policy.suspects,) if policy.suspects else policy.select or compared
    deciding = metrics[0].name if metrics else ""
    outgoing = deciding.startswith(OUT)
    suspects = policy.without_trusted(suspects, "dst" if outgoing else "src")
    direction = FlowDirection.EGRESS if outgoing else FlowDirection.INGRESS
    if deciding.removeprefix(OUT) in _DISTINCT:
        return suspects, "flows", direction
    return suspects, "packets" if policy.suspects else "", direction
