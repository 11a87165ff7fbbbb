"""Which flows a policy traces, and for how long."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bpf.errors import UsageError
from probes.flow.records import FLOW, FlowDirection
from probes.monitor.control import tracing
from probes.monitor.control.tracing import TraceRequest, Tracing, top_flows
from probes.path.options import TracedFlow
from probes.snapshot import Event, History, Snapshot
from tests.support.sight import becomes

HERE, THERE = "10.0.0.1", "192.0.2."
Rows = np.ndarray[tuple[int, ...], np.dtype[Any]]


def row(
    source: str, sport: int, destination: str, dport: int, packets: int, *, incoming: bool
) -> Rows:
    made = np.zeros(1, FLOW)
    for name, address in (("source", source), ("destination", destination)):
        made[name][0, :4] = np.frombuffer(socket.inet_aton(address), "u1")
    made["source_port"], made["destination_port"] = sport, dport
    made["protocol"], made["version"], made["packets"] = 17, 4, packets
    made["direction"] = FlowDirection.INGRESS if incoming else FlowDirection.EGRESS
    return made


def talk(last: int, packets: int, *, answered: bool = True) -> list[Rows]:
    """Packets of 192.0.2.`last` to port 53 here, and an answer to them."""
    there = f"{THERE}{last}"
    rows = [row(there, 4000, HERE, 53, packets, incoming=True)]
    if answered:
        rows.append(row(HERE, 53, there, 4000, 1, incoming=False))
    return rows


def test_echo_is_traced_without_ports() -> None:
    """The ports of an echo request and of its answer are the identifier and the types."""
    asked = row("192.0.2.9", 77, HERE, 8 << 8, 5, incoming=True)
    answer = row(HERE, 77, "192.0.2.9", 0, 5, incoming=False)
    for each in (asked, answer):
        each["protocol"] = 1
    assert top_flows(np.concatenate((asked, answer)), ()) == [("192.0.2.9", TracedFlow(1, 0, 0))]


def flow(last: int) -> tuple[str, TracedFlow]:
    return f"{THERE}{last}", TracedFlow(17, 53, 4000)


class Network:
    """A history of flows, and the traced ones."""

    def __init__(self) -> None:
        self.history = History()
        self.traced: list[tuple[str, TracedFlow]] = []
        self.said: list[str] = []
        self.refuses = ""
        self.windows = 0
        self.tracing = Tracing(self.history, self.trace, self.untrace, self.tell)

    def window(self, *talks: list[Rows]) -> None:
        rows = np.concatenate(
            [np.empty(0, FLOW), *(one for rows in talks for one in rows)], dtype=FLOW
        )
        self.windows += 1
        end = self.windows * 4_000_000_000
        self.history.append(
            Snapshot("flow", "eth0", self.windows, 1, end - 1, end, end, rows, {}, 0.0, 0, 0)
        )

    def trace(self, destination: str, flow: TracedFlow) -> None:
        if destination == self.refuses:
            raise UsageError("too many")
        self.traced.append((destination, flow))

    def untrace(self, destination: str, flow: TracedFlow) -> None:
        self.traced.remove((destination, flow))

    def tell(self, event: Event) -> None:
        self.said.append(event.text)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr(tracing, "_RENEW", 0.02)
    made = Network()
    yield made
    made.tracing.close()


def test_the_busiest_flows_that_are_answered_and_selected() -> None:
    rows = np.concatenate(
        [
            *talk(1, 5), *talk(2, 50), *talk(3, 900, answered=False), *talk(4, 20),
            row(HERE, 999, f"{THERE}9", 80, 9999, incoming=False),
        ],
        dtype=FLOW,
    )  # fmt: skip
    assert top_flows(rows, ()) == [flow(2), flow(4), flow(1)]
    assert top_flows(rows, ("dport:53 src:192.0.2.4", "src:192.0.2.1")) == [flow(4), flow(1)]
    assert top_flows(rows, ("dport:80",)) == []
    assert top_flows(np.concatenate([rows, rows], dtype=FLOW), ())[:2] == [flow(2), flow(4)]
    assert top_flows(np.empty(0, FLOW), ()) == []


def test_flows_are_traced_while_a_policy_is_active_and_make_room_when_they_end(
    network: Network,
) -> None:
    network.window(talk(1, 10), talk(2, 20), talk(3, 30))
    network.tracing.request(TraceRequest("p", (), 2))
    assert becomes(lambda: network.traced == [flow(3), flow(2)])
    network.window(talk(1, 99), talk(2, 1))
    time.sleep(0.1)
    assert network.traced == [flow(3), flow(2)], "3 was there a moment ago"
    network.window(talk(1, 99), talk(2, 1))
    network.window(talk(1, 99), talk(2, 1))
    assert becomes(lambda: network.traced == [flow(2), flow(1)])
    network.tracing.request(TraceRequest("p"))
    assert becomes(lambda: not network.traced)
    assert not network.said


def test_why_there_are_fewer_is_said_once(network: Network) -> None:
    network.refuses = f"{THERE}1"
    network.window()
    network.tracing.request(TraceRequest("p", (), 2))
    assert becomes(lambda: bool(network.said))
    network.window(talk(1, 10), talk(2, 5))
    assert becomes(lambda: network.traced == [flow(2)])
    network.tracing.request(TraceRequest("q", (), 2))
    assert becomes(lambda: len(network.said) == 2)
    time.sleep(0.1)
    assert network.said == [
        "policy p traces fewer than 2 flows: no flow that it selects is answered by this host",
        "policy q traces fewer than 2 flows: too many",
    ]
