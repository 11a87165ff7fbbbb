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
from probes.monitor.condition import Condition, Outcome
from probes.monitor.records import POLICY, Array
from probes.monitor.series import Series
from probes.monitor.state import State

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

MAX_POLICIES = 31
"""The router has a bit for each in a word, and needs one to replace a policy."""
_FIRST = {"triggered": State.ARMED, "permanent": State.ACTIVE, "operator": State.OFF}
"""By mode, where a policy begins, and where it is when it ended."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A policy's way from one state to another."""

    policy: str
    before: State
    after: State
    at_ns: int
    cause: str
    """In words, with the values that a condition was compared with."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy, and where it stands."""

    policy: Policy
    state: State
    since_ns: int
    """Since when it is in its state."""
    active_ns: int
    """Since when its applications run, or did when they last ran; 0: never."""
    forced: bool = False
    """Whether an operator activated it."""
    cause: str = ""
    """Of its last transition."""
    outcome: Outcome | None = None
    """Of what was looked at after the last window; None where that is nothing, or failed."""
    failure: str = ""
    """Why the condition could not be looked at; empty where it could."""

    @property
    def until_ns(self) -> int:
        """When HOLD or COOLDOWN is over; 0 in other states."""
        if self.state is State.HOLD:
            return self.active_ns + round(self.policy.hold * 1e9)
        if self.state is State.COOLDOWN:
            return self.since_ns + round(self.policy.cooldown * 1e9)
        return 0


class _Machine:
    """One policy's."""

    def __init__(self, policy: Policy, now_ns: int) -> None:
        self._condition = Condition.parse(policy.condition) if policy.condition else None
        self._deactivate = Condition.parse(policy.deactivate) if policy.deactivate else None
        first = _FIRST[policy.mode]
        self.standing = Standing(policy, first, now_ns, now_ns if first.runs else 0)
        self.span = max((c.span for c in (self._condition, self._deactivate) if c), default=0.0)
        """Seconds that its conditions ask for."""
        self._quiet = Series(self.span)
        """What baselines are made of: windows in which it did not run, and had no reason to."""

    def follow(self, old: _Machine) -> None:
        """Go on from where the one of this name was."""
        policy = self.standing.policy
        self.standing = replace(old.standing, policy=policy, outcome=None, failure="")
        self._quiet = old._quiet
        self._quiet.keep(self.span)

    def move(self, after: State, at_ns: int, cause: str, forced: bool = False) -> Transition:
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
        return Transition(before.policy.name, before.state, after, at_ns, cause)

    def end(self, at_ns: int, cause: str) -> Transition:
        """To where it waits."""
        policy = self.standing.policy
        after = State.COOLDOWN if policy.cooldown else _FIRST[policy.mode]
        return self.move(after, at_ns, cause)

    def force(self, at_ns: int) -> Transition | None:
        """Have it run until an operator ends it."""
        standing, cause = self.standing, "an operator activated it"
        if standing.policy.mode == "permanent" or standing.forced:
            return None
        if standing.state is State.ACTIVE:
            self.standing = replace(standing, forced=True, cause=cause)
            return None
        return self.move(State.ACTIVE, at_ns, cause, forced=True)

    def window(self, series: Series, row: Array, end_ns: int, seconds: float) -> list[Transition]:
        """What the last window of `series`, which `row` is, changes."""
        before = self.standing.state
        self._look(series)
        transitions = list(self._decide(end_ns))
        outcome = self.standing.outcome
        if not (before.runs or self.standing.state.runs or (outcome and outcome.holds)):
            self._quiet.append(row, end_ns, seconds)
        return transitions

    def _look(self, series: Series) -> None:
        """At the condition that may change the state now."""
        ends = self._deactivate if self.standing.state is State.ACTIVE else None
        if condition := ends or self._condition:
            outcome, failure = None, ""
            try:
                outcome = condition.evaluate(series, self._quiet)
            except Exception as error:  # One policy's failure stops no other.
                failure = f"{condition.text}: {error}"
            self.standing = replace(self.standing, outcome=outcome, failure=failure)

    def _decide(self, at_ns: int) -> Iterator[Transition]:
        """By what was seen, after a window that ended then."""
        before, outcome = self.standing, self.standing.outcome
        over = at_ns >= before.until_ns
        if before.state is State.COOLDOWN and over:
            yield self.move(
                State.ARMED, at_ns, f"{before.policy.cooldown:g} s of cool-down are over"
            )
        state = self.standing.state
        if state in (State.ARMED, State.HOLD) and outcome and outcome.holds:
            yield self.move(State.ACTIVE, at_ns, outcome.words)
        elif state is State.HOLD and over:
            yield self.end(at_ns, f"it was active for {before.policy.hold:g} s at least")
        elif state is State.ACTIVE and not before.forced and outcome and self._ends(outcome):
            if at_ns < before.active_ns + round(before.policy.hold * 1e9):
                yield self.move(State.HOLD, at_ns, outcome.words)
            else:
                yield self.end(at_ns, outcome.words)

    def _ends(self, outcome: Outcome) -> bool:
        return bool(outcome.holds) if self._deactivate else outcome.holds is False


class Engine:
    """All policies, in the order in which they came."""

    def __init__(self) -> None:
        self._machines: dict[str, _Machine] = {}
        self._series = Series()

    def set(self, policy: Policy, now_ns: int) -> Transition | None:
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
            transition = Transition(
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

    def window(self, row: Array, end_ns: int, seconds: float) -> list[Transition]:
        """What a window changes; `row` is of dtype METRIC, shape ()."""
        self._series.append(row, end_ns, seconds)
        transitions = []
        for machine in self._machines.values():
            transitions += machine.window(self._series, row, end_ns, seconds)
        return transitions

    def activate(self, name: str, now_ns: int) -> Transition | None:
        """Have a policy run, until `deactivate`. None where its state stays the same."""
        return self._named(name).force(now_ns)

    def deactivate(self, name: str, now_ns: int) -> Transition | None:
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

    def policies(self) -> tuple[Standing, ...]:
        """Where each policy stands."""
        return tuple(machine.standing for machine in self._machines.values())

    def active(self) -> tuple[str, ...]:
        """Names of the policies whose applications run."""
        return tuple(s.policy.name for s in self.policies() if s.state.runs)

    def standing(self) -> Array:
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
