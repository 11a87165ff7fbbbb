"""Networks that answer as a test says, and the simulated time in which they are probed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bpf.arrays import Array
from probes.path.options import PathOptions
from probes.path.probing_plan import ProbingPlan, hops_of
from probes.path.records import HOP, HOP_COUNT, ProbeOutcome

POLL = 0.25
DESTINATION = 99
"""First byte of its address; a router's is its hop."""


@dataclass
class Limiter:
    """Answers so many times a second, as Linux does: with a few at once after a pause."""

    rate: float
    tokens: float = 6
    at: float = 0

    def __call__(self, now: float) -> bool:
        self.tokens = min(6, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass
class Network:
    """A path of `length` routers to a destination, and the way back from it."""

    length: int = 6
    back: int | None = None
    """Routers on the way back; None: as many. -1: nothing ever comes back from the destination."""
    silent: frozenset[int] = frozenset()
    limits: dict[int, Limiter] = field(default_factory=dict)
    """By hop; DESTINATION's are its port unreachables."""
    refuses: bool = False
    """Whether the destination answers a probe: that the port is closed."""
    rtt: float = 0.01
    loss: float = 0

    def answer(self, hop: int, now: float) -> int:
        """The hop that answers a probe; 0 for none."""
        who = hop if hop <= self.length else DESTINATION
        if who in self.silent or (who == DESTINATION and not self.refuses):
            return 0
        limit = self.limits.get(who)
        return 0 if (limit and not limit(now)) or random.random() < self.loss else who

    @property
    def ttl(self) -> int:
        back = self.length if self.back is None else self.back
        return 0 if back < 0 else 64 - back


class Simulation:
    """Policy and meter, polled four times a second, above a network."""

    def __init__(
        self, network: Network, packets: float = 2000, options: PathOptions | None = None
    ) -> None:
        random.seed(7)
        self.network = network
        self.packets = packets
        """The application's, per second."""
        self.options = options or PathOptions()
        self.policy = ProbingPlan(self.options)
        self.now = 100.0
        self.sent = np.zeros(HOP_COUNT, "u8")
        self.plans: list[tuple[float, int, int]] = []
        """When, the hops that were live, and the length."""
        self._coming: list[tuple[float, float, int, int]] = []
        self._next = self._due = self.now
        self._round: list[int] = []
        self._asked: set[int] = set()
        self._ttl = 0

    def run(self, seconds: float) -> Array:
        """Probes sent by hop meanwhile."""
        before = self.sent.copy()
        self.plans.clear()
        for _ in range(round(seconds / POLL)):
            self._until(self.now + POLL)
            self._decide()
        return (self.sent - before).astype("i8")

    @property
    def live(self) -> list[int]:
        return list(self.policy.live)

    def _until(self, end: float) -> None:
        while self.packets and self._next < end:
            self.now = self._next
            self._next += random.uniform(0.5, 1.5) / self.packets
            self._ttl = self.network.ttl
            interval = self.policy.schedule.interval_ns / 1e9
            if self._due <= self.now:
                if self._due + interval < self.now:
                    self._due = self.now
                self._due += interval
                self._send()
        if not self.packets:
            self._next = end
        self.now = end

    def _send(self) -> None:
        live = self.policy.live
        self._round = [hop for hop in self._round if hop in live] or list(live)
        if self._asked:
            hop = min(self._asked)
            self._asked.remove(hop)
        elif self._round:
            hop = self._round.pop(random.randrange(len(self._round)))
        else:
            return
        self.sent[hop] += 1
        if who := self.network.answer(hop, self.now):
            heapq.heappush(self._coming, (self.now + self.network.rtt, self.now, hop, who))

    def _decide(self) -> None:
        come = []
        while self._coming and self._coming[0][0] <= self.now:
            come.append(heapq.heappop(self._coming))
        rows = np.zeros(len(come), HOP)
        for row, (received, sent, hop, who) in zip(rows, come, strict=True):
            row["received_ns"], row["sent_ns"], row["hop"] = received * 1e9, sent * 1e9, hop
            row["responder"][0] = who
            row["outcome"] = (
                ProbeOutcome.UNREACHABLE if who == DESTINATION else ProbeOutcome.ANSWERED
            )
        address = bytes([DESTINATION]).ljust(16, b"\0")
        plan = self.policy.decide(rows, self.sent, self._ttl, round(self.now * 1e9), address)
        self._asked |= set(hops_of(plan.once))
        self.plans.append((self.now, plan.live, self.policy.length))

    def changes(self) -> int:
        """How often another set of hops was live, or the length was another."""
        states = [state for _, *state in self.plans]
        return sum(a != b for a, b in itertools.pairwise(states))

    def until(self, condition: Callable[[], bool], most: float) -> float:
        """Seconds until it is so."""
        start = self.now
        while not condition():
            self.run(POLL)
            assert self.now - start < most, (self.policy.length, self.live, self.policy.silent)
        return self.now - start


def upto(last: int) -> list[int]:
    return list(range(1, last + 1))
