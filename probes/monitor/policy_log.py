"""Transitions, states and failures of policies as rows of tables, and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from probes.monitor.engine import Engine, PolicyStatus, PolicyTransition
from probes.monitor.info import PolicyInfo
from probes.monitor.records import TRANSITION, Array
from probes.monitor.state import POLICIES_TABLE, PROBE, TRIGGERS_TABLE
from probes.poller import UtcClock
from probes.snapshot import Event


class PolicyLog:
    """Keeps what is published with the next window: new transitions and failures."""

    def __init__(self, engine: Engine, utc: UtcClock) -> None:
        self._engine = engine
        self._utc = utc
        self._transitions: list[tuple[PolicyTransition, Array]] = []
        """Transitions since the last window, each with the metrics of the window that caused it."""
        self._selected: dict[str, int] = {}
        """Packets that each policy had selected by the end of the last window."""
        self._failed: set[str] = set()
        """Policies whose condition could not be evaluated after the last window."""

    def add(self, transitions: Iterable[PolicyTransition], row: Array) -> None:
        """Note transitions; `row` has dtype METRIC, shape ()."""
        self._transitions += [(transition, row) for transition in transitions]

    def forget(self, name: str) -> None:
        """Forget the counts of a policy that was removed."""
        self._selected.pop(name, None)

    def tables(self, selected: Mapping[str, int]) -> dict[str, Array]:
        """Return the rows of policies (dtype POLICY) and, if there are new ones, of transitions.

        `selected`: packets of each policy up to now; the rows count only this window's packets.
        """
        rows = self._engine.rows()
        for row in rows:
            name = row["policy"].decode()
            row["selected"] = selected[name] - self._selected.get(name, 0)
        self._selected.update(selected)
        tables = {POLICIES_TABLE: rows}
        if self._transitions:
            tables[TRIGGERS_TABLE] = np.concatenate([_row(*each) for each in self._transitions])
        return tables

    def events(self) -> Sequence[Event]:
        """Return events of the transitions, which are forgotten then, and of new failures."""
        found = [self._event(transition) for transition, _ in self._transitions]
        self._transitions.clear()
        failures = {status.policy.name: status.failure for status in self._engine.policies()}
        for name, why in failures.items():
            if why and name not in self._failed:
                text = f"policy {name} has a failing condition: {why}"
                found.append(Event.now("error", PROBE, text))
        self._failed = {name for name, why in failures.items() if why}
        return found

    def info(self, status: PolicyStatus, selected: int) -> PolicyInfo:
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
        )

    def _event(self, transition: PolicyTransition) -> Event:
        name, after = transition.policy, transition.after
        begins = after.runs and not transition.before.runs
        at = self._utc.utc_ns(transition.at_ns)
        text = f"policy {name} is {after.label}: {transition.cause}"
        return Event(at, "warning" if begins else "info", PROBE, text)


def _row(transition: PolicyTransition, metrics: Array) -> Array:
    row = np.zeros(1, TRANSITION)
    row["policy"], row["cause"] = transition.policy.encode(), transition.cause.encode()
    row["before"], row["after"] = transition.before, transition.after
    row["at_ns"], row["metrics"] = transition.at_ns, metrics
    return row
