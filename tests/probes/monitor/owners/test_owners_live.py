"""A policy that knows an owner, with the probe of sockets and real connections."""

from __future__ import annotations

import os
import socket
import struct
import time
from functools import partial

import pytest

from app.lab.netns import inside
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.monitor.options import MonitorOptions
from probes.monitor.owners import window
from probes.monitor.policy import Policy
from probes.monitor.state import PROBE
from probes.snapshot import Event, Snapshot
from probes.sockets import probe as sockets_probe
from probes.sockets.holders import SocketEvents
from probes.sockets.owners import live
from tests.bpf.cgroups import cgroup
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck

SERVICES = (7001, 7002)
NOBODY = 7005


def windows(deck: Deck) -> None:
    """End a window of flows, wait for its owners, and end one of the monitor."""
    (flows,) = deck.controller.export("flow")
    end = time.monotonic() + 10
    while not any(
        isinstance(item, Snapshot) and (item.metric, item.window) == ("ownership", flows.window)
        for item in tuple(deck.items)
    ):
        assert time.monotonic() < end
        time.sleep(0.005)
    deck.controller.export(PROBE)


def selected(deck: Deck) -> int:
    info = deck.controller.monitor()
    assert info
    (policy,) = info.policies
    return policy.selected


def knock(deck: Deck, port: int) -> int:
    """Have a SYN answered, by a socket or by a reset. Return the packets selected so far."""
    with inside(deck.left.ns):
        asking = socket.socket()
    with asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asking.connect_ex((deck.right.ipv4, port))
    return selected(deck)


@pytest.mark.slow
def test_the_selection_follows_the_services_of_a_process(
    deck: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy starts the probe of sockets. The first window of a service is missed; packets to
    other ports of this host are not selected."""
    with cgroup() as folder:
        monkeypatch.setattr(live, "SocketEvents", partial(SocketEvents, folder=folder))
        monkeypatch.setattr(sockets_probe, "LATE_S", 0.02)
        # These windows are as long as the steps of the test: short ones count, too.
        monkeypatch.setattr(window, "_SHORT", 0)
        deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=0))
        deck.controller.watch_metrics("right", MonitorOptions(bits=8, interval=300))
        policy = f"mine: always -> accounting on pid:{os.getpid()}"
        deck.controller.set_policy(Policy.parse_short(policy))
        assert "sockets" in [info.name for info in deck.controller.probes()]
        for port in SERVICES:
            before = selected(deck)
            with socket.create_server((deck.right.ipv4, port)):
                assert knock(deck, port) == before
                windows(deck)
                assert knock(deck, NOBODY) == before
                assert knock(deck, port) > before
        deck.controller.remove(PROBE)
    assert not [item for item in deck.items if isinstance(item, Event) and "owners" in item.text]


def test_without_flows_a_policy_says_what_is_missing(deck: Deck) -> None:
    deck.controller.watch_metrics("right", MonitorOptions(bits=8, interval=300))
    deck.controller.set_policy(Policy.parse_short("mine: always -> accounting on process:nginx"))
    assert deck.said("warning", PROBE) == [
        "policy mine waits for owners: no flow probe runs whose flows could have owners"
    ]
