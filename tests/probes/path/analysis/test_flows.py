"""Places of flows: given, kept, and given to others."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array
from probes.path.analysis.flows import (
    IDLE_NS,
    MAX_FLOWS,
    MAX_FLOWS_OF_DESTINATION,
    Answers,
    Flows,
    address_ids,
)
from probes.path.records import HOP
from tests.probes.path.analysis.simulated import SECOND, START, Flow, path, probes, raw


def rows_of(ports: list[int], destination: str = "10.94.6.2") -> Array:
    rows = np.zeros(len(ports), HOP)
    rows["version"], rows["protocol"] = 4, 6
    rows["destination"] = np.frombuffer(raw(destination), "u1")
    rows["source_port"] = ports
    return rows


def test_a_flow_has_one_place_whatever_hop_and_outcome() -> None:
    flows = Flows()
    rows = rows_of([1, 2, 1, 1])
    rows["hop"], rows["outcome"] = [1, 1, 9, 30], [0, 1, 2, 3]
    places, evicted = flows.find(rows, START, 0)
    assert places[0] == places[2] == places[3] != places[1]
    assert len(evicted) == 0
    again, _ = flows.find(rows[::-1].copy(), START + 1, 0)
    assert again.tolist() == places[::-1].tolist()


def test_the_longest_idle_flow_makes_room_and_none_of_this_poll() -> None:
    flows = Flows()
    everything = list(range(MAX_FLOWS_OF_DESTINATION))
    first, _ = flows.find(rows_of(everything), START, 0)
    flows.find(rows_of(everything[2:]), START + SECOND, 0)
    # Flow 0 is idle as long as flow 1, but sends again together with the new flow.
    places, evicted = flows.find(rows_of([0, 5000]), START + 2 * SECOND, START + 2 * SECOND)
    assert evicted.tolist() == [first[1]]
    assert places.tolist() == [first[0], first[1]]
    assert flows.left_out == 0


def test_without_an_idle_flow_new_ones_are_left_out() -> None:
    flows = Flows()
    flows.find(rows_of(list(range(MAX_FLOWS_OF_DESTINATION))), START, START)
    places, evicted = flows.find(rows_of([5000, 5001, 5000]), START, START)
    assert places.tolist() == [-1, -1, -1]
    assert len(evicted) == 0
    assert flows.left_out == 3
    other, _ = flows.find(rows_of([5000], "10.94.7.1"), START, START)
    assert other[0] >= 0


def test_all_places_together_are_bounded() -> None:
    flows = Flows()
    ports = list(range(MAX_FLOWS_OF_DESTINATION))
    for number in range(MAX_FLOWS // MAX_FLOWS_OF_DESTINATION):
        flows.find(rows_of(ports, f"10.95.0.{number}"), START + number, START)
    assert flows.used.all()
    assert flows.find(rows_of([1], "10.96.0.1"), START + SECOND, START)[0].tolist() == [-1]
    places, evicted = flows.find(rows_of([1], "10.96.0.1"), START + SECOND, START + 1)
    assert places.tolist() == evicted.tolist()
    assert flows.destinations[places[0]] != flows.destinations[(places[0] + 1) % MAX_FLOWS]


def test_a_flow_that_has_probes_is_not_idle() -> None:
    flows = Flows()
    places, _ = flows.find(rows_of([1, 2]), START, START)
    flows.find(rows_of([2]), START + IDLE_NS, START)
    assert flows.idle(START + IDLE_NS + 1).tolist() == [places[0]]
    flows.release(places[:1])
    assert flows.find(rows_of([3]), START + IDLE_NS, START)[0].tolist() == [places[0]]


def test_addresses_have_different_numbers() -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(1, 2**63, (5000, 2), "u8")
    words[:2000, 1] = 0  # IPv4
    assert len(np.unique(address_ids(words))) == 5000
    assert address_ids(np.zeros((1, 2), "u8"))[0] == 0


def test_answers_are_cut_into_series() -> None:
    rows = probes(Flow(path(3), end=1, rate=4))
    rows = rows[np.argsort(rows["hop"], kind="stable")]
    answers = Answers.of(rows, rows["hop"].astype("i8"))
    assert answers.which.tolist() == [1, 2, 3]
    assert answers.counts.tolist() == [4, 4, 4]
    assert answers.last.tolist() == [3, 7, 11]
    some = answers.only(np.arange(12) % 4 == 3)
    assert some.rtts_ns.tolist() == answers.rtts_ns[answers.last].tolist()
    assert len(answers.only(np.zeros(12, bool)).which) == 0
