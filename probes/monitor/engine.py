"""Policies as state machines: each window decides whose applications run (S2.11, S2.12, S2.23).

    triggered   ARMED -> ACTIVE             the condition holds
                ACTIVE -> HOLD              the reason is over, the minimum time is not
                HOLD -> ACTIVE              the condition holds again
                ACTIVE or HOLD -> COOLDOWN  both are over, or an operator ends it
                COOLDOWN -> ARMED           after a time; the same window may make it ACTIVE
                any -> ACTIVE               an operator forces it: only an operator ends it
    operator    OFF <-> ACTIVE              an operator decides
    permanent   ACTIVE                      always

The reason is over when `deactivate` holds, or without one when `condition` does not hold. An
unknown result, such as a baseline of the first windows, changes nothing. Without a cool-down a
policy turns to ARMED instead, and its condition is evaluated after the next window.

This module has no thread and no clock: times, of CLOCK_MONOTONIC, are arguments. Use it from one
thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from bpf.arrays import Array, Rows
from bpf.errors import UsageError, did_you_mean
from probes.monitor.condition import ConditionOutcome
from probes.monitor.condition.series import Bursts, WindowSeries
from probes.monitor.records import METRIC, POLICY
from probes.monitor.selected import NOTHING, Estimate, SelectedMetric
from probes.monitor.state import MAX_POLICIES, PolicyState

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

_FIRST = {
    "triggered": PolicyState.ARMED,
    "permanent": PolicyState.ACTIVE,
    "operator": PolicyState.OFF,
}
"""By mode, a policy's state at its begin and after its end."""


_OUTCOMES = 64
"""Outcomes of a condition that are kept."""


def nothing_of(metrics: Iterable[SelectedMetric]) -> Mapping[SelectedMetric, Estimate]:
    """The values of a window without packets. Metrics of owners are unknown then."""
    return {metric: NOTHING for metric in metrics if not metric.of_owners}


@dataclass(frozen=True, slots=True)
class PolicyTransition:
    policy: str
    before: PolicyState
    after: PolicyState
    at_ns: int
    cause: str
    """Text with the compared values."""
    value: float | None = None
    """Value of the comparison that activated it, in `unit`; None without one."""
    unit: str = ""
    """Unit in which the threshold was typed."""

    @property
    def ends(self) -> bool:
        """Whether the policy's applications ran until then."""
        return self.before.runs and not self.after.runs

    @property
    def begins(self) -> bool:
        """Whether the policy's applications run from then on."""
        return self.after.runs and not self.before.runs


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    policy: Policy
    state: PolicyState
    since_ns: int
    """When it entered the state."""
    active_ns: int
    """When its applications last began to run; 0: never."""
    forced: bool = False
    """Whether an operator activated it."""
    cause: str = ""
    """Cause of the last transition."""
    outcome: ConditionOutcome | None = None
    """Result of the condition after the last window; None if none was evaluated."""
    failure: str = ""
    """Error of the condition's evaluation; empty if it succeeded."""

    @property
    def until_ns(self) -> int:
        """When HOLD or COOLDOWN ends; 0 in other states."""
        if self.state is PolicyState.HOLD:
            return self.active_ns + round(self.policy.hold * 1e9)
        if self.state is PolicyState.COOLDOWN:
            return self.since_ns + round(self.policy.cooldown * 1e9)
        return 0


class _Machine:
    """State machine of one policy."""

    def __init__(self, policy: Policy, now_ns: int, quiet: WindowSeries) -> None:
        self._condition = policy.parsed(policy.condition)
        self._deactivate = policy.parsed(policy.deactivate)
        first = _FIRST[policy.mode]
        self.standing = PolicyStatus(policy, first, now_ns, now_ns if first.runs else 0)
        self.span = max((c.span for c in (self._condition, self._deactivate) if c), default=0.0)
        """Seconds of history that the conditions need."""
        self.metrics = policy.metrics
        self.quiet = quiet
        """Windows for baselines: the policy did not run, and its condition did not hold. Policies
        with the same windows share them."""
        quiet.keep(self.span)
        inputs = self._condition.inputs if self._condition else None
        self._inputs = None if inputs is None else tuple(inputs)
        self._outcomes: dict[tuple[object, ...], ConditionOutcome] = {}
        """By values of the inputs, outcomes that do not hold, with baselines at their floors: as
        long as these stay there, the same values have the same outcome."""
        self._bursts = Bursts(self.span)

    def follow(self, old: _Machine) -> None:
        """Take over the state of the old policy of this name."""
        policy = self.standing.policy
        self.standing = replace(old.standing, policy=policy, outcome=None, failure="")
        self.quiet, self._bursts = old.quiet, old._bursts
        self.quiet.keep(self.span)

    def move(
        self, after: PolicyState, at_ns: int, cause: str, forced: bool = False
    ) -> PolicyTransition:
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
        """Change to the state that waits."""
        policy = self.standing.policy
        after = PolicyState.COOLDOWN if policy.cooldown else _FIRST[policy.mode]
        return self.move(after, at_ns, cause)

    def force(self, at_ns: int) -> PolicyTransition | None:
        """Run the policy until an operator ends it."""
        standing, cause = self.standing, "an operator activated it"
        if standing.policy.mode == "permanent" or standing.forced:
            return None
        if standing.state is PolicyState.ACTIVE:
            self.standing = replace(standing, forced=True, cause=cause)
            return None
        return self.move(PolicyState.ACTIVE, at_ns, cause, forced=True)

    def window(
        self,
        series: WindowSeries,
        row: Array,
        end_ns: int,
        seconds: float,
        selected: Mapping[SelectedMetric, Estimate],
        whole: bool,
        not_zero: Mapping[SelectedMetric, object],
        count: int,
    ) -> tuple[list[PolicyTransition], bool]:
        """Take in the last `count` windows of `series`, which are `row`. Returns the transitions,
        and whether they are quiet; the caller adds them to `quiet` then. `whole`: see `Condition`.
        Metrics that are neither in `not_zero` nor unknown are 0."""
        before = self.standing.state
        values: tuple[object, ...] | None = None
        if self._inputs is not None and self.metrics <= selected.keys():
            values = tuple(map(not_zero.get, self._inputs))
            if any(values):
                values = seconds, *values
        is_burst = self._look(series, whole or before.runs, values)
        transitions = list(self._decide(end_ns))
        outcome = self.standing.outcome
        is_quiet = not (before.runs or self.standing.state.runs or (outcome and outcome.holds))
        if is_burst:
            own = {metric: selected[metric] for metric in self.metrics & selected.keys()}
            self._bursts.append((row, end_ns, seconds, own))
        else:
            self._bursts.pause(count)
        return transitions, is_quiet

    def is_dull(self, most: float, recent: float) -> bool:
        """Whether no window with such limits (`Condition.never_holds`) changes the state."""
        if not any(metric.is_recent for metric in self.metrics):
            recent = 0.0  # the answer is the same, and known
        waits = self.standing.state in (PolicyState.ARMED, PolicyState.OFF)
        condition = self._condition
        return not condition or (waits and condition.never_holds(most, recent))

    def rest(self, count: int) -> bool:
        """Take in windows without packets, while the policy is dull. Returns whether they are
        quiet."""
        self._bursts.pause(count)
        return not self.standing.state.runs

    def _look(
        self, series: WindowSeries, whole: bool, values: tuple[object, ...] | None
    ) -> bool:  # fmt: skip
        """Evaluate the condition that may change the state now. Returns whether the window is part
        of a burst, usual or not. `values` are those of its inputs."""
        known = self._outcomes.get(values) if values is not None and not whole else None
        if known and self._is_low(known, series):
            if known is not self.standing.outcome:
                self.standing = replace(self.standing, outcome=known, failure="")
            return False
        ends = self._deactivate if self.standing.state is PolicyState.ACTIVE else None
        condition = ends or self._condition
        if not condition:
            return False
        outcome, failure, burst = None, "", False
        try:
            outcome = condition.evaluate(series, self.quiet, whole=whole)
            burst = bool(outcome.holds) != bool(ends)
            if burst and ((usual := self._bursts.usual()) or not whole):
                outcome = condition.evaluate(series, self.quiet, usual)
        except Exception as error:  # One policy's failure stops no other.
            failure = f"{condition.text}: {error}"
        self.standing = replace(self.standing, outcome=outcome, failure=failure)
        if (
            values is not None
            and not (burst or whole)
            and outcome
            and self._is_low(outcome, series)
        ):
            if len(self._outcomes) >= _OUTCOMES:
                self._outcomes.clear()
            self._outcomes[values] = outcome
        return burst

    def _is_low(self, outcome: ConditionOutcome, series: WindowSeries) -> bool:
        return bool(self._condition and self._condition.is_low(outcome, series, self.quiet))

    def _decide(self, at_ns: int) -> Iterator[PolicyTransition]:
        """Decide by the outcome of a window that ended at `at_ns`."""
        before, outcome = self.standing, self.standing.outcome
        over = at_ns >= before.until_ns
        if before.state is PolicyState.COOLDOWN and over:
            yield self.move(
                PolicyState.ARMED, at_ns, f"{before.policy.cooldown:g} s of cool-down are over"
            )
        state = self.standing.state
        if state in (PolicyState.ARMED, PolicyState.HOLD) and outcome and outcome.holds:
            transition = self.move(PolicyState.ACTIVE, at_ns, outcome.summary)
            value, unit = outcome.deciding.typed
            yield transition if isnan(value) else replace(transition, value=value, unit=unit)
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
    """All policies, in the order of their addition."""

    def __init__(self) -> None:
        self._machines: dict[str, _Machine] = {}
        self._series, self._quiet = WindowSeries(), WindowSeries()
        """All windows, and those of the policies that came last."""
        self._most = -1
        """Packets of the window with most packets."""

    def set(self, policy: Policy, now_ns: int) -> PolicyTransition | None:
        """Add a policy, or replace the one of this name.

        With the same mode it keeps the state of the old policy, forced or not; changes count from
        the next window. With another mode it begins anew. Returns the resulting transition, if any.
        Raises UsageError if there are too many policies or a condition is invalid.
        """
        old = self._machines.get(policy.name)
        if old is None and len(self._machines) >= MAX_POLICIES:
            raise UsageError(
                f"policy {policy.name!r} is one too many: there are {MAX_POLICIES}",
                hint="remove one before",
            )
        if len(self._quiet):
            self._quiet = WindowSeries()
        new = _Machine(policy, now_ns, self._quiet)
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
        """Remove a policy. Raises UsageError if the name is unknown."""
        self._named(name)
        del self._machines[name]

    def window(
        self,
        row: Rows[METRIC],
        end_ns: int,
        seconds: float,
        selected: Mapping[SelectedMetric, Estimate],
        count: int = 1,
    ) -> list[PolicyTransition]:
        """Take in a window and return all transitions; `row` has dtype METRIC, shape (). A metric
        that is missing in `selected` is unknown. Outcomes have all comparisons if the policy runs
        or its condition holds, and in the window with most packets. If all policies are dull, the
        window may stand for `count` windows, with the means of its counts in each."""
        if count > 1:
            seconds /= count
            means = tuple(value / count for value in row.item())
            row = np.array(means, [(name, "f8") for name in METRIC.names or ()])
            selected = {metric: metric.mean(of, count) for metric, of in selected.items()}
        self._series.append(row, end_ns, seconds, selected, count)
        whole = int(row["packets"]) > self._most
        self._most = max(self._most, int(row["packets"]))
        transitions, quiet = self._evaluate(
            self._machines.values(), row, end_ns, seconds, selected, whole, count
        )
        for series in self._quiet_series(quiet):
            series.append(row, end_ns, seconds, selected, count)
        return transitions

    def is_dull(self, most: float, recent: float) -> bool:
        """Whether no window with such limits (`Condition.never_holds`) changes a policy."""
        return all(machine.is_dull(most, recent) for machine in self._machines.values())

    def _evaluate(
        self, machines: Iterable[_Machine], row: Rows[METRIC], end_ns: int, seconds: float,
        selected: Mapping[SelectedMetric, Estimate], whole: bool, count: int,
    ) -> tuple[list[PolicyTransition], list[_Machine]]:  # fmt: skip
        """Let policies take in the last `count` windows; see `_Machine.window`. Returns all
        transitions, and the policies for which the windows are quiet."""
        not_nothing = {metric: value for metric, value in selected.items() if value != NOTHING}
        not_zero = self._series.not_zero() | not_nothing
        transitions, quiet = [], []
        for machine in machines:
            found, is_quiet = machine.window(
                self._series, row, end_ns, seconds, selected, whole, not_zero, count
            )
            transitions += found
            if is_quiet:
                quiet.append(machine)
        return transitions, quiet

    def _quiet_series(self, quiet: Collection[_Machine]) -> Collection[WindowSeries]:
        """Return the series of the policies for which a window is quiet; others no longer share
        them."""
        found = {id(machine.quiet): machine.quiet for machine in quiet}
        for machine in self._machines.values():
            if id(machine.quiet) in found and machine not in quiet:
                machine.quiet = machine.quiet.copy(machine.metrics)
        return found.values()

    def rest(
        self, end_ns: int, seconds: float, count: int, recent: Mapping[SelectedMetric, Estimate]
    ) -> tuple[int, list[PolicyTransition]]:
        """Take in up to `count` empty windows; the first one ends at `end_ns`. `recent`
        has the metrics that are not 0 yet. Returns the number of windows and all transitions. The
        outcome of a dull policy stays the same."""
        machines = self._machines.values()
        awake = [
            one for one in machines if one.metrics & recent.keys() or not one.is_dull(0.0, 0.0)
        ]
        taken = 1 if awake or recent else count
        last_ns = end_ns + round((taken - 1) * seconds * 1e9)
        row, nothing = np.zeros((), METRIC), {**nothing_of(self.metrics()), **recent}
        self._series.append(row, last_ns, seconds, nothing, taken)
        transitions, quiet = self._evaluate(awake, row, end_ns, seconds, nothing, False, taken)
        quiet += [one for one in machines if one not in awake and one.rest(taken)]
        for series in self._quiet_series(quiet):
            series.append(row, last_ns, seconds, nothing, taken)
        return taken, transitions

    def activate(self, name: str, now_ns: int) -> PolicyTransition | None:
        """Run a policy until `deactivate`. Returns None if its state stays the same."""
        return self._named(name).force(now_ns)

    def deactivate(self, name: str, now_ns: int) -> PolicyTransition | None:
        """End a policy, forced or not. Returns None if it does not run.

        Raises UsageError for a permanent policy.
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
        return tuple(machine.standing for machine in self._machines.values())

    def metrics(self) -> frozenset[SelectedMetric]:
        """Return the metrics of selections that any condition needs."""
        return frozenset().union(*(machine.metrics for machine in self._machines.values()))

    def active(self) -> tuple[str, ...]:
        """Names of the policies whose applications run."""
        return tuple(s.policy.name for s in self.policies() if s.state.runs)

    def rows(self) -> Rows[POLICY]:
        """The status of each policy as rows of dtype POLICY (n,); `selected` is 0."""
        return np.array([_row(standing) for standing in self.policies()], POLICY)

    def _named(self, name: str) -> _Machine:
        try:
            return self._machines[name]
        except KeyError:
            hint = did_you_mean(name, self._machines)
            raise UsageError(f"there is no policy {name!r}", hint=hint) from None


def _row(standing: PolicyStatus) -> tuple[object, ...]:
    """Return the values of a POLICY."""
    found, outcome = standing.outcome, (0, 0)
    compared: tuple[object, ...] = (np.nan,) * 4
    words = "", b""
    if found:
        deciding, outcome = found.deciding, (bool(found.holds), found.certain)
        compared = deciding.value, deciding.low, deciding.high, deciding.threshold
        words = deciding.unit, deciding.text.encode()
    policy = standing.policy.name
    return policy, standing.state, *outcome, b"", standing.since_ns, *compared, 0, 0, *words
