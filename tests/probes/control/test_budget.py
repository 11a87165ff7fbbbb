"""The governor of the CPU budget, by a clock and costs that the tests make up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from bpf import features
from probes.control import budget_keeper
from probes.control.budget import Governor, Resource, Step
from probes.control.budget_keeper import STEPS, BudgetHost, BudgetKeeper, KernelTime
from probes.control.controller import Controller
from probes.snapshot import Event, Item

BUDGET = 0.05
NAMES = [step.name for step in STEPS]
SAVES = {"owners": 0.3, "windows": 0.2, "largest": 0.5, "applications": 0.4, "monitor": 0.5}
"""Share of the use that a step saves; `flows` saves all."""


@dataclass
class Run:
    """A run whose use is a function of the time and of the steps that are taken."""

    user: Callable[[float], float] = lambda now: 0.0
    kernel: Callable[[float], float] = lambda now: 0.0
    has: set[str] = field(default_factory=lambda: set(NAMES))
    taken: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    now = total = 0.0
    packets = 1000.0

    def __post_init__(self) -> None:
        self.governor = Governor[Run](
            self, BUDGET, [_step(each) for each in STEPS], self.events.append
        )

    def left(self, resource: Resource) -> float:
        left = 1.0
        for each in STEPS:
            if each.name in self.taken and resource in each.relieves:
                left *= 1 - SAVES.get(each.name, 1.0)
        return left

    def runs(self, seconds: int, *, rows: int = 10, cut: bool = False) -> list[str]:
        """Return the steps of some seconds: `-owners`, `+owners`."""
        before = len(self.events)
        for _ in range(seconds):
            self.now += 1
            self.total += self.user(self.now) * self.left(Resource.USER)
            self.governor.window(self.now, rows, self.packets, cut=cut)
            kernel = self.kernel(self.now) * self.left(Resource.KERNEL)
            self.governor.tick(self.now, self.total, None if self.now % 5 else kernel)
        signs = {"begin": "-", "end": "+"}
        return [signs[each.phase] + each.subject for each in self.events[before:]]


def _step(real: Step[BudgetHost]) -> Step[Run]:
    """A step of the product, over a run of these tests."""

    def applies(run: Run) -> bool:
        return real.name in run.has

    def turn(run: Run, on: bool) -> None:
        (run.taken.add if on else run.taken.discard)(real.name)

    return Step(real.name, real.down, real.up, real.relieves, applies, turn, real.limits_rows)


def test_a_run_within_its_budget_takes_no_step() -> None:
    run = Run(user=lambda now: 0.049, kernel=lambda now: 0.049)
    assert run.runs(600) == []


def test_a_short_burst_takes_one_step_and_gives_it_back() -> None:
    run = Run(user=lambda now: 0.5 if now == 20 else 0.01)
    assert run.runs(120) == ["-owners", "+owners"]


def test_a_lasting_load_takes_steps_in_their_order_until_it_fits() -> None:
    run = Run(user=lambda now: 0.12 if now > 10 else 0.01)
    assert run.runs(300) == ["-owners", "-windows", "-largest"]
    state = run.governor.state()
    assert state.steps == ("owners", "windows", "largest")
    assert state.used <= BUDGET


def test_the_end_of_a_load_takes_all_steps_back_in_the_opposite_order() -> None:
    run = Run(user=lambda now: 0.12 if 10 < now < 60 else 0.01)
    assert run.runs(400) == ["-owners", "-windows", "-largest", "+largest", "+windows", "+owners"]
    assert run.taken == set()


def test_a_step_that_would_exceed_the_budget_again_is_tried_ever_more_seldom() -> None:
    """The use is small because of the step: the same packets would cost as much as before."""
    run = Run(user=lambda now: 0.07, has={"flows"})
    assert run.runs(60) == ["-flows"]
    assert len(run.runs(4 * 3600)) < 20
    assert "flows" in run.taken


def test_a_step_is_taken_back_soon_if_few_packets_are_left() -> None:
    run = Run(user=lambda now: 0.07 if now < 60 else 0.001, has={"flows"})
    assert run.runs(60) == ["-flows"]
    run.packets = 10.0
    assert run.runs(15) == ["+flows"]


def test_a_load_that_comes_and_goes_does_not_make_steps_flap() -> None:
    run = Run(user=lambda now: 0.2 if now % 40 < 8 else 0.001, has={"monitor"})
    run.runs(60)
    assert len(run.runs(3600)) < 30


@pytest.mark.parametrize("has", [{"owners", "monitor", "flows"}, {"monitor"}])
def test_only_steps_that_relieve_the_kernel_help_the_kernel(has: set[str]) -> None:
    run = Run(kernel=lambda now: 0.09, has=has)
    assert run.runs(100) == ["-monitor"]
    assert "programs in the kernel used 9.0 %" in run.events[0].text


def test_a_step_says_the_use_the_budget_and_what_it_does() -> None:
    run = Run(user=lambda now: 0.06)
    run.runs(10)
    (event, *_) = run.events
    assert event.text == (
        "used 6.0 % of a core over 5 s, of 5.0 %: owners of flows only in each window of 4"
    )
    assert (event.severity, event.unit) == ("warning", "%")
    assert event.value == pytest.approx(6)


def test_a_cut_window_takes_the_steps_up_to_the_largest_flows_at_once() -> None:
    run = Run(user=lambda now: 0.02)
    run.runs(10)
    assert run.runs(1, rows=5000, cut=True) == ["-owners", "-windows", "-largest"]
    assert run.runs(60, rows=200, cut=True) == []
    assert run.runs(60, rows=10) == ["+largest", "+windows", "+owners"]


def test_a_flood_gets_as_many_rows_as_the_rest_of_five_seconds_pays() -> None:
    run = Run(user=lambda now: 0.01, has={"largest"})
    run.runs(10)
    # Of 250 ms, 50 ms are spent; half of the rest pays rows of 20 us.
    assert run.governor.most_rows(run.now, run.total) == pytest.approx(5000, rel=0.01)
    # Rows that cost 100 us each.
    run.user = lambda now: 0.04
    run.runs(30, rows=400)
    usual = run.governor.most_rows(run.now, run.total)
    assert usual == 800, "a usual window fits, until the step `largest`"
    run.user = lambda now: 0.06
    run.runs(12, rows=400)
    assert "largest" in run.taken
    assert run.governor.most_rows(run.now, run.total + 0.2) == 64


@pytest.mark.parametrize(
    ("held", "is_usual", "told"),
    [
        ((), True, []),
        ((), False, ["without CAP_SYS_ADMIN only user space has a budget, because the kernel keeps "
                     "no times of programs"]),
        (features.Capability, True, ["only user space has a budget: no times (refused)"]),
    ],
    ids=["usual", "asked", "kernel"],
)  # fmt: skip
def test_a_lacking_right_is_told_to_users_who_ask_for_a_share(
    monkeypatch: pytest.MonkeyPatch, held: Iterable[features.Capability], is_usual: bool,
    told: list[str],
) -> None:  # fmt: skip
    def refuse(_: KernelTime) -> None:
        raise PermissionError(1, "refused")

    monkeypatch.setattr(budget_keeper.KernelTime, "__init__", refuse)
    items = list[Item]()
    with Controller() as controller:
        monkeypatch.setattr(features, "capabilities", lambda: frozenset(held))
        controller.listen(items.append)
        with BudgetKeeper(controller, 0.25, draws=True, is_usual=is_usual).running():
            pass
    assert [item.text for item in items if isinstance(item, Event)] == told
