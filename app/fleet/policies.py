"""Policies on the sums of a fleet, and the hosts that activate policies for them.

Conditions and state machines come from `probes.monitor.engine`, which judges windows of sums over
the hosts. A missing host cannot end a policy: while one of its hosts is missing, a policy stays
active, for WAIT_S at most. This module has no thread and no connection: `app.fleet.policy_runner`
has both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.fleet.hosts import needs_flows
from app.fleet.sums import FleetFlows, FleetSecond
from bpf.arrays import Array, Rows
from bpf.quantities import counted
from probes.monitor.condition import ComparisonResult
from probes.monitor.condition.series import WindowSeries
from probes.monitor.condition.terms import Number, WindowSelection
from probes.monitor.condition.units import RATIO
from probes.monitor.engine import Engine
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC
from probes.snapshot import Event

SECOND_NS = 1_000_000_000
_FLOWS = ("flows", "flows_low", "flows_high")
_TOLERANCE = 0.05
"""A value divides if the sum of the hosts' values is so close to it; estimates of flows vary."""
WAIT_S = 60
"""Seconds. A policy whose condition has ended waits for its missing hosts, at most so long."""
_NAMED = 5
"""Most hosts whose values an event has."""


@dataclass(frozen=True, slots=True)
class FleetTransition:
    """The begin or the end of a policy of the fleet."""

    policy: Policy
    begins: bool
    hosts: tuple[str, ...]
    """Hosts that activate their policy, or deactivate it."""
    event: Event

    @property
    def activated(self) -> str:
        """Name of the hosts' policy."""
        return self.policy.run[0]


class FleetPolicies:
    """The policies of a fleet. Use it from one thread at a time."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._engine = Engine()
        for policy in policies:
            self._engine.set(policy, 0)
        self.need_flows = any(map(needs_flows, policies))
        """Whether a condition needs the distinct flows of the fleet."""
        self._active: dict[str, tuple[str, ...]] = {}
        """By policy, the hosts of its begin: they deactivate theirs at its end."""

        self._waits: dict[str, int] = {}
        """By name of a policy that waits for missing hosts: the end of the wait, UTC."""

    def judge(self, second: FleetSecond, flows: FleetFlows | None) -> list[FleetTransition | Event]:
        """Take in the sums of a second, and distinct flows if conditions need them.

        Without any host's distinct flows nothing changes. Returns transitions, and an event for
        each policy that waits for a missing host.
        """
        rows = dict(second.rows)
        missing = list(second.missing)
        total = _sum(tuple(rows.values()))
        if self.need_flows:
            if flows is None or not flows.merged:
                return []
            total["flows"], total["flows_low"], total["flows_high"] = (
                flows.estimate, flows.low, flows.high,
            )  # fmt: skip
            left_out = [one.host for one in flows.hosts if one.why_not]
            missing += (host for host in left_out if host not in missing)
            for one in flows.hosts:
                if one.host in rows and not one.why_not:
                    own = rows[one.host] = rows[one.host].copy()
                    own["flows"], own["flows_low"], own["flows_high"] = (
                        one.estimate, one.low, one.high,
                    )  # fmt: skip
        found: list[FleetTransition | Event] = []
        for each in self._engine.window(total, second.end_utc_ns, 1.0, {}):
            standing = next(s for s in self._engine.policies() if s.policy.name == each.policy)
            policy, texts = standing.policy, [each.cause]
            if each.begins and each.policy in self._waits:
                # It stayed active for a missing host.
                del self._waits[each.policy]
                continue
            if each.begins and standing.outcome:
                deciding = standing.outcome.deciding
                values = _values(deciding, rows, total)
                hosts = self._active[each.policy] = concerned(values) or tuple(rows)
                texts += _by_host(deciding, values)
            elif each.ends and (away := self._away(each.policy, missing)):
                self._waits[each.policy] = second.end_utc_ns + WAIT_S * SECOND_NS
                why = f"{each.cause}, a lower bound: {_names(away)} {_lack(away)} missing"
                text = f"{policy.name} stays active: {why}; it waits {WAIT_S} s"
                subject = f"policy {policy.name}"
                found.append(Event(second.end_utc_ns, "warning", "fleet", text, subject))
                continue
            elif each.ends:
                hosts = self._active.pop(each.policy)
            else:
                continue
            if missing:
                texts.append(f"a lower bound: {_names(missing)} {_lack(missing)} not counted")
            found.append(_transition(policy, each.begins, hosts, texts, second.end_utc_ns))
        return [*found, *self._waited(missing, second.end_utc_ns)]

    def _away(self, name: str, missing: Collection[str]) -> tuple[str, ...]:
        """Return the missing hosts of an active policy."""
        return tuple(host for host in self._active[name] if host in missing)

    def _waited(self, missing: Collection[str], at_utc_ns: int) -> list[FleetTransition]:
        """End the policies whose hosts are all back, or away for too long."""
        found = []
        for policy in (one.policy for one in self._engine.policies()):
            if (until := self._waits.get(policy.name)) is None:
                continue
            away = self._away(policy.name, missing)
            if not away or at_utc_ns >= until:
                cause = f"{_names(away)} {_lack(away)} missing for {WAIT_S} s"
                texts = [cause if away else "its missing hosts are back"]
                del self._waits[policy.name]
                hosts = self._active.pop(policy.name)
                found.append(_transition(policy, False, hosts, texts, at_utc_ns))
        return found

    def end(self, at_utc_ns: int) -> list[FleetTransition]:
        """End the active policies: nobody watches the fleet any more."""
        active, self._active, self._waits = self._active, {}, {}
        return [
            _transition(one.policy, False, active[one.policy.name], ["the console ends"], at_utc_ns)
            for one in self._engine.policies()
            if one.policy.name in active
        ]


def concerned(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the hosts whose share of the value is above half of an even share."""
    least = sum(values.values()) / (2 * max(1, len(values)))
    return tuple(host for host, value in values.items() if value > least)


def _sum(rows: Collection[Rows[METRIC]]) -> Rows[METRIC]:
    """Sum up rows of dtype METRIC, except flows; `protocols` is the largest of any host."""
    total = np.zeros((), METRIC)
    for name in METRIC.names or ():
        if name not in _FLOWS and rows:
            values = [int(row[name]) for row in rows]
            total[name] = max(values) if name == "protocols" else sum(values)
    return total


def _values(
    deciding: ComparisonResult, rows: Mapping[str, Array], total: Array
) -> Mapping[str, float]:
    """Return the compared value of each host in that second; empty if the value does not divide."""
    left = deciding.of.left

    def value(row: Array) -> float:
        series = WindowSeries()
        series.append(row, SECOND_NS, 1.0)
        with np.errstate(all="ignore"):
            return float(left.band(WindowSelection(series, None, -1)).value)

    values = {host: value(row) for host, row in rows.items()}
    whole, parts = value(total), sum(values.values())
    # Hosts may share flows, so their sum may be larger.
    least, most = (1 - _TOLERANCE) * whole, (1 + _TOLERANCE) * whole
    divides = least <= parts and (parts <= most or left.unit.flows == 1)
    if left.unit == RATIO or not whole > 0 or not divides or min(values.values()) < 0:
        return {}
    return values


def _by_host(deciding: ComparisonResult, values: Mapping[str, float]) -> list[str]:
    if not values:
        return ["the value does not divide by host"]
    right = deciding.of.right
    scale, suffix = (right.scale, right.suffix) if isinstance(right, Number) else (1.0, "")
    largest = sorted(values, key=lambda host: values[host], reverse=True)
    texts = [f"{host} {values[host] / scale:.4g} {suffix}".rstrip() for host in largest[:_NAMED]]
    if (more := len(largest) - _NAMED) > 0:
        texts.append(counted(more, "other host"))
    return [", ".join(texts)]


def _names(hosts: Sequence[str]) -> str:
    named = ", ".join(hosts[:_NAMED])
    return f"{named} and {len(hosts) - _NAMED} others" if len(hosts) > _NAMED else named


def _lack(hosts: Sequence[str]) -> str:
    return "is" if len(hosts) == 1 else "are"


def _transition(
    policy: Policy, begins: bool, hosts: tuple[str, ...], texts: Sequence[str], at_utc_ns: int
) -> FleetTransition:
    verb = "begins" if begins else "ends"
    text = f"{policy.name} {verb}: {'; '.join(texts)}; {policy.run[0]} on {_names(hosts)}"
    severity, phase = ("warning", "begin") if begins else ("info", "end")
    event = Event(at_utc_ns, severity, "fleet", text, f"policy {policy.name}", phase)
    return FleetTransition(policy, begins, hosts, event)
