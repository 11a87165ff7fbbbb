"""Which hops are probed, in networks that answer as a test says (S3.5, S3.8, S3.9)."""

from __future__ import annotations

import random

import pytest

from probes.path.options import PathOptions, Per
from probes.path.probing_plan import hops_of
from tests.probes.path.simulation import DESTINATION, POLL, Limiter, Network, Simulation, upto


@pytest.mark.parametrize("back", [None, -1])
@pytest.mark.parametrize("length", [1, 6, 28])
def test_each_hop_gets_its_rate_and_those_beyond_the_path_next_to_nothing(
    length: int, back: int | None
) -> None:
    """S3.5, S3.8: whether the destination ever sends a packet or not."""
    simulation = Simulation(Network(length, back), packets=5000)
    simulation.run(4)
    sent = simulation.run(5)
    assert simulation.live == upto(length)
    assert simulation.policy.length == length
    assert simulation.policy.silent == ()
    assert simulation.changes() == 0
    assert sent[1 : length + 1] == pytest.approx(500, rel=0.02)
    assert sent[length + 1 :].max() <= 2 * 5


@pytest.mark.parametrize(("length", "back"), [(6, None), (6, 9), (9, 6), (14, -1)])
def test_a_path_is_known_within_a_second_from_the_first_packet(
    length: int, back: int | None
) -> None:
    simulation = Simulation(Network(length, back))
    assert simulation.until(lambda: set(upto(length)) <= set(simulation.live), 2) <= 1


def test_global_is_the_rate_of_all_hops_together_with_their_tries() -> None:
    """S3.5."""
    network = Network(5, silent=frozenset({3}))
    simulation = Simulation(network, options=PathOptions(rate=100, per=Per.GLOBAL))
    simulation.run(4)
    sent = simulation.run(10)
    assert sent.sum() == pytest.approx(1000, rel=0.02)
    assert sent[[1, 2, 4, 5]].min() > 200


@pytest.mark.parametrize("silent", [{1}, {3}, {2, 3, 4}, {6}, {1, 2, 5, 6}])
def test_a_silent_hop_costs_two_probes_a_second_and_few_until_then(silent: set[int]) -> None:
    """S3.9."""
    simulation = Simulation(Network(6, silent=frozenset(silent)))
    first = simulation.run(3)
    sent = simulation.run(10)
    assert simulation.live == [hop for hop in upto(6) if hop not in silent]
    length = max(simulation.live)
    assert simulation.policy.length == length  # a way back of 6 routers proves none behind it
    assert simulation.policy.silent == tuple(sorted(hop for hop in silent if hop < length))
    assert simulation.changes() == 0
    for hop in silent:
        assert first[hop] <= 150
        assert 5 <= sent[hop] <= 20
    assert sent[simulation.live] == pytest.approx(1000, rel=0.02)


def test_a_hop_that_falls_silent_is_left_and_one_that_speaks_again_is_back_within_two_seconds() -> (
    None
):
    simulation = Simulation(Network(6))
    simulation.run(4)
    simulation.network.silent = frozenset({4})
    assert simulation.until(lambda: simulation.live == [1, 2, 3, 5, 6], 4) <= 3
    assert simulation.policy.silent == (4,)
    simulation.run(5)
    simulation.network.silent = frozenset()
    assert simulation.until(lambda: simulation.live == upto(6), 4) <= 2
    simulation.run(5)
    assert simulation.changes() == 0


@pytest.mark.parametrize("rate", [1, 10])
@pytest.mark.parametrize("loss", [0, 0.02])
def test_a_rate_limited_hop_stays_live(rate: float, loss: float) -> None:
    """Linux answers one sender once a second unless told otherwise."""
    network = Network(6, limits={2: Limiter(rate), 6: Limiter(rate)}, loss=loss)
    simulation = Simulation(network)
    simulation.run(4)
    simulation.run(30)
    assert simulation.live == upto(6)
    assert simulation.changes() == 0


@pytest.mark.parametrize(("hop", "back"), [(3, None), (6, -1)])
def test_a_hop_that_answers_once_in_five_seconds_is_not_probed_at_the_full_rate(
    hop: int, back: int | None
) -> None:
    """S3.9: and does not go back and forth between the two."""
    simulation = Simulation(Network(6, back, limits={hop: Limiter(0.2, tokens=1)}))
    simulation.run(10)
    sent = simulation.run(30)
    assert simulation.changes() == 0
    assert simulation.live == [other for other in upto(6) if other != hop]
    assert 20 <= sent[hop] <= 70


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("back", [6, -1])
@pytest.mark.parametrize("more", [1, 3])
def test_a_path_that_becomes_longer_is_known_within_a_second(
    more: int, back: int | None, refuses: bool
) -> None:
    simulation = Simulation(Network(6, back, refuses=refuses))
    simulation.run(12)
    simulation.network.length += more
    found = simulation.until(lambda: simulation.policy.length == 6 + more, 3)
    # The destination itself says so, hop by hop.
    assert found <= (1 if not refuses else 0.5 + 0.5 * more)
    assert simulation.until(lambda: simulation.live == upto(6 + more), 3) <= 0.5
    simulation.run(5)
    assert simulation.changes() == 0
    assert simulation.policy.length == 6 + more


def test_a_path_that_becomes_longer_by_a_silent_hop_too() -> None:
    simulation = Simulation(Network(6))
    simulation.run(6)
    simulation.network.length = 8
    simulation.network.silent = frozenset({7})
    assert simulation.until(lambda: simulation.policy.length == 8, 3) <= 1
    simulation.run(3)
    assert simulation.live == [*upto(6), 8]
    assert simulation.policy.silent == (7,)


@pytest.mark.parametrize(("refuses", "seconds"), [(False, 3), (True, 1)])
@pytest.mark.parametrize("back", [None, -1])
def test_a_path_that_becomes_shorter(back: int | None, refuses: bool, seconds: float) -> None:
    """At once where the destination answers, else when the hops that are gone are silent."""
    simulation = Simulation(Network(9, back, refuses=refuses))
    simulation.run(6)
    simulation.network.length = 6
    assert simulation.until(lambda: simulation.policy.length == 6, 6) <= seconds
    assert simulation.live == upto(6)
    sent = simulation.run(10)
    assert simulation.changes() == 0
    assert sent[7:].max() <= 20
    assert simulation.policy.silent == ()


def test_a_way_back_that_is_longer_or_varies_makes_no_hop_live_that_is_not_there() -> None:
    simulation = Simulation(Network(6, back=9))
    simulation.run(4)
    assert simulation.live == upto(6)
    for number in range(40):
        simulation.network.back = 9 + number % 2
        simulation.run(POLL)
        assert (simulation.live, simulation.policy.length) == (upto(6), 6)


def test_a_destination_that_refuses_ends_the_path_for_certain() -> None:
    """UDP to a closed port; Linux says so once a second."""
    limits = {DESTINATION: Limiter(1)}
    simulation = Simulation(Network(3, back=9, refuses=True, limits=limits))
    simulation.run(3)
    sent = simulation.run(30)
    assert (simulation.live, simulation.policy.length) == (upto(3), 3)
    assert simulation.changes() == 0
    assert sent[4] <= 60
    assert sent[5:].sum() == 0


def test_an_end_that_is_not_confirmed_is_none() -> None:
    """A router that said for a while that it does not deliver, and is silent otherwise."""
    simulation = Simulation(Network(6))
    simulation.run(4)
    whole = simulation.network
    simulation.network = Network(1, refuses=True)
    simulation.run(3)
    assert simulation.policy.length == 1
    simulation.network = whole
    whole.silent = frozenset({2})
    simulation.until(lambda: simulation.policy.length == 6, 8)
    simulation.run(4)
    assert simulation.live == [1, 3, 4, 5, 6]


def test_the_shorter_of_two_flows_paths_does_not_hide_the_longer_one() -> None:
    """One flow meets the destination where the other still has a router."""

    class Balanced(Network):
        def answer(self, hop: int, now: float) -> int:
            self.length = random.choice((6, 7))
            return super().answer(hop, now)

    simulation = Simulation(Balanced(refuses=True, back=-1))
    simulation.run(4)
    simulation.run(20)
    assert simulation.live == upto(7)
    assert simulation.changes() == 0


@pytest.mark.parametrize("back", [None, -1])
@pytest.mark.parametrize("rtt", [0.01, 0.8])
def test_a_pause_of_the_application_changes_nothing(rtt: float, back: int | None) -> None:
    """No probes, so no answers: nobody is silent for that."""
    limits = {4: Limiter(1)}
    network = Network(6, back, rtt=rtt, silent=frozenset({2}), limits=limits, loss=0.02)
    simulation = Simulation(network)
    simulation.run(8)
    for pause in (7, 180):
        simulation.packets = 0
        sent = simulation.run(pause)
        assert sent.sum() == 0
        assert simulation.changes() == 0
        simulation.packets = 2000
        simulation.run(6)
        assert simulation.changes() == 0
        assert simulation.live == [1, 3, 4, 5, 6]


def test_a_long_round_trip_is_no_silence() -> None:
    simulation = Simulation(Network(6, rtt=0.8))
    simulation.run(2)
    simulation.run(20)
    assert simulation.live == upto(6)
    assert simulation.changes() == 0
    simulation.network.rtt = 2.0  # a queue
    simulation.run(20)
    assert simulation.live == upto(6)


@pytest.mark.parametrize("back", [None, -1])
def test_where_nothing_answers_next_to_nothing_is_sent_and_all_is_found_when_it_does(
    back: int | None,
) -> None:
    network = Network(6, back, silent=frozenset(range(1, 7)))
    simulation = Simulation(network)
    assert simulation.run(3).max() <= 150
    sent = simulation.run(20)
    assert simulation.live == []
    assert sent.max() <= 40
    network.silent = frozenset()
    simulation.until(lambda: simulation.live != [], 2)
    simulation.until(lambda: simulation.live == upto(6), 3)


def test_an_outage_is_survived() -> None:
    simulation = Simulation(Network(6))
    simulation.run(4)
    simulation.network.loss = 1
    simulation.run(20)
    simulation.network.loss = 0
    assert simulation.until(lambda: simulation.live == upto(6), 4) <= 2.5


@pytest.mark.parametrize("packets", [1, 20])
def test_an_application_that_sends_little_gets_its_hops_probed_too(packets: float) -> None:
    """Tries of hops that don't answer take a quarter of the probes at most."""
    simulation = Simulation(Network(6, silent=frozenset({2, 3})), packets=packets)
    simulation.run(150 / packets)
    sent = simulation.run(200 / packets)
    assert simulation.live == [1, 4, 5, 6]
    assert sent[[1, 4, 5, 6]].sum() >= 0.7 * sent.sum()
    assert sent[[2, 3]].min() > 0


@pytest.mark.parametrize("rate", [0.1, 1])
def test_a_low_rate_is_held_and_no_hop_is_taken_for_silent(rate: float) -> None:
    simulation = Simulation(Network(6, back=-1), options=PathOptions(rate=rate))
    simulation.run(20 / rate)
    seconds = 40 / rate
    sent = simulation.run(seconds)
    assert simulation.live == upto(6)
    assert simulation.changes() == 0
    assert sent[1:7] == pytest.approx(40, rel=0.15)
    assert sent[7:].max() <= min(2.2 * seconds, 15)


def test_no_more_hops_are_looked_at_than_was_asked_for() -> None:
    simulation = Simulation(Network(9), options=PathOptions(max_hops=4))
    sent = simulation.run(5)
    assert simulation.live == upto(4)
    assert sent[5:].sum() == 0


def test_a_destination_without_a_router_before_it() -> None:
    simulation = Simulation(Network(0))
    simulation.run(3)
    assert (simulation.live, simulation.policy.length) == ([], 0)
    assert simulation.run(10).max() <= 20


def test_random_networks_settle() -> None:
    """Whatever answers: in the end each hop that does is live, no other, and it stays so."""
    for seed in range(10):
        chance = random.Random(seed)
        length = chance.randint(1, 20)
        silent = frozenset(hop for hop in upto(length) if chance.random() < 0.2)
        network = Network(
            length,
            chance.choice((None, -1, chance.randint(0, 25))),
            silent,
            refuses=chance.random() < 0.3,
            rtt=chance.choice((0.001, 0.1, 0.5)),
        )
        if longest_gap(length, silent) >= 3:
            continue  # behind them nothing is looked for, unless the way back says there is
        simulation = Simulation(network, packets=chance.choice((300, 5000)))
        simulation.run(12)
        simulation.run(5)
        assert simulation.live == [hop for hop in upto(length) if hop not in silent], seed
        assert simulation.changes() == 0, seed


def longest_gap(length: int, silent: frozenset[int]) -> int:
    pattern = "".join(" x"[hop in silent] for hop in upto(length))
    return max(map(len, pattern.split(" ")))


def test_hops_of_a_mask() -> None:
    assert hops_of(0) == ()
    assert hops_of(0b1011 << 1) == (1, 2, 4)
    assert hops_of((1 << 32) - 1) == tuple(range(1, 32))
