"""The path of one destination: which hops are probed, and how, and which probes were lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from socket import IPPROTO_UDP

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.active.echo import SMALLEST
from probes.path.active.finder import FinderAnswer
from probes.path.options import Guard, PathOptions
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.planning.guard_plan import GuardPlan
from probes.path.planning.hidden_hops import Frontier, HiddenHops, HopFinder
from probes.path.probing_plan import HopSchedule, ProbingPlan, hops_of
from probes.path.records import DESTINATION_HOP, FLOW_KEY, HOP, MeasuredBy, ProbeOutcome, no_rows
from probes.path.slots import Destination

_ANSWERS_NS = 300_000_000
"""The end of tracing waits at most so long for answers."""


class PathExtent:
    """Decides from all rows of a destination, poll by poll: first `judge`, then `decide`."""

    def __init__(self, destination: Destination, finder: HopFinder, options: PathOptions) -> None:
        self._address = destination.address
        self._destination = np.frombuffer(destination.address, "u1")
        self._lengths = FlowLengths(destination.address, round(options.timeout * 1e9))
        self.plan = ProbingPlan(options)
        self.guard = GuardPlan(options)
        self.hidden = HiddenHops(destination, finder)
        self._may_ask = options.guard is not Guard.NONE
        self._sent = 0
        self.shortened = no_rows(HOP)
        """A row of dtype HOP for each flow whose path became shorter, as FlowLengths.take."""
        self.beside = no_rows(HOP)
        """New rows of dtype HOP of hops that the finder measured beside a flow of UDP."""
        self._answers: list[FinderAnswer] = []
        self._flow = no_rows(HOP)
        """A row of the flow of UDP that was probed last, (1,)."""

    def hear(self, answer: FinderAnswer) -> None:
        """Take in the end of a request to the finder."""
        if answer.received_ns:
            self.hidden.answered(answer.ttl, answer.is_destination)
        self._answers.append(answer)

    def notes(self) -> Iterator[str]:
        """Yield sentences about hops that only the finder can measure, or that never answer."""
        measured = hops_of(self.hidden.measured)
        length = self.plan.farthest
        if not length and measured and measured[0] > 1:
            yield "the first router does not answer"
        if measured and len(self._flow):
            yield (
                f"UDP is measured beside the flow from hop {measured[0]} on, by ICMP echo requests:"
                " routers there answer no UDP probe (address translation or a firewall)"
            )

    def answered_by(self, rows: Rows[HOP]) -> int:
        """Return when the last answers to probes in flight come, in rows of dtype HOP."""
        flying = rows["outcome"] == ProbeOutcome.IN_FLIGHT
        late_ns = min(2 * self._lengths.slowest_ns, _ANSWERS_NS)
        return int(rows["sent_ns"][flying].max(initial=0)) + late_ns

    def judge(
        self, rows: Rows[HOP], overdue: Array, timed: Array, heard_ns: int, now_ns: int
    ) -> None:
        """Mark losses in rows of dtype HOP as BEYOND_PATH if the path of their flow ends before.

        `overdue` has the rows of InFlight.overdue, `timed` the round trips of the flows, and
        `heard_ns` is the time of the last packet from the destination (0: none).
        """
        self.shortened = self.beside = no_rows(HOP)
        if not len(rows) and not len(overdue) and not len(timed) and not self._answers:
            return  # Most of many destinations are idle.
        self._measure_beside(np.concatenate([rows, overdue], dtype=HOP))
        before = self._lengths.longest
        ended = np.concatenate([rows, self.beside], dtype=HOP)
        self.guard.take(ended[(ended["responder"] != self._destination).any(axis=1)], now_ns)
        self._excuse(rows, self.guard.say_nothing)
        overdue = overdue[~self.guard.say_nothing(overdue)]
        known = np.concatenate([rows, timed], dtype=HOP)
        self.shortened = self._lengths.take(known, overdue, heard_ns, now_ns)
        if self._lengths.longest < before:
            self.plan.cut(self._lengths.longest)
        self._excuse(rows, self._lengths.beyond)

    def decide(
        self, rows: Rows[HOP], sent: Array, ttl: int, heard_ns: int, now_ns: int
    ) -> HopSchedule:
        """Return the next schedule; `plan`, `guard` and `hidden` are up to date then.

        `sent` are probes by hop (32,), `ttl` is the one of the destination's last packet.
        """
        before, self._sent = self._sent, int(sent.sum())
        schedule = self.plan.decide(rows, sent, ttl, now_ns, self._address)
        plan, hidden, lengths = self.plan, self.hidden, self._lengths
        if self._may_ask:
            active, of_udp = self._sent > before, lengths.longest_of(IPPROTO_UDP, now_ns)
            length = plan.farthest if of_udp < 0 else min(plan.farthest, of_udp)
            hidden.decide(Frontier(length, plan.end, plan.back, heard_ns, active), now_ns)
        self.guard.decide(schedule.once, plan.length, now_ns)
        return schedule

    def _measure_beside(self, rows: Rows[HOP]) -> None:
        """Give the finder's answers to the flow of UDP that was probed last. A request without an
        answer is a loss if the hop answered another one."""
        of_udp = rows[(rows["protocol"] == IPPROTO_UDP) & (rows["outcome"] != ProbeOutcome.OVERRUN)]
        if len(of_udp):
            self._flow = of_udp[-1:].copy()
        found = [each for each in self._answers if self.hidden.measured >> each.ttl & 1]
        self._answers.clear()
        if found and len(self._flow):
            self.beside = _rows_beside(found, self.hidden.end, self._flow[0])

    def _excuse(self, rows: Rows[HOP], is_beyond: Callable[[Array], Array]) -> None:
        lost = np.flatnonzero(rows["outcome"] == ProbeOutcome.UNANSWERED)
        if len(lost):
            rows["outcome"][lost[is_beyond(rows[lost])]] = ProbeOutcome.BEYOND_PATH


def _rows_beside(answers: Sequence[FinderAnswer], end: int, flow: Rows[HOP]) -> Rows[HOP]:
    """Return a row of dtype HOP for each answer, or request without one. `end` is the destination's
    hop. `flow` is a row of a flow to the same destination, which gets them."""
    rows = np.zeros(len(answers), HOP)
    for name, *_ in FLOW_KEY:
        rows[name] = flow[name]
    rows["hop"] = [DESTINATION_HOP if each.ttl == end else each.ttl for each in answers]
    rows["sent_ns"] = [each.sent_ns for each in answers]
    rows["received_ns"] = [each.received_ns for each in answers]
    for row, each in zip(rows, answers, strict=True):
        row["responder"] = np.frombuffer(each.responder, "u1")
    unanswered = rows["received_ns"] == 0
    rows["outcome"] = np.where(unanswered, ProbeOutcome.UNANSWERED, ProbeOutcome.ANSWERED)
    rows["measured_by"], rows["whole"] = MeasuredBy.ECHO_BESIDE_THE_FLOW, 1
    rows["packet_bytes"] = SMALLEST[int(flow["version"])]
    return rows
