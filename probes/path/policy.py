"""Which hops of a destination are probed: how long its path is, and who does not answer.

The kernel takes the hops of a mask in turn; several times a second it is decided here, from what
came back, which those are. A hop that does not answer is left out, and tried again once a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probes.path.options import PathOptions, Per
from probes.path.records import Array, Outcome
from probes.path.slots import HOPS

AHEAD = 5
"""Hops beyond the last one that answered that are probed while the path's length is unknown."""
_RETRY_NS = 1_000_000_000
"""Between two tries of a hop that does not answer."""
_GROWTH_NS = 500_000_000
"""Between two looks whether the path has become longer."""
_PATIENCE_NS = 2_000_000_000
"""For how long a hop that used to answer may not, before it counts as silent."""
_FIRST_PATIENCE_NS = 1_000_000_000
"""The same for one that never did."""
_ENOUGH = 10
"""Probes without an answer that this takes, too."""
_RTTS = 4
"""It takes so many of the longest round-trip times, where these are longer."""
_INITIAL_TTLS = (32, 64, 128, 255)
"""What hosts send with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the kernel is to do."""

    live: int
    """Hops to be probed in turn: bit n is TTL n."""
    once: int
    """Hops to be probed once."""
    interval_ns: int
    """Between two probes."""


class Policy:
    """Decides for one destination."""

    def __init__(self, options: PathOptions) -> None:
        self._options = options
        self._heard_ns = np.zeros(HOPS, "i8")
        """By hop, when it last answered; 0: never."""
        self._asked_ns = np.zeros(HOPS, "i8")
        """When it was first probed after its last answer; 0: not yet."""
        self._sent_then = np.zeros(HOPS, "u8")
        """Probes sent to it by then."""
        self._tried_ns = np.zeros(HOPS, "i8")
        self._silent = 0
        self._longest_rtt_ns = 0
        self._reached = 0
        """The hop at which the destination itself answered; 0: not known."""
        self._ttl = 0
        self.length = 0
        """Routers on the way, as far as is known."""
        self.plan = Plan(_mask(1, min(AHEAD, options.max_hops)), 0, self._interval_ns(1))

    @property
    def silent(self) -> tuple[int, ...]:
        """Hops within the path that don't answer."""
        return hops_of(self._silent & _mask(1, self.length))

    @property
    def live(self) -> tuple[int, ...]:
        """Hops that are probed at the full rate."""
        return hops_of(self.plan.live)

    def decide(self, rows: Array, sent: Array, ttl: int, now_ns: int, destination: bytes) -> Plan:
        """Take in the destination's new rows of dtype HOP, how many probes were sent by hop (32,),
        and the TTL of its own packets (0: none came yet). `destination` is its address, 16 bytes.
        """
        self._hear(rows, sent, now_ns, destination)
        if ttl and ttl != self._ttl:
            # The way back, but most often as long as the way there; what answers corrects it.
            self._ttl, self._reached = ttl, 0
        patience = max(_PATIENCE_NS, _RTTS * self._longest_rtt_ns)
        heard = np.flatnonzero(self._heard_ns > now_ns - 2 * patience)
        farthest = int(heard[-1]) if len(heard) else 0
        top = self._top(farthest)
        self._find_silent(sent, now_ns, patience)
        live = _mask(1, top) & ~self._silent
        once = 0
        for hop in hops_of(_mask(1, top) & self._silent):
            once |= self._try_again(hop, now_ns, _RETRY_NS)
        if top < self._options.max_hops:
            grown = farthest > self.length
            once |= self._try_again(top + 1, now_ns, 0 if grown else _GROWTH_NS)
        self.length = top if self._ttl or self._reached else farthest
        count = live.bit_count() or 1
        self.plan = Plan(live, once, self._interval_ns(count))
        return self.plan

    def _hear(self, rows: Array, sent: Array, now_ns: int, destination: bytes) -> None:
        answers = rows[rows["outcome"] <= Outcome.UNREACHABLE]
        if not len(answers):
            return
        hops = answers["hop"]
        from_it = (answers["responder"] == np.frombuffer(destination, "u1")).all(axis=1)
        if from_it.any():
            self._reached = int(hops[from_it].min())
            self._silent |= _mask(self._reached, HOPS - 1)
        of_routers = answers[~from_it]
        if not len(of_routers):
            return
        np.maximum.at(self._heard_ns, of_routers["hop"], of_routers["received_ns"])
        rtts = of_routers["received_ns"] - of_routers["sent_ns"]
        self._longest_rtt_ns = max(self._longest_rtt_ns, int(rtts.max()))
        heard = np.unique(of_routers["hop"])
        self._asked_ns[heard] = 0
        self._sent_then[heard] = sent[heard]
        self._silent &= ~sum(1 << int(hop) for hop in heard)
        if self._reached and heard[-1] >= self._reached:
            self._reached = 0  # a router is there now

    def _top(self, farthest: int) -> int:
        """The last hop that is looked at."""
        if self._reached:
            top = max(farthest, self._reached - 1)
        elif self._ttl:
            initial = next(i for i in _INITIAL_TTLS if self._ttl <= i)
            top = max(farthest, initial - self._ttl)
        else:
            top = farthest + AHEAD
        return min(max(top, 1), self._options.max_hops)

    def _find_silent(self, sent: Array, now_ns: int, patience_ns: int) -> None:
        unanswered = (sent - self._sent_then).astype("i8")
        self._asked_ns[(self._asked_ns == 0) & (unanswered > 0)] = now_ns
        first = max(_FIRST_PATIENCE_NS, _RTTS * self._longest_rtt_ns)
        wait = np.where(self._heard_ns, patience_ns, first)
        asked = self._asked_ns > 0
        silent = asked & (unanswered >= _ENOUGH) & (now_ns - self._asked_ns > wait)
        for hop in np.flatnonzero(silent):
            self._silent |= 1 << int(hop)

    def _try_again(self, hop: int, now_ns: int, after_ns: int) -> int:
        if now_ns - self._tried_ns[hop] < after_ns:
            return 0
        self._tried_ns[hop] = now_ns
        return 1 << hop

    def _interval_ns(self, hops: int) -> int:
        of_all = hops if self._options.per is Per.HOP else 1
        return max(1, round(1e9 / (self._options.rate * of_all)))


def _mask(first: int, last: int) -> int:
    """Bits `first` to `last`; none where that is nothing."""
    return (1 << last + 1) - (1 << first) if last >= first else 0


def hops_of(mask: int) -> tuple[int, ...]:
    """The hops of a mask, ascending."""
    return tuple(hop for hop in range(1, HOPS) if mask >> hop & 1)
