"""The path of one destination: which hops are probed, and how, and which probes were lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probes.path.options import Guard, Guarded, PathOptions
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.planning.guard_plan import GuardPlan, WholeHops
from probes.path.planning.hidden_hops import Frontier, HiddenHops, HopFinder
from probes.path.probing_plan import HopSchedule, ProbingPlan
from probes.path.records import HOP, HOP_COUNT, Array, ProbeOutcome, no_rows
from probes.path.slots import Destination


class PathExtent:
    """Decides from all rows of a destination, poll by poll: first `judge`, then `decide`."""

    def __init__(self, destination: Destination, finder: HopFinder, options: PathOptions) -> None:
        self._address = destination.address
        self._destination = np.frombuffer(destination.address, "u1")
        self._lengths = FlowLengths(destination.address, round(options.timeout * 1e9))
        self.plan = ProbingPlan(options)
        self.guard = GuardPlan(options)
        self.hidden = HiddenHops(destination, finder)
        self._may_ask = options.guarded is Guarded.END and options.guard is not Guard.NONE
        self._sent = 0
        self.shortened = no_rows(HOP)
        """A row of dtype HOP for each flow whose path became shorter, as FlowLengths.take."""

    def judge(self, rows: Array, overdue: Array, timed: Array, heard_ns: int, now_ns: int) -> None:
        """Mark losses in rows of dtype HOP as BEYOND_PATH if the path of their flow ends before.

        `overdue` has the rows of InFlight.overdue, `timed` the round trips of the flows, and
        `heard_ns` is the time of the last packet from the destination (0: none).
        """
        self.shortened = no_rows(HOP)
        if not len(rows) and not len(overdue) and not len(timed):
            return  # Most of many destinations are idle.
        before = self._lengths.longest
        self.guard.take(rows[(rows["responder"] != self._destination).any(axis=1)], now_ns)
        self._excuse(rows, self.guard.say_nothing)
        overdue = overdue[~self.guard.say_nothing(overdue)]
        known = np.concatenate([rows, timed], dtype=HOP)
        self.shortened = self._lengths.take(known, overdue, heard_ns, now_ns)
        if self._lengths.longest < before:
            self.plan.cut(self._lengths.longest)
        self._excuse(rows, self._lengths.beyond)

    def decide(self, rows: Array, sent: Array, ttl: int, heard_ns: int, now_ns: int) -> HopSchedule:
        """Return the next schedule; `plan`, `guard` and `hidden` are up to date then.

        `sent` are probes by hop (32,), `ttl` is the one of the destination's last packet.
        """
        before, self._sent = self._sent, int(sent.sum())
        schedule = self.plan.decide(rows, sent, ttl, now_ns, self._address)
        plan, hidden, lengths = self.plan, self.hidden, self._lengths
        if self._may_ask:
            active = self._sent > before
            hidden.decide(Frontier(plan.farthest, plan.end, plan.back, heard_ns, active), now_ns)
        self.guard.decide(
            schedule.once,
            plan.length,
            WholeHops(
                lengths.shortest(now_ns),
                hidden.routers,
                min(plan.end or HOP_COUNT, hidden.end or HOP_COUNT, lengths.unsure_from(now_ns)),
            ),
            now_ns,
        )
        return schedule

    def _excuse(self, rows: Array, is_beyond: Callable[[Array], Array]) -> None:
        lost = np.flatnonzero(rows["outcome"] == ProbeOutcome.UNANSWERED)
        if len(lost):
            rows["outcome"][lost[is_beyond(rows[lost])]] = ProbeOutcome.BEYOND_PATH
