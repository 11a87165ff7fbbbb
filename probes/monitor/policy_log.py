"""Transitions, states and failures of policies as rows of tables, and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from bpf.arrays import Array, Rows
from probes.monitor.actions.state import ActionInfo
from probes.monitor.engine import Engine, PolicyStatus, PolicyTransition
from probes.monitor.finding import Finding
from probes.monitor.info import PolicyInfo
from probes.monitor.records import METRIC, TRANSITION
from probes.monitor.state import POLICIES_TABLE, PROBE, TRIGGERS_TABLE, PolicyState
from probes.poller import UtcClock
from probes.snapshot import Event

_PARTS = ("source", "destination", "source_port", "port")
"""Parts of a finding that have columns for their number and for the largest."""


_CHANGES = {
    PolicyState.ACTIVE: "goes on",
    PolicyState.HOLD: "held",
    PolicyState.ARMED: "is armed again",
}
"""Words of changes that neither begin nor end."""


class PolicyLog:
    """Keeps what is published with the next window: new transitions and failures."""

    def __init__(self, engine: Engine, utc: UtcClock) -> None:
        self._engine = engine
        self._utc = utc
        self._transitions: list[tuple[PolicyTransition, Array, Finding | None]] = []
        """Transitions since the last window, each with the metrics of the window that caused it,
        and with a finding if the policy begins."""
        self._findings: dict[str, Finding] = {}
        """By policy, of its last begin."""
        self._selected: dict[str, int] = {}
        """Packets that each policy had selected by the end of the last window."""
        self._failed: set[str] = set()
        """Policies whose condition could not be evaluated after the last window."""

    def add(
        self,
        transitions: Iterable[PolicyTransition],
        row: Rows[METRIC],
        findings: Mapping[str, Finding] = MappingProxyType({}),
    ) -> None:
        """Note transitions; `row` has dtype METRIC, shape (); `findings` are by policy."""
        self._findings.update(findings)
        for each in transitions:
            if each.begins and each.policy not in findings:
                self._findings.pop(each.policy, None)
            self._transitions.append(
                (each, row, findings.get(each.policy) if each.begins else None)
            )

    def forget(self, name: str) -> None:
        """Forget the counts of a policy that was removed."""
        self._selected.pop(name, None)
        self._findings.pop(name, None)

    def tables(self, selected: Mapping[str, int], acted: Mapping[str, int]) -> dict[str, Array]:
        """Return the rows of policies (dtype POLICY) and, if there are new ones, of transitions.

        `selected`: packets of each policy up to now; the rows count only this window's packets.
        `acted`: packets of this window that a policy's action took, if it has one.
        """
        rows = self._engine.rows()
        names = [status.policy.name for status in self._engine.policies()]
        rows["selected"] = [selected[name] - self._selected.get(name, 0) for name in names]
        rows["acted"] = [acted.get(name, 0) for name in names]
        self._selected.update(selected)
        tables = {POLICIES_TABLE: rows}
        if self._transitions:
            tables[TRIGGERS_TABLE] = np.concatenate([_row(*each) for each in self._transitions])
        return tables

    def events(self) -> Sequence[Event]:
        """Return events of the transitions, which are forgotten then, and of new failures."""
        found = [self._event(each, finding) for each, _, finding in self._transitions]
        self._transitions.clear()
        failures = {status.policy.name: status.failure for status in self._engine.policies()}
        for name, why in failures.items():
            if why and name not in self._failed:
                text = f"policy {name} has a failing condition: {why}"
                found.append(Event.now("error", PROBE, text))
        self._failed = {name for name, why in failures.items() if why}
        return found

    def info(self, status: PolicyStatus, selected: int, action: ActionInfo | None) -> PolicyInfo:
        """Return a policy's status with times in UTC; `selected`: its packets up to now."""
        until = status.until_ns
        return PolicyInfo(
            status.policy,
            status.state,
            self._utc.utc_ns(status.since_ns),
            self._utc.utc_ns(until) if until else 0,
            status.forced,
            status.cause,
            selected,
            self._findings.get(status.policy.name),
            action,
        )

    def _event(self, transition: PolicyTransition, finding: Finding | None) -> Event:
        at = self._utc.utc_ns(transition.at_ns)
        name, after = transition.policy, transition.after
        phase, did = "", _CHANGES.get(after, f"is {after.label}")
        if transition.begins:
            phase, did = "begin", "fired"
        elif transition.ends:
            phase, did = "end", "ended"
        text = f"{name} {did}: {transition.cause}"
        known = finding if transition.begins else self._findings.get(name)
        if known and known.packets:
            # The row of the transition has the cause, which is a formula.
            text = f"{name}: {known.text}" if transition.begins else f"{name} {did}"
            text += f": {known.text}" if transition.ends else ""
        elif finding:
            text += f"; {finding.text}"
        severity = "warning" if transition.begins else "info"
        return Event(
            at, severity, PROBE, text, f"policy {name}", phase, transition.value, transition.unit
        )


def _row(transition: PolicyTransition, metrics: Array, finding: Finding | None) -> Rows[TRANSITION]:
    row = np.zeros(1, TRANSITION)
    row["policy"], row["cause"] = transition.policy.encode(), transition.cause.encode()
    row["before"], row["after"] = transition.before, transition.after
    row["at_ns"], row["metrics"] = transition.at_ns, metrics
    if finding:
        row["finding"], row["filter"] = finding.text.encode(), finding.filter.encode()
        for unit in ("packets", "bytes", "flows", "lost", "seconds"):
            row[f"found_{unit}"] = getattr(finding, unit)
        for part in _PARTS:
            distinct = getattr(finding, f"{part}s")
            row[f"{part}s"] = distinct.count
            for top in distinct.top[:1]:
                row[f"top_{part}"], row[f"top_{part}_share"] = top.name.encode(), top.share
        for name, distinct in (("protocol", finding.protocols), ("flags", finding.flags)):
            for top in distinct.top[:1]:
                row[name] = top.name.encode()
    return row
