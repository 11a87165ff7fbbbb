"""Counts of a headless run, for its last line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from app.outputs.view import is_table
from app.outputs.views import counted
from bpf.arrays import Array, Rows
from probes.flow.kinds import REPEATED
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.path.analysis.statistics import cleared, hop_statistics
from probes.path.records import HOP, HOP_COUNT, HOPS_TABLE, MeasuredBy, ProbeOutcome
from probes.snapshot import Event, Item, Loss, LossReason, add_losses, lost_of

if TYPE_CHECKING:
    from probes.path.traced import Traced

_RARE = (ProbeOutcome.DROPPED, ProbeOutcome.IN_FLIGHT, ProbeOutcome.BEYOND_PATH)
"""Outcomes that the last line has only if there were any."""

_UNREAD = {LossReason.NOT_IP, LossReason.MALFORMED}
"""Reasons that lie in the frame, so each probe that sees it counts it."""


class Totals:
    """Counts of windows, packets, losses, probes and transitions."""

    def __init__(self) -> None:
        self.windows = self.packets = 0
        """Windows of flows, and packets in them."""
        self.tables = 0
        """Windows of metrics."""
        self._losses: dict[tuple[str, str], dict[LossReason, Loss]] = {}
        """By interface and probe."""
        self.traces = 0
        """Windows of path tracing."""
        self.outcomes = dict.fromkeys(ProbeOutcome, 0)
        """Finished path probes, by outcome."""
        self.altered = 0
        """Answered probes that a middlebox had changed."""
        self.traced: dict[str, Traced] = {}
        """The last known state of each traced destination, by address."""
        self._ended: dict[bytes, Array] = {}
        """Lost and answered packets by hop, i8 (2, HOP_COUNT), by destination."""
        self.monitored = self.seen = self.transitions = 0
        """Windows of the monitor, packets in them, and transitions of its policies."""

    def add(self, item: Item) -> None:
        if isinstance(item, Event):
            return
        if is_table(item, "path", HOPS_TABLE):
            self.traces += 1
            self._add_probes(item.rows)
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
        if item.metric != REPEATED:
            add_losses(self._losses.setdefault((item.interface, item.probe), {}), item.losses)

    def note(self, traced: Iterable[Traced]) -> None:
        """Keep the state of the traced destinations."""
        self.traced |= {each.destination: each for each in traced}

    @property
    def losses(self) -> dict[LossReason, Loss]:
        """Losses of all probes. A frame that no probe can read is lost once on its interface."""
        found: dict[LossReason, Loss] = {}
        unread: dict[tuple[str, LossReason], Loss] = {}
        for (interface, _), losses in self._losses.items():
            own = dict(losses)
            for reason in _UNREAD & own.keys():
                loss = own.pop(reason)
                seen = unread.get((interface, reason), Loss())
                unread[interface, reason] = max(loss, seen, key=lambda each: each.packets)
            add_losses(found, own)
        for (_, reason), loss in unread.items():
            add_losses(found, {reason: loss})
        return found

    def _add_probes(self, rows: Rows[HOP]) -> None:
        probes = rows[rows["measured_by"] == MeasuredBy.PROBE]
        for outcome, count in enumerate(np.bincount(probes["outcome"]).tolist()):
            self.outcomes[ProbeOutcome(outcome)] += count
        self.altered += int((probes["altered"] != 0).sum())
        destinations = np.ascontiguousarray(rows["destination"]).view("V16").ravel()
        for destination in np.unique(destinations):
            mine = rows[destinations == destination]
            found = hop_statistics(mine, mine["hop"], HOP_COUNT)
            known = self._ended.setdefault(destination.tobytes(), np.zeros((2, HOP_COUNT), "i8"))
            known += found["lost"], found["answered"]

    @property
    def unanswered(self) -> int:
        """Unanswered probes at hops that a later hop, or the flow itself, clears of loss."""
        lost, answered = np.array([*self._ended.values()]).reshape(-1, 2, HOP_COUNT).swapaxes(0, 1)
        return int(lost[cleared(lost, lost + answered)].sum())

    @property
    def any(self) -> bool:
        """Whether anything was measured."""
        return any((self.windows, self.tables, self.traces, self.monitored))

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
            groups.append(self._path_words())
        return "; ".join(", ".join(group) for group in groups if group)

    def _path_words(self) -> list[str]:
        found, unanswered = self.outcomes, self.unanswered
        answered = found[ProbeOutcome.ANSWERED] + found[ProbeOutcome.UNREACHABLE]
        words = [
            f"{self.probes} probes, {answered} answered",
            f"{found[ProbeOutcome.UNANSWERED] - unanswered} lost",
            f"{found[ProbeOutcome.OVERRUN]} overrun",
        ]
        if unanswered:
            words.insert(2, f"{unanswered} unanswered without loss")
        words += [f"{found[each]} {each.label}" for each in _RARE if found[each]]
        unmatched = sum(each.unmatched for each in self.traced.values())
        answers = "unmatched answer" if unmatched == 1 else "unmatched answers"
        rare = {"altered on the way": self.altered, answers: unmatched}
        return [*words, *(f"{count} {what}" for what, count in rare.items() if count)]
