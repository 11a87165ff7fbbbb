"""Policies as state machines: each window decides whose applications run (S2.11, S2.12, S2.23).

    triggered   ARMED -> ACTIVE             its condition holds
                ACTIVE -> HOLD              its reason is over, and the minimum time is not
                HOLD -> ACTIVE              its condition holds again
                ACTIVE or HOLD -> COOLDOWN  both are over, or an operator ends it
                COOLDOWN -> ARMED           that is over; the same window may make it ACTIVE
                any -> ACTIVE               an operator activates it: only he ends it (forced)
    operator    OFF <-> ACTIVE              an operator says so
    permanent   ACTIVE                      always

The reason is over when `deactivate` holds or, where there is none, when `condition` does not. What
is not known, such as a baseline of the first windows, changes nothing. Without a cool-down it goes
to ARMED instead, and is looked at again after the next window.

There is no thread and no clock in here: times, of CLOCK_MONOTONIC, are arguments. It is for one
thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bpf.errors import UsageError, did_you_mean
from probes.monitor.condition import Condition, ConditionOutcome
from probes.monitor.condition.series import WindowSeries
from probes.monitor.records import POLICY, Array
from probes.monitor.state import MAX_POLICIES, PolicyState

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

_FIRST = {
    "triggered": PolicyState.ARMED,
    "permanent": PolicyState.ACTIVE,
    "operator": PolicyState.OFF,
}
"""By mode, where a policy begins, and where it is when it ended."""


@dataclass(frozen=True, slots=True)
class PolicyTransition:
    """A policy's way from one state to another."""

    policy: str
    before: PolicyState
    after: PolicyState
    at_ns: int
    cause: str
    """In words, with the values that a condition was compared with."""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """A policy, and where it stands."""

    policy: Policy
    state: PolicyState
    since_ns: int
    """Since when it is in its state."""
    active_ns: int
    """Since when its applications run, or did when they last ran; 0: never."""
    forced: bool = False
    """Whether an operator activated it."""
    cause: str = ""
    """Of its last transition."""
    outcome: ConditionOutcome | None = None
    """Of what was looked at after the last window; None where that is nothing, or failed."""
    failure: str = ""
    """Why the condition could not be looked at; empty where it could."""

    @property
    def until_ns(self) -> int:
        """When HOLD or COOLDOWN is over; 0 in other states."""
        if self.state is PolicyState.HOLD:
            return self.active_ns + round(self.policy.hold * 1e9)
        if self.state is PolicyState.COOLDOWN:
            return self.since_ns + round(self.policy.cooldown * 1e9)
        return 0


class _Machine:
    """One policy's."""

    def __init__(self, policy: Policy, now_ns: int) -> None:
        self._condition = Condition.parse(policy.condition) if policy.condition else None
        self._deactivate = Condition.parse(policy.deactivate) if policy.deactivate else None
        first = _FIRST[policy.mode]
        self.standing = PolicyStatus(policy, first, now_ns, now_ns if first.runs else 0)
        self.span = max((c.span for c in (self._condition, self._deactivate) if c), default=0.0)
        """Seconds that its conditions ask for."""
        self._quiet = WindowSeries(self.span)
        """What baselines are made of: windows in which it did not run, and had no reason to."""

    def follow(self, old: _Machine) -> None:
        """Go on from where the one of this name was."""
        policy = self.standing.policy
        self.standing = replace(old.standing, policy=policy, outcome=None, failure="")
        self._quiet = old._quiet
        self._quiet.keep(self.span)

    def move(
        self, after: PolicyState, at_ns: int, cause: str, forced: bool = False
    ) -> PolicyTransition:
        """To another state, whatever that is for."""
        before = self.standing
        starts = after.runs and not before.state.runs
        self.standing = replace(
            before,
            state=after,
            since_ns=at_ns,
            active_ns=at_ns if starts else before.active_ns,
            forced=forced,
            cause=cause,
        )
        return PolicyTransition(before.policy.name, before.state, after, at_ns, cause)

    def end(self, at_ns: int, cause: str) -> PolicyTransition:
        """To where it waits."""
        policy = self.standing.policy
        after = PolicyState.COOLDOWN if policy.cooldown else _FIRST[policy.mode]
        return self.move(after, at_ns, cause)

    def force(self, at_ns: int) -> PolicyTransition | None:
        """Have it run until an operator ends it."""
        standing, cause = self.standing, "an operator activated it"
        if standing.policy.mode == "permanent" or standing.forced:
            return None
        if standing.state is PolicyState.ACTIVE:
            self.standing = replace(standing, forced=True, cause=cause)
            return None
        return self.move(PolicyState.ACTIVE, at_ns, cause, forced=True)

    def window(
        self, series: WindowSeries, row: Array, end_ns: int, seconds: float
    ) -> list[PolicyTransition]:
        """What the last window of `series`, which `row` is, changes."""
        before = self.standing.state
        self._look(series)
        transitions = list(self._decide(end_ns))
        outcome = self.standing.outcome
        if not (before.runs or self.standing.state.runs or (outcome and outcome.holds)):
            self._quiet.append(row, end_ns, seconds)
        return transitions

    def _look(self, series: WindowSeries) -> None:
        """At the condition that may change the state now."""
        ends = self._deactivate if self.standing.state is PolicyState.ACTIVE else None
        if condition := ends or self._condition:
            outcome, failure = None, ""
            try:
                outcome = condition.evaluate(series, self._quiet)
            except Exception as error:  # One policy's failure stops no other.
                failure = f"{condition.text}: {error}"
            self.standing = replace(self.standing, outcome=outcome, failure=failure)

    def _decide(self, at_ns: int) -> Iterator[PolicyTransition]:
        """By what was seen, after a window that ended then."""
        before, outcome = self.standing, self.standing.outcome
        over = at_ns >= before.until_ns
        if before.state is PolicyState.COOLDOWN and over:
            yield self.move(
                PolicyState.ARMED, at_ns, f"{before.policy.cooldown:g} s of cool-down are over"
            )
        state = self.standing.state
        if state in (PolicyState.ARMED, PolicyState.HOLD) and outcome and outcome.holds:
            yield self.move(PolicyState.ACTIVE, at_ns, outcome.summary)
        elif state is PolicyState.HOLD and over:
            yield self.end(at_ns, f"it was active for {before.policy.hold:g} s at least")
        elif state is PolicyState.ACTIVE and not before.forced and outcome and self._ends(outcome):
            if at_ns < before.active_ns + round(before.policy.hold * 1e9):
                yield self.move(PolicyState.HOLD, at_ns, outcome.summary)
            else:
                yield self.end(at_ns, outcome.summary)

    def _ends(self, outcome: ConditionOutcome) -> bool:
        return bool(outcome.holds) if self._deactivate else outcome.holds is False


class Engine:
    """All policies, in the order in which they came."""

    def __init__(self) -> None:
        self._machines: dict[str, _Machine] = {}
        self._series = WindowSeries()

    def set(self, policy: Policy, now_ns: int) -> PolicyTransition | None:
        """Add a policy, or put it in the place of the one of this name.

        With the same mode it stays in the state in which that was, forced or not: what is changed,
        the condition too, counts from the next window on. With another one it begins anew; the
        transition that this is, if any. UsageError for what can't be one more, or is no condition.
        """
        old = self._machines.get(policy.name)
        if old is None and len(self._machines) >= MAX_POLICIES:
            raise UsageError(
                f"policy {policy.name!r} is one too many: there are {MAX_POLICIES}",
                hint="remove one before",
            )
        new = _Machine(policy, now_ns)
        transition = None
        if old and old.standing.policy.mode == policy.mode:
            new.follow(old)
        elif old and old.standing.state is not new.standing.state:
            cause = f"its mode is {policy.mode} from now on"
            transition = PolicyTransition(
                policy.name, old.standing.state, new.standing.state, now_ns, cause
            )
            new.standing = replace(new.standing, cause=cause)
        self._machines[policy.name] = new
        self._series.keep(new.span)
        return transition

    def remove(self, name: str) -> None:
        """Forget a policy; UsageError where there is none of this name."""
        self._named(name)
        del self._machines[name]

    def window(self, row: Array, end_ns: int, seconds: float) -> list[PolicyTransition]:
        """What a window changes; `row` is of dtype METRIC, shape ()."""
        self._series.append(row, end_ns, seconds)
        transitions = []
        for machine in self._machines.values():
            transitions += machine.window(self._series, row, end_ns, seconds)
        return transitions

    def activate(self, name: str, now_ns: int) -> PolicyTransition | None:
        """Have a policy run, until `deactivate`. None where its state stays the same."""
        return self._named(name).force(now_ns)

    def deactivate(self, name: str, now_ns: int) -> PolicyTransition | None:
        """End a policy, whatever made it run. None where it does not.

        UsageError for a permanent one.
        """
        machine = self._named(name)
        policy = machine.standing.policy
        if policy.mode == "permanent":
            raise UsageError(
                f"policy {name!r} is permanent", hint="remove it, or give it another mode"
            )
        if not machine.standing.state.runs:
            return None
        return machine.end(now_ns, "an operator deactivated it")

    def policies(self) -> tuple[PolicyStatus, ...]:
        """Where each policy stands."""
        return tuple(machine.standing for machine in self._machines.values())

    def active(self) -> tuple[str, ...]:
        """Names of the policies whose applications run."""
        return tuple(s.policy.name for s in self.policies() if s.state.runs)

    def rows(self) -> Array:
        """Where each policy stands, of dtype POLICY (n,); `selected` is zero."""
        rows = np.zeros(len(self._machines), POLICY)
        for row, standing in zip(rows, self.policies(), strict=True):
            row["policy"] = standing.policy.name
            row["state"], row["since_ns"] = standing.state, standing.since_ns
            outcome = standing.outcome
            row["holds"] = bool(outcome and outcome.holds)
            row["certain"] = bool(outcome and outcome.certain)
            deciding = outcome.deciding if outcome else None
            for field in ("value", "low", "high", "threshold"):
                row[field] = getattr(deciding, field) if deciding else np.nan
        return rows

    def _named(self, name: str) -> _Machine:
        try:
            return self._machines[name]
        except KeyError:
            hint = did_you_mean(name, self._machines)
            raise UsageError(f"there is no policy {name!r}", hint=hint) from None
