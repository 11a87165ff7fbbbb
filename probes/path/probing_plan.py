"""Which hops of a destination are probed: how long its path is, and who does not answer.

The kernel takes the hops of a mask in turn; several times a second it is decided here, from what
came back, which those are. A hop that does not answer is left out, and tried again once a second.
Beyond the last one it is looked twice a second whether the path has become longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from probes.path.options import PathOptions, Per
from probes.path.records import Array, ProbeOutcome
from probes.path.slots import HOP_COUNT

AHEAD = 5
"""Hops beyond the path that are looked at: it may become longer by several, and some be silent."""
_LOOK_NS = 450_000_000
_RETRY_NS = 950_000_000
"""Between two tries of a hop that does not answer. Both are somewhat less than half a second and a
second, which polls hit no better."""
_TRIES_SHARE = 1 / 4
"""Tries are at most this part of the probes: an application that sends little gets others too."""
_PATIENCE_NS = 2_500_000_000
"""For how long a hop that used to answer may not while it is probed, before it counts as silent: a
router that answers once a second does not, even if one of its answers is lost."""
_FIRST_PATIENCE_NS = 1_000_000_000
"""The same for one that never did."""
_ENOUGH = 10
"""Probes without an answer that this takes, too."""
_STEADY_NS = 1_000_000_000
"""For how long packets from the destination must have another TTL before it counts."""
_RECENT_NS = 500_000_000
"""A router that answered within that is still at its hop, whatever another flow meets there."""
_INITIAL_TTLS = (32, 64, 128, 255)
"""What hosts send with."""


@dataclass(frozen=True, slots=True)
class HopSchedule:
    """What the kernel is to do."""

    live: int
    """Hops to be probed in turn: bit n is TTL n."""
    once: int
    """Hops to be probed once."""
    interval_ns: int
    """Between two probes."""


class ProbingPlan:
    """Decides for one destination."""

    def __init__(self, options: PathOptions) -> None:
        self._options = options
        self._decided_ns = 0
        self._sent = np.zeros(HOP_COUNT, "i8")
        """By hop, probes sent at the last decision."""
        self._heard_ns = np.zeros(HOP_COUNT, "i8")
        """When it last answered; 0: never."""
        self._sent_then = np.zeros(HOP_COUNT, "i8")
        """Probes sent to it by then."""
        self._waited_ns = np.zeros(HOP_COUNT, "i8")
        """For how long it was probed since; the clock stands still while nothing is sent."""
        self._tried_ns = np.zeros(HOP_COUNT, "i8")
        self._tries = 0.0
        """That may be made now."""
        self._silent = 0
        self._end = 0
        """The first hop whose probes are not exceeded: the destination's own, or that of a router
        which does not deliver. 0: not known."""
        self._ttl = 0
        self._other_ttl_ns = 0
        """Since when packets from the destination have another TTL; 0: they have not."""
        self.length = 0
        """Routers on the way, as far as is known."""
        self.schedule = HopSchedule(self._within(1, AHEAD), 0, self._interval_ns(0, 0))

    @property
    def silent(self) -> tuple[int, ...]:
        """Hops within the path that don't answer."""
        return hops_of(self._silent & _mask(1, self.length))

    @property
    def live(self) -> tuple[int, ...]:
        """Hops that are probed at the full rate."""
        return hops_of(self.schedule.live)

    def decide(
        self, rows: Array, sent: Array, ttl: int, now_ns: int, destination: bytes
    ) -> HopSchedule:
        """Take in the destination's new rows of dtype HOP, how many probes were sent by hop (32,),
        and the TTL of its own packets (0: none came yet). `destination` is its address, 16 bytes.
        """
        counts = sent.astype("i8")
        fresh, elapsed = counts - self._sent, now_ns - (self._decided_ns or now_ns)
        self._sent, self._decided_ns = counts, now_ns
        self._hear(rows, now_ns, destination)
        self._find_silent(fresh, elapsed)
        self._take_ttl(ttl, now_ns)

        answering = _mask_of(np.flatnonzero(self._heard_ns)) & ~self._silent
        farthest = answering.bit_length() - 1 if answering else 0
        if self._end:
            self.length = self._end - 1
        elif self._ttl:
            # The way back, but most often as long as the way there.
            routers = next(i for i in _INITIAL_TTLS if self._ttl <= i) - self._ttl
            self.length = max(farthest, routers)
        else:
            self.length = farthest
        path = self._within(1, self.length)
        live = path & ~self._silent
        # The destination itself answers, or routers that come in its place.
        ahead = self._within(self.length + 1, self.length + (1 if self._end else AHEAD)) & ~live
        retried = path & self._silent & ~ahead
        self._tries = min(self._tries + _TRIES_SHARE * int(fresh.sum()), HOP_COUNT)
        tries_per_second = (ahead.bit_count() / _LOOK_NS + retried.bit_count() / _RETRY_NS) * 1e9
        self.schedule = HopSchedule(
            live,
            self._try(live, ahead, retried, now_ns),
            self._interval_ns(live.bit_count(), tries_per_second),
        )
        return self.schedule

    def _hear(self, rows: Array, now_ns: int, destination: bytes) -> None:
        answers = rows[rows["outcome"] <= ProbeOutcome.UNREACHABLE]
        from_it = (answers["responder"] == np.frombuffer(destination, "u1")).all(axis=1)
        at_end = from_it | (answers["outcome"] == ProbeOutcome.UNREACHABLE)
        of_routers = answers[~at_end]
        for hop, count in zip(*np.unique(of_routers["hop"], return_counts=True), strict=True):
            if count > 1 or now_ns - self._heard_ns[hop] < _PATIENCE_NS:
                self._silent &= ~(1 << int(hop))
            else:
                # Once may be a router that answers seldom; probed at the full rate it would be
                # silent again at once. So it is asked again.
                self._tried_ns[hop] = 0
            self._answered(int(hop))
        np.maximum.at(self._heard_ns, of_routers["hop"], of_routers["received_ns"])

        recent = now_ns - self._heard_ns < _RECENT_NS
        recent &= self._heard_ns > 0
        if self._end and recent[self._end :].any():
            self._end = 0
        ends = [int(hop) for hop in np.unique(answers["hop"][at_end]) if not recent[hop:].any()]
        if ends and not 0 < self._end < ends[0]:
            self._end = ends[0]
        if self._end in ends:
            self._answered(self._end)

    def _answered(self, hop: int) -> None:
        self._waited_ns[hop] = 0
        self._sent_then[hop] = self._sent[hop]

    def _find_silent(self, fresh: Array, elapsed_ns: int) -> None:
        unanswered = self._sent - self._sent_then
        self._waited_ns[(fresh > 0) & (unanswered > 0)] += elapsed_ns
        patience = np.where(self._heard_ns > 0, _PATIENCE_NS, _FIRST_PATIENCE_NS)
        silent = _mask_of(np.flatnonzero((unanswered >= _ENOUGH) & (self._waited_ns > patience)))
        self._silent |= silent
        if silent >> self._end & 1:
            self._end = 0

    def _take_ttl(self, ttl: int, now_ns: int) -> None:
        """Several ways back may be of several lengths; only one that lasts is another."""
        if ttl in (0, self._ttl):
            self._other_ttl_ns = 0
            return
        self._other_ttl_ns = self._other_ttl_ns or now_ns
        if not self._ttl or now_ns - self._other_ttl_ns >= _STEADY_NS:
            self._ttl, self._other_ttl_ns = ttl, 0

    def _try(self, live: int, ahead: int, retried: int, now_ns: int) -> int:
        """The hops of `ahead` and `retried` whose time has come, as many as may be tried."""
        due = [
            *(hop for hop in hops_of(ahead) if now_ns - self._tried_ns[hop] >= _LOOK_NS),
            *(hop for hop in hops_of(retried) if now_ns - self._tried_ns[hop] >= _RETRY_NS),
        ]
        if live:
            due = sorted(due, key=lambda hop: int(self._tried_ns[hop]))[: int(self._tries)]
            self._tries -= len(due)
        self._tried_ns[due] = now_ns
        return _mask_of(due)

    def _within(self, first: int, last: int) -> int:
        """Bits `first` to `last`, of hops that may be looked at."""
        return _mask(first, min(last, self._options.max_hops))

    def _interval_ns(self, hops: int, tries_per_second: float) -> int:
        rate = self._options.rate
        if self._options.per is Per.HOP:
            rate *= hops or 1
            # So that they are not taken from the hops' own.
            rate += min(tries_per_second, rate * _TRIES_SHARE)
        return max(1, round(1e9 / rate))


def _mask(first: int, last: int) -> int:
    """Bits `first` to `last`; none where that is nothing."""
    return (1 << last + 1) - (1 << first) if last >= first else 0


def _mask_of(hops: Iterable[int]) -> int:
    return sum(1 << int(hop) for hop in hops)


def hops_of(mask: int) -> tuple[int, ...]:
    """The hops of a mask, ascending."""
    return tuple(hop for hop in range(1, HOP_COUNT) if mask >> hop & 1)
