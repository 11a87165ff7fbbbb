"""A real scan over a veth: the transition of the policy that it wakes has the scanner."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.lab.netns import inside
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.flow.records import FLOW
from probes.monitor.control.culprits import finding_for
from probes.monitor.engine import Engine
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC
from probes.monitor.selected import Estimate, SelectedMetric
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.snapshot import Snapshot
from tests.probes.deck import Deck, deck

__all__ = ["deck"]
PORTS = 300
SCAN = Policy.parse_short("scan: flows > 200 -> accounting")


def watch(deck: Deck, policy: Policy, interval: float = 0.1) -> None:
    with inside(deck.right.ns):
        deck.controller.watch_metrics(
            "right", MonitorOptions(bits=10, interval=interval), policies=(policy,)
        )


def watch_flows(deck: Deck, interval: float, capture: str = "") -> None:
    options = FlowOptions(interval=interval, capture=capture)
    with inside(deck.right.ns):
        deck.controller.start(FLOW_PROBE, "right", options)


def scan(deck: Deck) -> None:
    with inside(deck.left.ns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in range(1, PORTS + 1):
            sender.sendto(b"?", (deck.right.ipv4, port))


def windows(deck: Deck, metric: str, probe: str = PROBE) -> list[Snapshot]:
    items = tuple(deck.items)
    return [
        item
        for item in items
        if isinstance(item, Snapshot) and (item.probe, item.metric) == (probe, metric)
    ]


def until(done: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(deck: Deck) -> Any:
    """The first transition of the policy."""
    until(lambda: windows(deck, TRIGGERS_TABLE))
    row = windows(deck, TRIGGERS_TABLE)[0].rows[0]
    return row


@pytest.mark.slow
@pytest.mark.parametrize("interval", [0.05, 60], ids=["many windows of flows", "one window"])
def test_a_scan_is_told_with_the_scanner(deck: Deck, interval: float) -> None:
    watch_flows(deck, interval)
    watch(deck, SCAN, 60)
    scan(deck)
    time.sleep(0.01)  # A window of flows that ends within 2 ms would be enough.
    deck.controller.export(PROBE)
    row = begun(deck)
    left, right = deck.left.ipv4, deck.right.ipv4
    assert (
        row["finding"]
        .decode()
        .startswith(f"{left} -> {right}, {PORTS} ports by UDP; {PORTS} packets, ")
    )
    assert row["filter"].decode() == f"proto:udp src:{left}"
    assert (row["found_packets"], row["found_flows"], row["ports"]) == (PORTS, PORTS, PORTS)
    assert (row["sources"], row["top_source"].decode()) == (1, left)
    assert (row["top_source_share"], row["top_destination"].decode()) == (1.0, right)
    (told,) = deck.said("warning", PROBE)
    assert told.startswith(f"scan: {left} -> {right}, {PORTS} ports by UDP; ")
    assert "flows " not in told
    assert row["cause"].decode().startswith("flows ")
    info = deck.controller.monitor()
    assert info
    assert info.policies[0].finding
    assert info.policies[0].finding.ports.count == PORTS


@pytest.mark.timing
def test_windows_of_flows_and_monitor_end_together(deck: Deck) -> None:
    watch_flows(deck, 0.1)
    watch(deck, SCAN)
    until(lambda: len(windows(deck, METRICS_TABLE)) > 4)
    flows, monitor = windows(deck, "", "flow"), windows(deck, METRICS_TABLE)
    ends = np.array([window.end_ns for window in flows])
    # The last flow window may not be there yet.
    apart = [int(np.abs(ends - window.end_ns).min()) for window in monitor[1:-1]]
    assert sorted(apart)[len(apart) // 2] < 5e6, apart


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flows", "said"),
    [
        (lambda deck: None, "who is unknown: no flow probe runs"),
        (
            lambda deck: watch_flows(deck, 60, "proto:tcp"),
            "who is unknown: no flow of this window is selected;"
            " only flows of the capture proto:tcp",
        ),
    ],
)
def test_without_flows_the_finding_says_why(
    deck: Deck, flows: Callable[[Deck], None], said: str
) -> None:
    flows(deck)
    watch(deck, Policy.parse_short("mine: operator -> accounting"), 60)
    deck.controller.activate_policy("mine")
    deck.controller.export(PROBE)
    assert begun(deck)["finding"].decode() == said
    (told,) = deck.said("warning", PROBE)
    assert told == f"mine fired: an operator activated it; {said}"


@pytest.mark.slow
def test_an_operators_activation_has_a_finding_of_the_last_interval(deck: Deck) -> None:
    watch_flows(deck, 60)
    watch(deck, Policy.parse_short("mine: operator -> accounting"), 60)
    scan(deck)
    deck.controller.activate_policy("mine")
    deck.controller.export(PROBE)
    assert begun(deck)["found_packets"] == PORTS


@pytest.mark.parametrize(
    ("policy", "metric"),
    [
        ("one: packets > 200 suspects dport:7,9 -> accounting on proto:udp", "packets"),
        ("one: packets > 200 -> accounting on dport:7 or dport:9", "packets"),
        ("one: packets on dport:7,9 > 1 -> accounting", "packets"),
        ("one: out_packets on dport:7,9 > 1 -> accounting", "out_packets"),
    ],
    ids=["suspects", "selected packets", "compared packets", "outgoing packets"],
)
def test_a_finding_is_of_the_flows_that_the_policy_is_about(policy: str, metric: str) -> None:
    engine = Engine()
    engine.set(Policy.parse_short(policy), 0)
    row = np.zeros((), METRIC)
    row["packets"] = 300
    counted = {SelectedMetric(metric, "dport:7,9"): Estimate(2.0, 2.0, 2.0)}
    (transition,) = engine.window(row, 10**9, 1.0, counted)
    assert transition.begins
    (status,) = engine.policies()
    flows = np.zeros(300, FLOW)
    flows["protocol"], flows["version"], flows["packets"] = 17, 4, 1
    flows["destination_port"] = range(1, 301)
    flows["direction"] = metric == "out_packets"
    others = flows.copy()
    others["direction"] ^= 1
    finding = finding_for(status, np.concatenate((flows, others)), 1.0)
    assert finding.packets == 2
    assert [each.name for each in finding.ports.top] == ["udp:9", "udp:7"]
