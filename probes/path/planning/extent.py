"""The path of one destination: which hops are probed, and how, and which probes were lost.

`HiddenHops` has the hops beyond the last router that answers probes. `GuardPlan` has the hops
whose probes of TCP and echo are whole packets of their flow: address translation and stateful
firewalls drop guarded probes, and whole ones pass them. Probes of UDP are always guarded: a path
may become shorter at any moment, and a whole datagram that reaches the destination reaches its
application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from socket import IPPROTO_UDP
from typing import Protocol

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.active.echo import SMALLEST
from probes.path.active.finder import FinderAnswer
from probes.path.options import MAX_HOPS, Guard, Guarded, PathOptions
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.probing_plan import AHEAD, HopSchedule, ProbingPlan, hops_of, mask_of, mask_within
from probes.path.records import (
    DESTINATION_HOP,
    FLOW_KEY,
    HOP,
    HOP_COUNT,
    MeasuredBy,
    ProbeOutcome,
    no_rows,
)
from probes.path.slots import Destination

_SURE = 9.2
"""-ln of the highest probability at which chance leaves all guarded probes unanswered."""
_KNOWN_NS = 30_000_000_000
"""Guarded probes pass if one was answered within this time, at the same hop or a later one."""
_RECHECK_NS = 30_000_000_000
"""Time between two tries of guarded probes where they fail."""


class GuardPlan:
    """Chooses the hops of one destination, from the answers to guarded and to whole probes."""

    def __init__(self, options: PathOptions) -> None:
        self._options = options
        shape = (2, HOP_COUNT)
        self._heard_ns = np.zeros(shape, "i8")
        """When a guarded probe was last answered at each hop or a later one: of TCP and echo (0),
        and of UDP (1). The next three arrays count probes since then."""
        self._unanswered = np.zeros(shape, "i8")
        """Guarded probes without an answer."""
        self._sent = np.zeros(shape, "i8")
        """Whole probes of all protocols, and requests of the finder."""
        self._answered = np.zeros(shape, "i8")
        self._turn = 0
        """Hops beyond the path whose next try is whole."""
        self._failing = [0, 0]
        """Hops at which guarded probes fail, and whole ones do not."""
        self._recheck_ns = 0
        self.whole = mask_within(1, MAX_HOPS) if options.guard is Guard.NONE else 0
        """Hops with whole probes of TCP and echo."""

    @property
    def stateful_hop(self) -> int:
        """The hop behind which guarded probes fail and whole ones do not; 0: there is none."""
        failing = hops_of(self._failing[0] | self._failing[1])
        if not failing:
            return 0
        passed = np.flatnonzero(self._heard_ns[:, : failing[0]].max(axis=0))
        return max(1, int(passed.max(initial=0)))

    def take(self, rows: Rows[HOP], now_ns: int) -> None:
        """Take in new rows of dtype HOP, except for answers of the destination itself."""
        rows = rows[(rows["outcome"] <= ProbeOutcome.UNANSWERED) & (rows["hop"] != DESTINATION_HOP)]
        kinds, hops = _kinds(rows), rows["hop"]
        whole, answered = rows["whole"] > 0, rows["outcome"] != ProbeOutcome.UNANSWERED
        passed = answered & ~whole
        for kind in np.unique(kinds[passed]).tolist():
            until = slice(int(hops[passed & (kinds == kind)].max()) + 1)
            self._heard_ns[kind, until] = now_ns
            for counts in (self._unanswered, self._sent, self._answered):
                counts[kind, until] = 0
        np.add.at(self._unanswered, (kinds[~whole & ~answered], hops[~whole & ~answered]), 1)
        self._sent += np.bincount(hops[whole], minlength=HOP_COUNT)
        self._answered += np.bincount(hops[whole & answered], minlength=HOP_COUNT)
        sure = self._answered * np.log1p(self._unanswered / np.maximum(self._sent, 1)) >= _SURE
        sure &= self._unknown(now_ns)
        self._failing = [mask_of(np.flatnonzero(each)) for each in sure]

    def say_nothing(self, rows: Rows[HOP]) -> Array:
        """Which rows (n,) of dtype HOP tell nothing if they are unanswered: guarded ones at hops
        from which no guarded probe was ever answered, or at which they fail."""
        kinds, hops = _kinds(rows), rows["hop"]
        failing = np.array(self._failing)[kinds] >> hops.astype("i8") & 1
        fail: Array = (self._heard_ns[kinds, hops] == 0) | (failing > 0)
        fail &= (rows["whole"] == 0) & (hops != DESTINATION_HOP)
        return fail

    def decide(self, once: int, length: int, now_ns: int) -> None:
        """Update `whole`. `once`: hops to be probed once, as in HopSchedule. `length`: the farthest
        router that answers."""
        if self._options.guard is Guard.NONE or self._options.guarded is Guarded.ALL:
            return
        path = mask_within(1, length)
        self._turn = (self._turn ^ once) & ~path
        self.whole = path | self._turn
        failing = self._failing[0] & path
        if failing and now_ns - self._recheck_ns >= _RECHECK_NS:
            if self._recheck_ns:
                # Until the next poll. The farthest hop decides for those before it.
                self.whole &= ~(1 << failing.bit_length() - 1)
            self._recheck_ns = now_ns

    def _unknown(self, now_ns: int) -> Array:
        """Whether no guarded probe was answered lately, by kind and hop."""
        return (self._heard_ns == 0) | (now_ns - self._heard_ns > _KNOWN_NS)


def _kinds(rows: Rows[HOP]) -> Array:
    kinds: Array = (rows["protocol"] == IPPROTO_UDP).astype("i8")
    return kinds


_SETTLED_NS = 1_000_000_000
"""The finder is asked if the last router is the same for so long."""
_ANSWERED_NS = 1_000_000_000
"""All answers to a request have come after so long."""
_MEASURE_NS = 950_000_000
"""Time between two requests to a hop that answers them: a little under 1 s, because polls come
every 0.25 s."""
_PAUSES_NS = (_MEASURE_NS, _MEASURE_NS, 10_000_000_000, 60_000_000_000)
"""Time between two requests to a hop that does not answer: the first ones may have been lost."""
_HEARD_NS = 3_000_000_000
_HIDDEN = 2
"""Fewer hidden routers than this may be routers that do not answer."""


class HopFinder(Protocol):
    """Sends a few extra requests with limited TTLs."""

    def ask(self, destination: Destination, hops: Iterable[int]) -> None:
        """Send a request to each hop soon."""

    def answers(self) -> list[FinderAnswer]:
        """Return the answers since the last call."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Known facts about the path's end."""

    length: int
    """The farthest router that answers probes (by UDP if applications send UDP); 0: none."""
    end: int
    """A hop at which the destination answered probes, 0 if it did not. It may be nearer: probes of
    most flows get no answer from it."""
    back: int
    """Routers on the way back, 0 if unknown."""
    heard_ns: int
    """When the last packet from the destination came, 0 if none."""
    active: bool
    """Whether the application sends."""


class HiddenHops:
    """Asks the finder about one destination if its path seems to go on behind the last router."""

    def __init__(self, destination: Destination, finder: HopFinder) -> None:
        self._destination = destination
        self._finder = finder
        self._length = 0
        self._since_ns = 0
        """The length is the same since then."""
        self._asked_ns = 0
        self._rounds = 0
        self._searched = 0
        """Hops that were asked since the length is the same."""
        self._measured_ns = 0
        self.asked = 0
        """Requests to the finder."""
        self.routers = 0
        """Hops at which a router answered the finder."""
        self.end = 0
        """The nearest hop at which the destination answered the finder, 0: none."""
        self._ended = False
        """Whether the path seems to end behind the last router."""
        self.note = ""
        """The reason why packets pass the last router and probes do not; empty if unknown."""

    @property
    def measured(self) -> int:
        """Bits of the hops at which only the finder is answered: by a router or the destination."""
        first = self._length + 1
        if self._ended or (self._length and self.end == first):
            return 0
        return (self.routers | 1 << self.end) >> first << first

    def answered(self, hop: int, is_destination: bool) -> None:
        """Take in an answer to the finder."""
        if is_destination:
            self.end = min(self.end or hop, hop)
            self.routers &= mask_within(1, self.end - 1)
            return
        if hop >= self.end > 0:
            # The path has become longer.
            self.end, self._searched = 0, mask_within(1, hop)
        self.routers |= 1 << hop

    def decide(self, frontier: Frontier, now_ns: int) -> None:
        """Ask the finder if needed, and update the note."""
        if frontier.active and not self._since_ns:
            self._since_ns = now_ns
        if frontier.length != self._length:
            if frontier.length < self._length or frontier.length >= self.end:
                self.routers = self.end = 0  # This was another path.
            self._length, self._since_ns = frontier.length, now_ns
            self._rounds = self._searched = 0
        heard = frontier.heard_ns > now_ns - _HEARD_NS
        at_end = frontier.length + 1 in (frontier.end, self.end)
        as_long = heard and frontier.back == frontier.length > 0
        if as_long or (at_end and frontier.length):
            self.note, self._ended = "", True
            return
        self._ended = False
        # Only the finder's own requests tell how many routers are there: the way back may be
        # longer, and the destination may answer few of the probes that reach it.
        silent = mask_within(frontier.length + 1, self.end - 1) & ~self.routers
        hides = silent.bit_count() >= _HIDDEN
        if frontier.active and now_ns - self._since_ns >= _SETTLED_NS:
            self._ask(frontier, hides, now_ns)
        # Packets before this may be the destination's answers to the finder.
        passes = heard and frontier.heard_ns > self._asked_ns + _ANSWERED_NS
        if not hides:
            self.note = ""
        elif passes and self._rounds > 1:
            where = f"hop {frontier.length}" if frontier.length else "this host"
            self.note = f"NAT or firewall behind {where}: packets pass, probes do not"

    def _ask(self, frontier: Frontier, hides: bool, now_ns: int) -> None:
        pause_ns = _PAUSES_NS[min(self._rounds, len(_PAUSES_NS)) - 1]
        farthest = max(frontier.length, self.routers.bit_length() - 1)
        last = self.end or frontier.end or max(farthest + AHEAD, frontier.back + 1)
        hops = mask_within(frontier.length + 1, min(last, MAX_HOPS))
        if not self._rounds or now_ns - self._asked_ns >= pause_ns:
            self._asked_ns, self._rounds = now_ns, self._rounds + 1
        elif hops & ~self._searched:
            hops &= ~self._searched
        else:
            due = now_ns - self._measured_ns >= _MEASURE_NS
            # If routers hide, answers of the destination would look like packets of the flow.
            hops &= (self.routers | (0 if hides else 1 << self.end)) if due else 0
        if hops:
            self._measured_ns = now_ns
            self._searched |= hops
            self._finder.ask(self._destination, hops_of(hops))
            self.asked += hops.bit_count()


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
