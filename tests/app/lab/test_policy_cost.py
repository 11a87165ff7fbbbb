"""The cost of policies: packets of a filter, and measured nanoseconds."""

from __future__ import annotations

import time

import pytest

from app.lab.policy_cost import PolicyCost, cost_texts, frame_of, policy_costs
from bpf.compiler import Compiler
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.selected import SelectedMetric
from probes.monitor.selection import conjunctions_of
from tests.probes.monitor.bed import Bed

FILTERS = (
    "proto:udp sport:123",
    "dst:10.0.0.0/8 not dst:10.0.0.0/9",
    "src:2001:db8::/32",
    "flags=S dport:1000-2000",
    "vlan:7",
    "not proto:tcp,udp",
    "ip:6",
    "not port:443",
    "not src:0.0.0.0/1",
)


def test_a_packet_of_each_selection() -> None:
    """The kernel's classifier puts each made packet into its selection."""
    with Compiler() as compiler, Bed(compiler, MonitorOptions()) as bed:
        metrics = [SelectedMetric("packets", text) for text in FILTERS]
        with bed.monitor.counters.changed("p", metrics):
            pass
        for metric in metrics:
            for conjunction in conjunctions_of((metric.selection,)):
                bed.run(frame_of(conjunction))
                bed.window()
                assert bed.monitor.selected[metric].value == 1, metric


@pytest.mark.timing
def test_the_cost_of_policies_is_measured_in_two_seconds() -> None:
    texts = ("plain: flows > 5 -> dns", "ntp: rate(packets on proto:udp sport:123) > 1k/s -> dns")
    policies = [Policy.parse_short(text) for text in texts]
    started = time.process_time()
    alone, (plain, ntp, together) = policy_costs(policies, MonitorOptions())
    took = time.process_time() - started
    assert 0 < alone < 1000
    assert plain.selected < 100 > ntp.every
    assert together.every < 100
    assert took < 10, "two seconds"


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (PolicyCost(0.4, 0.2), "costs 0 ns a packet"),
        (PolicyCost(4.1, 1.9), "costs 6 ns a packet: 4 ns for all, 2 ns for its selection"),
    ],
)
def test_a_cost_in_words(cost: PolicyCost, text: str) -> None:
    assert str(cost) == text


def test_the_cost_without_a_right_to_load_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("app.lab.policy_cost.policy_costs", refused)
    assert cost_texts((), MonitorOptions()) == {
        "cost": "not measured, as no program can be loaded: Operation not permitted"
    }
