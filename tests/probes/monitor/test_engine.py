"""Policies as state machines, window by window."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.errors import UsageError
from probes.monitor.condition import Condition
from probes.monitor.engine import Engine, PolicyTransition
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC, POLICY
from probes.monitor.state import MAX_POLICIES, PolicyState

OFF, ARMED, ACTIVE, HOLD, COOLDOWN = PolicyState
SECOND = 1_000_000_000


def row(flows: float = 0, packets: int = 1000, **more: int) -> Array:
    """One window's metrics."""
    made = np.zeros((), METRIC)
    made["flows"], made["flows_low"], made["flows_high"] = flows, flows * 0.96, flows * 1.04
    made["packets"] = packets
    for field, value in more.items():
        made[field] = value
    return made


class Run:
    """An engine that is given windows of one second each."""

    def __init__(self, *policies: str) -> None:
        self.engine = Engine()
        self.now_ns = 100 * SECOND
        for policy in policies:
            self.engine.set(Policy.parse_short(policy), self.now_ns)

    def window(self, flows: float, **more: int) -> list[PolicyTransition]:
        self.now_ns += SECOND
        return self.engine.window(row(flows, **more), self.now_ns, 1.0, {})

    def states(self, flows: Sequence[float]) -> list[PolicyState]:
        """The first policy's after each window."""
        found = []
        for count in flows:
            self.window(count)
            found.append(self.engine.policies()[0].state)
        return found


TABLES: dict[str, tuple[str, list[tuple[int, PolicyState]]]] = {
    "its condition": (
        "a: flows > 500 -> dns",
        [(10, ARMED), (501, ACTIVE), (900, ACTIVE), (500, ARMED), (501, ACTIVE), (0, ARMED)],
    ),
    "hysteresis": (
        "a: flows > 500 until flows < 200 -> dns",
        [(300, ARMED), (501, ACTIVE), (300, ACTIVE), (200, ACTIVE), (199, ARMED), (300, ARMED)],
    ),
    "minimum hold": (
        "a: flows > 500 hold 3s -> dns",
        [(501, ACTIVE), (9, HOLD), (9, HOLD), (9, ARMED), (501, ACTIVE)],
    ),
    "its reason comes back while it is held": (
        "a: flows > 500 hold 3s -> dns",
        [(501, ACTIVE), (9, HOLD), (501, ACTIVE), (501, ACTIVE), (9, ARMED)],
    ),
    "its reason comes back when the hold is over": (
        "a: flows > 500 hold 2s -> dns",
        [(501, ACTIVE), (9, HOLD), (501, ACTIVE), (9, ARMED)],
    ),
    "in between, while it is held": (
        "a: flows > 500 until flows < 200 hold 3s -> dns",
        [(501, ACTIVE), (9, HOLD), (300, HOLD), (300, ARMED)],
    ),
    "a hold that is over before the reason is": (
        "a: flows > 500 hold 2s -> dns",
        [(501, ACTIVE), (501, ACTIVE), (501, ACTIVE), (9, ARMED)],
    ),
    "cool-down": (
        "a: flows > 500 cooldown 2s -> dns",
        [(501, ACTIVE), (9, COOLDOWN), (900, COOLDOWN), (900, ACTIVE), (9, COOLDOWN)],
    ),
    "cool-down, and then calm": (
        "a: flows > 500 cooldown 2s -> dns",
        [(501, ACTIVE), (9, COOLDOWN), (900, COOLDOWN), (9, ARMED), (900, ACTIVE)],
    ),
    "all of it": (
        "a: flows > 500 until flows < 200 hold 2s cooldown 2s -> dns",
        [(501, ACTIVE), (9, HOLD), (300, COOLDOWN), (900, COOLDOWN), (300, ARMED), (900, ACTIVE)],
    ),
    "an anomaly": (
        "a: flows > 5 * baseline(20s) -> dns",
        [(100, ARMED)] * 10 + [(400, ARMED), (600, ACTIVE), (600, ACTIVE), (101, ARMED)],
    ),
    "a lasting level does not enter the baseline while the policy is active for it": (
        "a: flows > 5 * baseline(5s) -> dns",
        [(100, ARMED)] * 10 + [(600, ACTIVE)] * 30 + [(100, ARMED), (600, ACTIVE)],
    ),
    "permanent": ("a: always -> dns", [(0, ACTIVE), (900, ACTIVE)]),
    "operator": ("a: operator -> dns", [(0, OFF), (900, OFF)]),
}


@pytest.mark.parametrize("case", TABLES)
def test_state_after_each_window(case: str) -> None:
    """S2.11, S2.12, S2.23."""
    policy, windows = TABLES[case]
    assert Run(policy).states([flows for flows, _ in windows]) == [state for _, state in windows]


def test_what_is_not_known_changes_nothing() -> None:
    """A baseline and a maximum of windows that are not there yet neither begin nor end it."""
    run = Run(
        "a: flows > 5 * baseline(60s) -> dns", "b: flows > 500 until max(flows, 5s) < 9 -> dns"
    )
    assert run.states([1, 999, 1, 999]) == [ARMED] * 4
    assert run.engine.active() == ("b",)
    assert run.states([1] * 4) == [ARMED] * 4
    assert run.engine.active() == ("b",)
    run.window(1)
    assert run.engine.active() == ()


def test_an_active_policy_whose_reason_is_not_known_stays_active() -> None:
    run = Run("a: flows > 500 -> dns")
    run.window(501)
    run.engine.set(Policy.parse_short("a: flows > 5 * baseline(1h) -> dns"), run.now_ns)
    assert run.states([1, 1]) == [ACTIVE, ACTIVE]


def test_windows_from_before_it_was_active_count_for_its_end() -> None:
    """The engine keeps the windows that `deactivate` needs while it evaluates only `activate`."""
    run = Run("a: flows > 500 until max(packets, 1m) < 2000 -> dns")
    assert run.states([1] * 70 + [501, 501]) == [ARMED] * 70 + [ACTIVE, ARMED]


def test_a_transition_says_when_and_why() -> None:
    """With the values that were compared."""
    run = Run("a: flows > 500 hold 2s cooldown 2s -> dns")
    run.window(10)
    (begun,) = run.window(812)
    assert (begun.policy, begun.before, begun.after) == ("a", ARMED, ACTIVE)
    assert begun.at_ns == 102 * SECOND
    assert "flows" in begun.cause
    assert "812" in begun.cause
    assert "500" in begun.cause
    (held,) = run.window(312)
    assert "312" in held.cause
    assert [each.cause for each in run.window(0)] == ["it was active for 2 s at least"]
    run.window(0)
    over, again = run.window(1234)
    assert (over.before, over.after, over.cause) == (COOLDOWN, ARMED, "2 s of cool-down are over")
    assert (again.before, again.after) == (ARMED, ACTIVE)
    (standing,) = run.engine.policies()
    assert (standing.since_ns, standing.cause) == (run.now_ns, again.cause)


def test_it_is_told_until_when_it_waits() -> None:
    run = Run("a: flows > 500 hold 5s cooldown 10s -> dns")
    until = []
    for flows in (0, 501, 501, 9, 9, 9, 9, 9):
        run.window(flows)
        until.append(run.engine.policies()[0].until_ns // SECOND)
    assert until == [0, 0, 0, 107, 107, 107, 117, 117]


def test_an_operator_activates_and_ends_a_policy_that_only_he_does() -> None:
    """S2.12."""
    run = Run("a: operator -> dns")
    begun = run.engine.activate("a", 5)
    assert begun == PolicyTransition("a", OFF, ACTIVE, 5, "an operator activated it")
    assert run.engine.active() == ("a",)
    assert run.engine.activate("a", 6) is None
    run.states([0, 900])
    ended = run.engine.deactivate("a", 7)
    assert ended == PolicyTransition("a", ACTIVE, OFF, 7, "an operator deactivated it")
    assert run.engine.deactivate("a", 8) is None
    assert run.engine.active() == ()


def test_what_an_operator_activated_no_condition_ends() -> None:
    """S2.12: a policy that an operator ends cools down, whatever its hold."""
    run = Run("a: flows > 500 hold 60s cooldown 2s -> dns")
    run.engine.activate("a", run.now_ns)
    assert run.states([9, 900, 9]) == [ACTIVE] * 3
    assert run.engine.policies()[0].forced
    run.engine.deactivate("a", run.now_ns)
    assert not run.engine.policies()[0].forced
    assert run.states([900, 900]) == [COOLDOWN, ACTIVE]
    assert run.engine.activate("a", run.now_ns) is None
    assert run.states([9]) == [ACTIVE]


@pytest.mark.parametrize("windows", [[501, 9], [501, 9, 9, 9]], ids=["held", "cooling down"])
def test_an_operator_activates_from_any_state(windows: list[float]) -> None:
    run = Run("a: flows > 500 hold 3s cooldown 9s -> dns")
    run.states(windows)
    transition = run.engine.activate("a", run.now_ns)
    assert transition is not None
    assert transition.after is ACTIVE
    assert run.states([9] * 9) == [ACTIVE] * 9


def test_a_permanent_policy_is_not_deactivated() -> None:
    run = Run("a: always -> accounting")
    assert run.engine.active() == ("a",)
    assert run.engine.activate("a", 5) is None
    with pytest.raises(UsageError, match="policy 'a' is permanent; remove it, or give it another"):
        run.engine.deactivate("a", 5)


def test_a_policy_that_is_not_there_is_told() -> None:
    run = Run("flood: flows > 500 -> dns")
    for ask in (run.engine.remove, lambda name: run.engine.activate(name, 5)):
        with pytest.raises(UsageError, match=r"no policy 'food'; did you mean flood\?"):
            ask("food")
    run.engine.remove("flood")
    assert run.engine.policies() == ()


def test_a_policy_that_is_changed_goes_on_from_where_it_was() -> None:
    """S2.14: even its condition; that counts from the next window on."""
    run = Run("a: flows > 500 cooldown 5s -> dns", "b: operator -> dns")
    run.states([501])
    changed = Policy.parse_short("a: flows > 700 hold 4s -> half_open")
    assert run.engine.set(changed, run.now_ns) is None
    standing = run.engine.policies()[0]
    assert (standing.policy, standing.state) == (changed, ACTIVE)
    assert run.states([600, 600, 600, 600]) == [HOLD, HOLD, HOLD, ARMED]
    run.engine.activate("a", run.now_ns)
    run.engine.set(Policy.parse_short("a: flows > 9999 -> dns"), run.now_ns)
    assert run.states([9, 9]) == [ACTIVE, ACTIVE]


def test_a_policy_with_another_mode_begins_anew() -> None:
    run = Run("a: flows > 500 -> dns")
    run.states([501])
    transition = run.engine.set(Policy.parse_short("a: operator -> dns"), 5)
    assert transition == PolicyTransition("a", ACTIVE, OFF, 5, "its mode is operator from now on")
    transition = run.engine.set(Policy.parse_short("a: always -> dns"), 6)
    assert transition is not None
    assert (transition.before, transition.after) == (OFF, ACTIVE)
    assert run.engine.policies()[0].since_ns == 6


def test_there_is_a_limit_to_policies() -> None:
    run = Run(*(f"a{n}: flows > {n} -> dns" for n in range(MAX_POLICIES)))
    with pytest.raises(UsageError, match="policy 'b' is one too many: there are 40; remove one"):
        run.engine.set(Policy.parse_short("b: always -> dns"), 5)
    run.engine.set(Policy.parse_short("a0: flows > 7 -> dns"), 5)


def test_one_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("a: flows > 500 -> dns", "b: flows > 500 -> dns", "c: flows > 1 -> dns")
    run.states([501])
    evaluate = Condition.evaluate

    def broken(self: Condition, *arguments: Any, **more: Any) -> Any:
        if self.text == "flows > 500" and not seen:
            seen.append(self)
            raise OverflowError("too much")
        return evaluate(self, *arguments, **more)

    seen: list[Condition] = []
    monkeypatch.setattr(Condition, "evaluate", broken)
    assert [each.policy for each in run.window(0)] == ["b", "c"]
    first, second, _ = run.engine.policies()
    assert (first.state, first.failure) == (ACTIVE, "flows > 500: too much")
    assert (second.state, second.failure) == (ARMED, "")
    assert run.engine.rows()["holds"].tolist() == [0, 0, 0]
    assert [each.policy for each in run.window(0)] == ["a"]
    assert run.engine.policies()[0].failure == ""


def test_rows_say_how_far_each_is_from_its_threshold() -> None:
    run = Run("a: flows > 500 until flows < 200 -> dns", "b: always -> accounting")
    run.window(490)
    rows = run.engine.rows()
    assert rows.dtype == POLICY
    assert rows["policy"].tolist() == [b"a", b"b"]
    assert rows["state"].tolist() == [ARMED, ACTIVE]
    assert rows["holds"].tolist() == [0, 0]
    assert rows["certain"][0] == 0
    first = rows[0]
    assert (first["value"], first["threshold"]) == (490, 500)
    assert first["low"] == pytest.approx(490 * 0.96)
    assert first["high"] == pytest.approx(490 * 1.04)
    assert np.isnan(rows[1]["value"])
    run.window(600)
    assert run.engine.rows()["holds"].tolist() == [1, 0]
    assert run.engine.rows()["certain"][0] == 1
    assert run.engine.rows()["since_ns"].tolist() == [102 * SECOND, 100 * SECOND]
    run.window(190)
    assert run.engine.rows()["threshold"][0] == 200


def test_a_flood_is_flagged_in_its_first_window_and_its_end_in_the_one_after() -> None:
    """The paper's: from a moment on each packet is joined by one of a random 5-tuple, p = 0.1."""
    generator = np.random.default_rng(5)
    run = Run("flood: flows > 500 -> heavy_hitters", "odd: flows > 5 * baseline(60s) -> dns")
    seen = []
    for number in range(40):
        packets = int(generator.poisson(20_000))
        joined = int(generator.binomial(packets, 0.1)) if 20 <= number < 30 else 0
        flows = float(generator.normal(1, 0.013) * (joined + generator.integers(60, 80)))
        moved = run.window(flows, packets=packets + joined, udp_packets=packets + joined)
        seen += [(number, each.policy, each.after) for each in moved]
    assert seen == [
        (20, "flood", ACTIVE),
        (20, "odd", ACTIVE),
        (30, "flood", ARMED),
        (30, "odd", ARMED),
    ]


def test_windows_in_which_nothing_is_decided_are_quick() -> None:
    """31 policies, with a baseline each, in a small part of the 5 ms to an activation."""
    run = Run(
        *(
            f"a{n}: flows > {n + 2} * baseline(60s) and udp_packets / packets > 80% or bytes > 1e12"
            " until flows < 10 hold 5s -> dns"
            for n in range(31)
        )
    )
    for number in range(100):
        run.window(100 + number, udp_packets=900)
    best = min(_seconds(run) for _ in range(20))
    assert best < 0.004


def _seconds(run: Run) -> float:
    begun = time.thread_time()
    run.window(100)
    return time.thread_time() - begun


def test_windows_without_packets_may_be_taken_in_at_once() -> None:
    """D3: the same transitions at the same times as window by window."""
    dice = random.Random(1)
    policies = (
        "busy: rate(packets) > 3 * baseline(20s, 5/s) hold 3s cooldown 4s -> dns",
        "held: packets > 20 until avg(packets, 6s) < 4 -> dns",
        "silent: sum(packets, 5s) == 0 until packets > 0 -> dns",
        "quiet: packets < 0.3 * baseline(10s) -> dns",
        "peaks: max(rate(packets), 8s) > 15 and not min(packets, 3s) > 5 -> dns",
        "tunnel: bytes / packets > 100 or flows / packets <= 1 -> dns",
        "shares: udp_packets / packets > 80% -> dns",
        "always: always -> dns",
    )
    for chosen in (policies, policies[:1], policies[-2:]):
        one, other = Run(*chosen), Run(*chosen)
        steps, slept = [], 0
        for _ in range(40):
            count = dice.choice((0, 5, 12, 30, 100))
            more = {"packets": count, "bytes": 60 * count, "udp_packets": count * (count > 5)}
            assert one.window(count, **more) == other.window(count, **more)
            left = dice.choice((0, 1, 2, 7, 30))
            for _ in range(left):
                steps += one.window(0, packets=0)
            at_once = []
            while left:
                taken, moved = other.engine.rest(other.now_ns + SECOND, 1.0, left, {})
                other.now_ns += taken * SECOND
                at_once += moved
                slept = max(slept, taken)
                left -= taken
            assert at_once == steps[len(steps) - len(at_once) :]
            assert [s.state for s in one.engine.policies()] == [
                s.state for s in other.engine.policies()
            ]
        assert (slept == 30) == (len(chosen) < 3)
