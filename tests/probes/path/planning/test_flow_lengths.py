"""Which unanswered probes are losses, while paths of flows end, shrink, grow and part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.records import DESTINATION_HOP, HOP, ProbeOutcome

SECOND = 1_000_000_000
POLL = SECOND // 4
TIMEOUT = 3 * SECOND
DESTINATION = bytes([99]).ljust(16, b"\0")

Router = Callable[[int, int, float], int]
"""The router that answers a flow's probe to a hop at a time; 0: none, 99: the destination."""


class Traffic:
    """Probes of flows to hops 1 to 8, each hop `rate` times a second, and the polls."""

    def __init__(self, router: Router, flows: int = 1, rate: float = 100, loss: float = 0) -> None:
        self.lengths = FlowLengths(DESTINATION, TIMEOUT)
        self.heard: Callable[[float], float] = lambda now: 0
        """When the destination was heard last, in seconds; 0: never."""
        self._router, self._flows, self._rate, self._loss = router, flows, rate, loss
        self._random = np.random.default_rng(3)
        self._flying = np.empty(0, HOP)
        self.now = 0.0
        self.outcomes: Counter[tuple[int, int, int]] = Counter()
        """By flow, hop and outcome."""
        self.shorter: list[tuple[float, int, int]] = []
        """When, flow and last hop."""

    def run(self, seconds: float) -> Counter[tuple[int, int]]:
        """Losses by flow and hop meanwhile."""
        self.outcomes.clear()
        for _ in range(round(seconds * 4)):
            self._flying = np.concatenate([self._flying, self._sent()], dtype=HOP)
            self.now += POLL / SECOND
            self._poll(round(self.now * SECOND))
        lost = ProbeOutcome.UNANSWERED
        return Counter({(f, h): n for (f, h, what), n in self.outcomes.items() if what == lost})

    def _sent(self) -> Array:
        count = self._random.poisson(self._rate * self._flows * POLL / SECOND, 9)
        count[0] = 0
        rows = np.zeros(count.sum(), HOP)
        rows["destination"] = np.frombuffer(DESTINATION, "u1")
        rows["hop"] = np.repeat(np.arange(9), count)
        rows["source_port"] = self._random.integers(0, self._flows, len(rows)) + 1
        rows["sent_ns"] = self.now * SECOND + self._random.integers(1, POLL, len(rows))
        for row in rows:
            if self._random.random() < self._loss:
                continue
            flow, hop = int(row["source_port"]), int(row["hop"])
            if who := self._router(flow, hop, row["sent_ns"] / SECOND):
                row["responder"][0] = who
                row["received_ns"] = row["sent_ns"] + 20_000_000
        return rows

    def _poll(self, now_ns: int) -> None:
        flying = self._flying
        answered = (flying["received_ns"] > 0) & (flying["received_ns"] <= now_ns)
        lost = (flying["received_ns"] == 0) & (flying["sent_ns"] < now_ns - TIMEOUT)
        flying["outcome"] = ProbeOutcome.IN_FLIGHT
        flying["outcome"][answered] = ProbeOutcome.ANSWERED
        flying["outcome"][lost] = ProbeOutcome.UNANSWERED
        rows, self._flying = flying[answered | lost], flying[~(answered | lost)]
        overdue = self._flying[self._flying["sent_ns"] < now_ns - SECOND // 2]
        heard_ns = round(self.heard(self.now) * SECOND)
        for row in self.lengths.take(rows, overdue, heard_ns, now_ns):
            self.shorter.append((self.now, int(row["source_port"]), int(row["hop"])))
        ended = np.flatnonzero(rows["outcome"] == ProbeOutcome.UNANSWERED)
        rows["outcome"][ended[self.lengths.beyond(rows[ended])]] = ProbeOutcome.BEYOND_PATH
        for row in rows:
            self.outcomes[int(row["source_port"]), int(row["hop"]), int(row["outcome"])] += 1


def upto(length: int) -> Router:
    return lambda flow, hop, now: hop if hop <= length else 0


def test_a_path_ends_at_its_last_router() -> None:
    traffic = Traffic(upto(5))
    assert traffic.run(10) == {}
    assert traffic.lengths.longest == 5
    assert traffic.shorter == []


@pytest.mark.parametrize(("flows", "rate"), [(1, 100), (60, 2), (400, 0.5)])
def test_losses_of_every_flow_count_and_no_other_probes(flows: int, rate: float) -> None:
    """Also of flows with few probes."""
    traffic = Traffic(upto(5), flows, rate, loss=0.1)
    traffic.run(8)
    lost = traffic.run(8)
    by_hop = Counter[int]()
    for (_, hop), count in lost.items():
        by_hop[hop] += count
    sent = flows * rate * 8
    assert max(by_hop) == 5
    for hop in range(1, 6):
        assert by_hop[hop] == pytest.approx(0.1 * sent, rel=0.25)
    assert traffic.shorter == []


def test_a_silent_router_on_the_way_loses_its_probes() -> None:
    traffic = Traffic(lambda flow, hop, now: hop if hop in (1, 2, 4, 5) else 0)
    assert set(traffic.run(8)) == {(1, 3)}


@pytest.mark.parametrize(("flows", "rate"), [(1, 100), (20, 5), (100, 1)])
def test_a_detour_back_loses_nothing_and_is_known_within_a_second(flows: int, rate: float) -> None:
    def router(flow: int, hop: int, now: float) -> int:
        if now < 6.1:
            return hop + 20 * (hop > 2) if hop <= 7 else 0
        return hop if hop <= 5 else 0

    traffic = Traffic(router, flows, rate)
    traffic.run(6)
    assert traffic.run(10) == {}
    assert traffic.lengths.longest == 5
    assert {last for _, _, last in traffic.shorter} == {5}
    assert min(when for when, _, _ in traffic.shorter) <= 7.25
    assert len({flow for _, flow, _ in traffic.shorter}) == len(traffic.shorter)


def test_a_detour_that_is_longer_loses_nothing() -> None:
    def router(flow: int, hop: int, now: float) -> int:
        if now < 6.1:
            return hop if hop <= 5 else 0
        return hop + 20 * (hop > 2) if hop <= 7 else 0

    traffic = Traffic(router)
    traffic.run(6)
    assert traffic.run(10) == {}
    assert (traffic.lengths.longest, traffic.shorter) == (7, [])


@pytest.mark.parametrize("rerouted", [False, True])
def test_a_black_hole_is_a_loss(rerouted: bool) -> None:
    """The destination was heard all the time, and now it is not."""

    def router(flow: int, hop: int, now: float) -> int:
        if now < 6.1:
            return hop if hop <= 5 else 0
        return hop + 20 * rerouted if hop <= 3 else 0

    traffic = Traffic(router)
    traffic.heard = lambda now: min(now, 6.1)
    traffic.run(8)
    lost = traffic.run(6)
    assert lost[1, 4] > 400
    assert lost[1, 5] > 400
    assert set(lost) == {(1, 4), (1, 5)}
    assert traffic.shorter == []


def test_routers_that_fall_silent_while_packets_pass_lose_nothing() -> None:
    traffic = Traffic(lambda flow, hop, now: hop if hop <= (5 if now < 6 else 4) else 0)
    traffic.heard = lambda now: now
    traffic.run(6)
    assert traffic.run(10) == {}
    assert traffic.lengths.longest == 4
    assert [last for _, _, last in traffic.shorter] == [4]


def test_a_last_router_that_answers_once_a_second_loses_the_others() -> None:
    """A change of routers before it proves nothing."""
    answered = [0.0]

    def router(flow: int, hop: int, now: float) -> int:
        if hop == 5:
            if now - answered[0] < 1:
                return 0
            answered[0] = now
        return hop + 20 * (hop == 3 and now > 8) if hop <= 5 else 0

    traffic = Traffic(router)
    traffic.heard = lambda now: now
    traffic.run(4)
    assert set(traffic.run(12)) == {(1, 5)}
    assert traffic.shorter == []


def test_branches_have_lengths_of_their_own() -> None:
    """Flows with odd numbers go by one router more."""

    def router(flow: int, hop: int, now: float) -> int:
        if hop <= 2:
            return hop
        odd = flow % 2
        return hop + 20 * odd if hop <= 5 + odd else 0

    traffic = Traffic(router, flows=20, rate=5, loss=0.05)
    traffic.run(8)
    lost = traffic.run(10)
    assert max(hop for flow, hop in lost if flow % 2 == 0) == 5
    assert max(hop for flow, hop in lost if flow % 2) == 6
    assert traffic.lengths.longest == 6


def test_the_destination_ends_the_path() -> None:
    """By its own answers, at the hop where a router was."""

    def router(flow: int, hop: int, now: float) -> int:
        last = 6 if now < 6 else 5
        return hop if hop <= last else 99

    traffic = Traffic(router)
    traffic.run(8)
    assert traffic.lengths.longest == 5
    assert traffic.run(4) == {}


def test_a_flow_that_is_heard_while_others_are_not_passes_its_hop() -> None:
    """Its own round trips tell, not the packets that other flows get."""

    def router(flow: int, hop: int, now: float) -> int:
        return hop if hop <= (5 if now < 6 else 4) or (flow == 2 and hop <= 5) else 0

    class Heard(Traffic):
        def _sent(self) -> Array:
            rows = super()._sent()
            trips = rows[(rows["hop"] == 1) & (rows["source_port"] == 1)]
            trips["hop"] = DESTINATION_HOP
            return np.concatenate([rows, trips], dtype=HOP)

    traffic = Heard(router, flows=3)
    traffic.heard = lambda now: now
    traffic.run(10)
    lost = traffic.run(4)
    assert lost[1, 5] == 0
    assert lost[3, 5] > 100
