"""The hops of a destination that are probed: the path's length, and its silent hops.

The kernel takes the hops of a mask in turn. Several times a second user space updates the mask from
the answers. A silent hop is left out and tried again once a second. Hops beyond the path are tried
twice a second, because the path may become longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.options import PathOptions, Per
from probes.path.records import DESTINATION_HOP, HOP, HOP_COUNT, ProbeOutcome

AHEAD = 5
"""Hops beyond the path that are tried: it may grow by several hops, some of them silent."""
_LOOK_NS = 450_000_000
_RETRY_NS = 950_000_000
"""Time between two tries of a silent hop. Both are a little under 0.5 s and 1 s, because polls come
every 0.25 s."""
_FAR_NS = 4_950_000_000
"""The same of a hop more than AHEAD hops beyond the path, where only the way back is so long."""
_TRIES_SHARE = 1 / 4
"""Tries take at most this part of the probes, also if the application sends little."""
_PATIENCE_NS = 2_500_000_000
"""A hop that used to answer is silent after so long without an answer to its probes. A router that
answers once a second stays live even if one answer is lost."""
_FIRST_PATIENCE_NS = 1_000_000_000
"""The same for a hop that never answered."""
_ENOUGH = 10
"""A silent hop has at least so many unanswered probes."""
_RECENT_NS = 500_000_000
"""A router that answered within this time is still at its hop, also if another flow differs."""
_INITIAL_TTLS = (32, 64, 128, 255)
"""Initial TTLs of common hosts."""


@dataclass(frozen=True, slots=True)
class HopSchedule:
    """The kernel's instructions for one destination."""

    live: int
    """Hops to be probed in turn: bit n is TTL n."""
    once: int
    """Hops to be probed once."""
    interval_ns: int
    """Time between two probes."""


class ProbingPlan:
    """Chooses the hops of one destination."""

    def __init__(self, options: PathOptions) -> None:
        self._options = options
        self._decided_ns = 0
        self._sent: Array = np.zeros(HOP_COUNT, "i8")
        """Probes sent by hop, as of the last decision."""
        self._heard_ns = np.zeros(HOP_COUNT, "i8")
        """When each hop last answered; 0: never."""
        self._sent_then = np.zeros(HOP_COUNT, "i8")
        """Probes sent to each hop until its last answer."""
        self._waited_ns = np.zeros(HOP_COUNT, "i8")
        """How long each hop was probed since; pauses of the application do not count."""
        self._tried_ns = np.zeros(HOP_COUNT, "i8")
        self._tries = 0.0
        """Tries that may be made now."""
        self._silent = 0
        self.end = 0
        """The first hop that does not forward probes: the destination's own, or a router's that
        reports it unreachable. 0: unknown."""
        self.back = 0
        """Routers on the way back, 0 if unknown. The way there may be longer or shorter."""
        self.farthest = 0
        """The farthest router that answers."""
        self.length = 0
        """Routers on the path: up to the farthest one, or to the destination if that answers."""
        self.schedule = HopSchedule(self._within(1, AHEAD), 0, self._interval_ns(0, 0))

    @property
    def silent(self) -> tuple[int, ...]:
        """Hops within the path that do not answer."""
        return hops_of(self._silent & mask_within(1, self.length))

    @property
    def live(self) -> tuple[int, ...]:
        """Hops that are probed at the full rate."""
        return hops_of(self.schedule.live)

    def decide(
        self, rows: Rows[HOP], sent: Array, ttl: int, now_ns: int, destination: bytes
    ) -> HopSchedule:
        """Take in the destination's new rows of dtype HOP and return the next schedule.

        `sent`: probes sent by hop (32,). `ttl`: TTL of the destination's own packets, 0 if none
        came yet: a hint for how far to try. `destination`: its address, 16 bytes.
        """
        counts = sent.astype("i8")
        fresh, elapsed = counts - self._sent, now_ns - (self._decided_ns or now_ns)
        self._sent, self._decided_ns = counts, now_ns
        self._hear(rows, now_ns, destination)
        self._find_silent(fresh, elapsed)
        self.back = initial_ttl(ttl) - ttl if ttl else 0

        answering = mask_of(np.flatnonzero(self._heard_ns)) & ~self._silent
        self.farthest = max(answering.bit_length() - 1, 0)
        self.length = self.end - 1 if self.end else self.farthest
        path = self._within(1, self.length)
        live = path & ~self._silent
        # The destination itself, or routers that take its place.
        ahead = self._within(self.length + 1, self.end or self.length + AHEAD)
        far = 0 if self.end else self._within(self.length + AHEAD + 1, self.back)
        retried = path & self._silent
        self._tries = min(self._tries + _TRIES_SHARE * int(fresh.sum()), HOP_COUNT)
        waits = ((ahead, _LOOK_NS), (retried, _RETRY_NS), (far, _FAR_NS))
        tries_per_second = sum(hops.bit_count() / wait_ns * 1e9 for hops, wait_ns in waits)
        self.schedule = HopSchedule(
            live,
            self._try(live, waits, now_ns),
            self._interval_ns(live.bit_count(), tries_per_second),
        )
        return self.schedule

    def cut(self, last: int) -> None:
        """Forget the routers after hop `last`: they are no longer on the path."""
        self._heard_ns[last + 1 :] = 0

    def _hear(self, rows: Rows[HOP], now_ns: int, destination: bytes) -> None:
        answered = rows["outcome"] <= ProbeOutcome.UNREACHABLE
        answers = rows[answered & (rows["hop"] != DESTINATION_HOP)]
        from_it = (answers["responder"] == np.frombuffer(destination, "u1")).all(axis=1)
        at_end = from_it | (answers["outcome"] == ProbeOutcome.UNREACHABLE)
        of_routers = answers[~at_end]
        for hop, count in zip(*np.unique(of_routers["hop"], return_counts=True), strict=True):
            if count > 1 or now_ns - self._heard_ns[hop] < _PATIENCE_NS:
                self._silent &= ~(1 << int(hop))
            else:
                # One answer may come from a router that answers seldom and would soon be silent
                # again at the full rate. So try it again.
                self._tried_ns[hop] = 0
            self._answered(int(hop))
        np.maximum.at(self._heard_ns, of_routers["hop"], of_routers["received_ns"])

        recent = now_ns - self._heard_ns < _RECENT_NS
        recent &= self._heard_ns > 0
        if self.end and recent[self.end :].any():
            self.end = 0
        ends = [int(hop) for hop in np.unique(answers["hop"][at_end]) if not recent[hop:].any()]
        if ends and not 0 < self.end < ends[0]:
            self.end = ends[0]
        if self.end in ends:
            self._answered(self.end)

    def _answered(self, hop: int) -> None:
        self._waited_ns[hop] = 0
        self._sent_then[hop] = self._sent[hop]

    def _find_silent(self, fresh: Array, elapsed_ns: int) -> None:
        unanswered = self._sent - self._sent_then
        self._waited_ns[(fresh > 0) & (unanswered > 0)] += elapsed_ns
        patience = np.where(self._heard_ns > 0, _PATIENCE_NS, _FIRST_PATIENCE_NS)
        silent = mask_of(np.flatnonzero((unanswered >= _ENOUGH) & (self._waited_ns > patience)))
        self._silent |= silent
        if silent >> self.end & 1:
            self.end = 0

    def _try(self, live: int, waits: Iterable[tuple[int, int]], now_ns: int) -> int:
        """The hops that are due, as many as may be tried. `waits` has hops and the time between two
        tries of each."""
        due = [
            hop
            for hops, wait_ns in waits
            for hop in hops_of(hops)
            if now_ns - self._tried_ns[hop] >= wait_ns
        ]
        if live:
            due = sorted(due, key=lambda hop: int(self._tried_ns[hop]))[: int(self._tries)]
            self._tries -= len(due)
        self._tried_ns[due] = now_ns
        return mask_of(due)

    def _within(self, first: int, last: int) -> int:
        """Bits `first` to `last`, up to the highest allowed hop."""
        return mask_within(first, min(last, self._options.max_hops))

    def _interval_ns(self, hops: int, tries_per_second: float) -> int:
        rate = self._options.rate
        if self._options.per is Per.HOP:
            rate *= hops or 1
            # Tries must not reduce the rate of live hops.
            rate += min(tries_per_second, rate * _TRIES_SHARE)
        return max(1, round(1e9 / rate))


def initial_ttl(ttl: int) -> int:
    """Return the TTL with which a packet probably started."""
    return next(each for each in _INITIAL_TTLS if ttl <= each)


def mask_within(first: int, last: int) -> int:
    """Bits `first` to `last`; 0 if the range is empty."""
    return (1 << last + 1) - (1 << first) if last >= first else 0


def mask_of(hops: Iterable[int]) -> int:
    return sum(1 << int(hop) for hop in hops)


def hops_of(mask: int) -> tuple[int, ...]:
    return tuple(hop for hop in range(1, HOP_COUNT) if mask >> hop & 1)
