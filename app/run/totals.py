"""Counts of a headless run, for its last line."""

from __future__ import annotations

import numpy as np

from app.outputs.view import is_table
from app.outputs.views import counted
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.path.records import HOPS_TABLE, ProbeOutcome
from probes.snapshot import Event, Item, Loss, LossReason, add_losses, lost_of

_RARE = (ProbeOutcome.DROPPED, ProbeOutcome.IN_FLIGHT, ProbeOutcome.BEYOND_PATH)
"""Outcomes that the last line has only if there were any."""


class Totals:
    """Counts of windows, packets, losses, probes and transitions."""

    def __init__(self) -> None:
        self.windows = self.packets = 0
        """Windows of flows, and packets in them."""
        self.tables = 0
        """Windows of metrics."""
        self.losses: dict[LossReason, Loss] = {}
        self.traces = 0
        """Windows of path tracing."""
        self.outcomes = dict.fromkeys(ProbeOutcome, 0)
        """Finished path probes, by outcome."""
        self.monitored = self.seen = self.transitions = 0
        """Windows of the monitor, packets in them, and transitions of its policies."""

    def add(self, item: Item) -> None:
        if isinstance(item, Event):
            return
        if is_table(item, "path", HOPS_TABLE):
            self.traces += 1
            for outcome, probes in enumerate(np.bincount(item.rows["outcome"]).tolist()):
                self.outcomes[ProbeOutcome(outcome)] += probes
            return
        if is_table(item, PROBE, TRIGGERS_TABLE):
            self.transitions += len(item.rows)
        elif is_table(item, PROBE, METRICS_TABLE):
            self.monitored += 1
            self.seen += int(item.rows["packets"].sum())
        elif item.is_metric:
            self.tables += 1
        elif sums := counted(item):
            self.windows += 1
            self.packets += sums[0]
        add_losses(self.losses, item.losses)

    @property
    def probes(self) -> int:
        """Number of finished path probes."""
        return sum(self.outcomes.values())

    def __str__(self) -> str:
        parts = []
        if self.windows or not (self.tables or self.traces or self.monitored):
            parts.append(f"{self.windows} windows, {self.packets} packets in flows")
        if self.tables:
            parts.append(f"{self.tables} tables of metrics")
        if parts:
            reasons = (f"{loss.packets} {why.label}" for why, loss in sorted(self.losses.items()))
            lost = f"{lost_of(self.losses).packets} lost"
            parts.append(f"{lost} ({', '.join(reasons)})" if self.losses else lost)
        groups = [parts]
        if self.monitored:
            words = f"{self.monitored} windows monitored, {self.seen} packets"
            groups.append([words, f"{self.transitions} transitions"])
        if self.traces:
            found = self.outcomes
            answered = found[ProbeOutcome.ANSWERED] + found[ProbeOutcome.UNREACHABLE]
            words = f"{self.probes} probes, {answered} answered"
            lost = f"{found[ProbeOutcome.UNANSWERED]} lost, {found[ProbeOutcome.OVERRUN]} overrun"
            rare = (f"{found[each]} {each.label}" for each in _RARE if found[each])
            groups.append([words, lost, *rare])
        return "; ".join(", ".join(group) for group in groups if group)
