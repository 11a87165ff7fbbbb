"""Invariants of a policy under any order of windows and operators' commands (S2.12, S2.23)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from probes.monitor.engine import PolicyTransition
from probes.monitor.state import PolicyState
from tests.probes.monitor.test_engine import SECOND, Run, row

_, ARMED, ACTIVE, HOLD, COOLDOWN = PolicyState


class Machine(RuleBasedStateMachine):
    """One policy: it stays active for its minimum time; only an operator cuts its cool-down short;
    only an operator ends an operator's activation."""

    @initialize(
        until=st.sampled_from(["", "until flows < 200"]),
        hold=st.integers(0, 4),
        cooldown=st.integers(0, 4),
    )
    def begin(self, until: str, hold: int, cooldown: int) -> None:
        self.hold_ns, self.cooldown_ns = hold * SECOND, cooldown * SECOND
        self.until = until
        self.run = Run(f"a: flows > 500 {until} hold {hold}s cooldown {cooldown}s -> dns")
        self.forced = False
        self.begun_ns = self.ended_ns = 0
        """When it last began and ended to run."""
        self.state = ARMED

    @rule(flows=st.sampled_from([0, 100, 300, 501, 900]), after=st.sampled_from([0.5, 1, 2]))
    def window(self, flows: float, after: float) -> None:
        self.run.now_ns += round(after * SECOND)
        now_ns = self.run.now_ns
        was = self.state
        moved = self.run.engine.window(row(flows), now_ns, after, {})
        state = self.follow(moved)
        if self.forced:
            assert moved == []
        if was in (ARMED, HOLD):
            assert (state is ACTIVE) == (flows > 500)
        if was.runs and not state.runs:
            assert now_ns - self.begun_ns >= self.hold_ns
            assert flows < 200 or (not self.until or was is HOLD)
            assert flows <= 500
        if was is COOLDOWN and state is not COOLDOWN:
            assert now_ns - self.ended_ns >= self.cooldown_ns
        self.note(was, state)

    @rule()
    def activate(self) -> None:
        was = self.state
        moved = self.run.engine.activate("a", self.run.now_ns)
        assert self.follow([moved] if moved else []) is ACTIVE
        assert (moved is None) == (was is ACTIVE)
        self.forced = True
        self.note(was, ACTIVE)

    @rule()
    def deactivate(self) -> None:
        was = self.state
        moved = self.run.engine.deactivate("a", self.run.now_ns)
        state = self.follow([moved] if moved else [])
        assert (moved is not None) == was.runs
        if moved:
            assert state is (COOLDOWN if self.cooldown_ns else ARMED)
        self.forced = False
        self.note(was, state)

    def follow(self, moved: list[PolicyTransition]) -> PolicyState:
        """The transitions lead from the earlier state to the present one."""
        for each in moved:
            assert (each.policy, each.before, each.at_ns) == ("a", self.state, self.run.now_ns)
            assert each.after is not each.before
            self.state = each.after
        assert self.run.engine.policies()[0].state is self.state
        return self.state

    def note(self, was: PolicyState, state: PolicyState) -> None:
        if state.runs and not was.runs:
            self.begun_ns = self.run.now_ns
        if was.runs and not state.runs:
            self.ended_ns = self.run.now_ns

    @invariant()
    def agrees(self) -> None:
        standing = self.run.engine.policies()[0]
        assert standing.forced == self.forced
        assert self.run.engine.active() == (("a",) if self.state.runs else ())
        assert self.run.engine.rows()["state"].tolist() == [self.state]
        assert standing.until_ns == {
            HOLD: self.begun_ns + self.hold_ns,
            COOLDOWN: self.ended_ns + self.cooldown_ns,
        }.get(self.state, 0)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMachine = Machine.TestCase
