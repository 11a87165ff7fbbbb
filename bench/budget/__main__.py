"""The CPU budget in floods: the share of user space, the reported steps, and exact totals.

    python -I -m bench.budget [--seconds 12] [--shares 2 5 25] [--rates 1000 10000 100000 1000000]

Needs root; the veth is in namespaces that it makes. Frames come from the kernel, by a thread
whose time the budget leaves out. Each run has flows, owners, the monitor with the shipped policies,
a file of tables, and the state of a console. The rates have 25,000 flows; the last flood of each
share has new flows only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.console.live.state import LiveState
from app.outputs.formats import FORMATS
from app.outputs.views import VIEWS
from bench.support.report import Report
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.quantities import percent, si
from probes.control.budget import OVER_S, SOURCE
from probes.control.budget_keeper import BudgetKeeper
from probes.control.controller import Controller
from probes.flow.records import FlowDirection
from probes.monitor.options import MonitorOptions
from probes.monitor.policy.ready import shipped
from probes.snapshot import Event, Item, LossReason, Snapshot
from tests.probes.flow.pod_host import counters
from tests.probes.flow.test_windows import silent_pair, watching
from tests.support.generator import Generator

NEW_FLOWS = 200_000
"""Frames a second of the last flood."""
_FLOWS = 25_000
_SLACK = 1.1
"""Times the budget that five seconds may take: a window is not divisible."""


@dataclass
class Run:
    """Sums of a run."""

    live: LiveState = field(default_factory=LiveState)
    rows: int = 0
    cut: int = 0
    """Packets that the budget cut."""
    others: dict[str, int] = field(default_factory=dict)
    """Packets of other losses."""
    stepped_at: float = 0.0
    steps: list[str] = field(default_factory=list)

    def take(self, item: Item) -> None:
        self.live.take(item)
        if isinstance(item, Event):
            if item.source == SOURCE and item.phase:
                self.stepped_at = self.stepped_at or time.monotonic()
                self.steps.append(("-" if item.phase == "begin" else "+") + item.subject)
        elif (item.probe, item.metric) == ("flow", ""):
            self._add(item)
            FORMATS["csv"].encode(list(VIEWS["flows"].records(item, nested=False)))

    def _add(self, window: Snapshot) -> None:
        incoming = window.rows["direction"] == FlowDirection.INGRESS
        self.rows += int(window.rows["packets"][incoming].sum())
        for reason, loss in window.losses.items():
            if reason is LossReason.BUDGET:
                self.cut += loss.packets
            else:
                self.others[reason.label] = self.others.get(reason.label, 0) + loss.packets


def flood(
    report: Report, compiler: Compiler, share: float, rate: int, flows: int, seconds: float
) -> None:
    """Report one run."""
    run, uses = Run(), []
    with (
        silent_pair() as (left, right),
        watching(right, 1.0) as (_, _, controller),
        Generator(compiler, left, flows=flows) as generator,
    ):
        before = counters(right.ns, right.ifname)[0]
        controller.listen(run.take)
        controller.switch("sockets", True)
        _watch(controller, right.ifname)
        keeper = BudgetKeeper(controller, share, draws=True)
        with keeper.running(), generator.streaming(rate):
            until = time.monotonic() + seconds
            while (now := time.monotonic()) < until:
                uses.append((now, keeper.used()))
                time.sleep(0.5)
        time.sleep(1.2)
        controller.close()
        came = counters(right.ns, right.ifname)[0] - before
    name = f"{percent(share)}, {si(rate)} {'packets' if flows else 'new flows'}/s"
    told = " ".join(run.steps) or "no step"
    worst = _worst(uses, run.stepped_at)
    text = f"{percent(worst)} of a core, {told}"
    report.target(f"{name}: user space in 5 s", text, worst <= _SLACK * share)
    lost = run.rows + run.cut + sum(run.others.values())
    others = "".join(f", {count} {reason}" for reason, count in run.others.items())
    text = f"{si(came)} came, {came - lost} missing, {percent(run.cut / max(came, 1))} cut{others}"
    report.target(f"{name}: totals", text, came == lost)


def _watch(controller: Controller, interface: str) -> None:
    policies = shipped().policy
    controller.watch_metrics(
        interface, MonitorOptions(ingress=Hook.XDP), policies=policies, late=True
    )


def _worst(uses: Sequence[tuple[float, float]], since: float) -> float:
    """Return the largest share of a core in OVER_S seconds that begin after `since`."""
    shares = [
        (spent - before) / (end - begin)
        for begin, before in uses
        for end, spent in uses
        if begin >= since and OVER_S <= end - begin < OVER_S + 1
    ]
    return max(shares, default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="of each flood")
    parser.add_argument("--shares", type=float, nargs="*", default=[2, 5, 25], help="in per cent")
    parser.add_argument("--rates", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    report = Report("The CPU budget in floods")
    with Compiler() as compiler:
        for share in options.shares:
            for rate in options.rates:
                flood(report, compiler, share / 100, rate, _FLOWS, options.seconds)
            flood(report, compiler, share / 100, NEW_FLOWS, 0, options.seconds)
    report.end()


if __name__ == "__main__":
    main()
