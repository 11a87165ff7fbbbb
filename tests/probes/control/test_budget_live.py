"""The CPU budget in the kernel: floods on a veth, exact totals, and the events of steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from app.outputs.formats import FORMATS
from app.outputs.views import VIEWS
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.control import budget
from probes.control.budget_keeper import STEPS, BudgetKeeper
from probes.flow.records import FLOW
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.snapshot import Item, LossReason, Snapshot
from tests.probes.deck import Deck, deck
from tests.probes.flow.test_windows import Collected, counting, silent_pair, watching
from tests.support.generator import Generator
from tests.support.sight import becomes

__all__ = ["deck"]
SHARE = 0.04


def written(item: Item) -> None:
    """Encode rows as a file of tables does."""
    if isinstance(item, Snapshot) and item.rows.dtype == FLOW:
        FORMATS["csv"].encode(list(VIEWS["flows"].records(item, nested=False)))


def steps(collected: Collected) -> list[str]:
    sign = {"begin": "-", "end": "+"}
    first, *told = [event for event in collected.events if event.source == budget.SOURCE]
    assert first.text == "below 5.0 %, the first seconds of an alarm may use more"
    return [sign[event.phase] + event.subject for event in told]


@contextmanager
def flooded(generator: Generator, rate: int) -> Iterator[None]:
    """Send so many frames a second, by one thread: the budget does not count it while it lives."""
    over = threading.Event()

    def flood() -> None:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            generator._send(rate // 4)
            due += 0.25

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


@pytest.mark.slow
@pytest.mark.timing
def test_a_flood_of_new_flows_stays_within_the_budget_and_loses_no_packet(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_PATIENCE_S", (3.0, 640.0))
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 0.5) as (collected, _, controller),
        Generator(compiler, left, flows=0) as generator,
    ):
        controller.listen(written)
        keeper = BudgetKeeper(controller, SHARE, draws=True)
        with keeper.running():
            uses = [(time.monotonic(), keeper.used())]
            with flooded(generator, 200_000):
                for _ in range(10):
                    time.sleep(1)
                    uses.append((time.monotonic(), keeper.used()))
            assert "largest" in controller.budget().steps
            assert becomes(lambda: not controller.budget().steps, 40), controller.budget()
        expected = seen(controller)
        controller.close()
    shares = [(b - a) / (now - then) for (then, a), (now, b) in zip(uses, uses[5:], strict=False)]
    # The first 5 s begin before the flood is known.
    assert shares[0] < 1.5 * SHARE, shares
    assert max(shares[1:]) < 1.1 * SHARE, shares
    assert collected.packets() + collected.lost(LossReason.BUDGET) == expected > 1_000_000
    assert set(collected.losses()) == {LossReason.BUDGET}
    told = steps(collected)
    assert told[:2] == ["-windows", "-largest"]
    assert told[-2:] == ["+largest", "+windows"]
    for before, after in pairwise(collected.snapshots):
        assert before.end_ns == after.start_ns


def test_flows_that_are_off_count_each_packet_as_a_loss_for_the_budget(compiler: Compiler) -> None:
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 0.2) as (collected, probe, controller),
        Generator(compiler, left, flows=500) as generator,
    ):
        generator.send(20_000)
        controller.export("flow")
        probe.turn_off(True)
        generator.send(20_000)
        probe.turn_off(False)
        controller.export("flow")
        generator.send(20_000)
        expected = seen(controller)
        controller.close()
    lost = collected.losses()[LossReason.BUDGET]
    assert 15_000 < lost.packets <= 20_000
    assert lost.bytes == lost.packets * len(generator.frame)
    assert collected.packets() + lost.packets == expected
    marks = {(each.cut, LossReason.BUDGET in each.losses) for each in collected.snapshots}
    assert marks == {(True, True), (False, False)}


def test_full_tables_are_emptied_while_the_window_goes_on(
    compiler: Compiler,
) -> None:
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 5.0) as (collected, probe, controller),
        Generator(compiler, left, flows=0) as generator,
    ):
        probe.most_rows = lambda: 1000
        generator.send(150_000)
        expected = seen(controller)
        controller.close()
    assert len(collected.snapshots) < 4
    assert all(len(window.rows) <= 1000 for window in collected.snapshots)
    assert collected.packets() + collected.lost(LossReason.BUDGET) == expected > 100_000


def test_the_largest_flows_stay(compiler: Compiler) -> None:
    with silent_pair() as (left, right), watching(right, 60.0) as (collected, probe, controller):
        probe.most_rows = lambda: 2
        with Generator(compiler, left, flows=0, start=1) as few:
            few.send(1000)
        for _ in range(2):
            with Generator(compiler, left, flows=0, start=1 << 20) as large:
                large.send(64)
        controller.close()
    (window,) = (each for each in collected.snapshots if len(each.rows))
    assert sorted(window.rows["packets"].tolist()) == [2, 2]
    assert collected.lost(LossReason.BUDGET) > 1000


@pytest.mark.slow
def test_a_suspended_monitor_has_no_windows_and_then_whole_ones(deck: Deck) -> None:
    controller = deck.controller
    controller.watch_metrics("right", MonitorOptions(bits=8, interval=0.2, ingress=Hook.XDP))
    service = controller.monitored()
    assert service

    def windows() -> list[Snapshot]:
        return [
            each for each in deck.items
            if isinstance(each, Snapshot) and (each.probe, each.metric) == (PROBE, METRICS_TABLE)
        ]  # fmt: skip

    assert becomes(lambda: len(windows()) >= 2)
    service.probe.suspended = True
    assert becomes(lambda: not len(deck.controller.hooks()[0].chain))
    before = len(windows())
    deck.run(1000)
    time.sleep(0.5)
    assert len(windows()) == before
    service.probe.suspended = False
    assert becomes(lambda: bool(len(deck.controller.hooks()[0].chain)))
    deck.run(500)
    assert becomes(lambda: len(windows()) >= before + 2)
    after = windows()[before:]
    assert sum(int(each.rows["packets"].sum()) for each in after) in (0, 500)
    assert after[0].seconds < 0.3


@pytest.mark.slow
def test_held_applications_get_no_packets_and_say_so(deck: Deck) -> None:
    controller = deck.controller
    policy = Policy.parse_short("always: always -> accounting")
    options = MonitorOptions(bits=8, interval=0.2, ingress=Hook.XDP)
    controller.watch_metrics("right", options, policies=[policy])
    (step,) = (each for each in STEPS if each.name == "applications")

    def state() -> tuple[bool, bool, int]:
        info = controller.monitor()
        assert info
        (application,) = info.applications
        return application.active, application.held, application.packets

    deck.receive(10)
    assert becomes(lambda: state() == (True, False, 10))
    controller.export("accounting")
    assert step.applies(controller)
    step.turn(controller, True)
    deck.receive(10)
    assert not becomes(lambda: state() != (False, True, 10), 0.5)
    controller.export("accounting")
    step.turn(controller, False)
    deck.receive(5)
    assert becomes(lambda: state() == (True, False, 15))
    controller.export("accounting")
    deck.receive(5)
    controller.export("accounting")
    windows = [
        (each.lacks, int(each.rows["value"]["packets"].sum())) for each in deck.items
        if isinstance(each, Snapshot) and (each.probe, each.metric) == ("accounting", "traffic")
    ]  # fmt: skip
    held = [place for place, (lacks, _) in enumerate(windows) if lacks]
    assert held == list(range(held[0], held[-1] + 1))
    assert len(held) >= 2
    assert sum(packets for _, packets in windows[: held[0]]) == 10
    assert sum(packets for _, packets in windows[held[-1] + 1 :]) in (5, 10)
