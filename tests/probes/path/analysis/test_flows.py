"""Places of flows: given, kept, and given to others."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array
from probes.path.analysis.flows import (
    MAX_FLOWS,
    MAX_FLOWS_OF_DESTINATION,
    Flows,
)
from probes.path.records import HOP
from tests.probes.path.analysis.simulated import SECOND, START, raw


def rows_of(ports: list[int], destination: str = "10.94.6.2") -> Array:
    rows = np.zeros(len(ports), HOP)
    rows["version"], rows["protocol"] = 4, 6
    rows["destination"] = np.frombuffer(raw(destination), "u1")
    rows["source_port"] = ports
    return rows


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
