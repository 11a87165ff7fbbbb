"""Actions on packets that really arrive."""

from __future__ import annotations

import os
import re
import socket
import time

import pytest

from app.lab import netns
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.control.controller import Controller
from probes.monitor.actions.state import ActionInfo, ActionState
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import POLICIES_TABLE, PROBE
from tests.probes.deck import Deck, deck
from tests.probes.monitor.actions.flood import (
    PORT,
    SO_RCVBUFFORCE,
    Others,
    flooding,
    generator_of,
    received,
)
from tests.probes.monitor.test_live import tables, wait_for
from tests.support.veth import End, join

__all__ = ["deck"]
WINDOW = 1.0
RATE = 1000
LIMIT = f"flood: rate(packets on udp dport:2000) > 10k/s -> limit {RATE}pps on udp dport:2000"


def watch(deck: Deck, *, allowed: bool = True, hook: Hook = Hook.TC_INGRESS) -> None:
    options = MonitorOptions(bits=8, interval=WINDOW, ingress=hook, allow_actions=allowed)
    deck.controller.watch_metrics("right", options)


def set_policy(deck: Deck, text: str) -> None:
    deck.controller.set_policy(Policy.parse_short(text))


def action(deck: Deck) -> ActionInfo:
    (found,) = actions_of(deck)
    assert found
    return found


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("hook", [Hook.TC_INGRESS, Hook.XDP])
def test_a_flood_to_one_port_is_limited_within_two_windows_and_other_flows_lose_nothing(
    deck: Deck, compiler: Compiler, hook: Hook
) -> None:
    watch(deck, hook=hook)
    set_policy(deck, LIMIT)
    # A veth whose receiver is not scheduled in time drops frames, before any program.
    set_policy(deck, f"others: always -> dry drop on udp dport:{PORT}")
    others = Others(deck.left, deck.right)
    with generator_of(compiler, deck.left, deck.right) as generator:
        time.sleep(2 * WINDOW)
        with flooding(generator):
            time.sleep(2 * WINDOW + 0.2)
            before, begun = received() - others.sent, time.monotonic()
            time.sleep(2 * WINDOW)
            passed, seconds = received() - others.sent - before, time.monotonic() - begun
        sent = generator.sent()
    others.finish()
    assert sent > 100_000
    assert RATE * 0.8 < passed / seconds < RATE * 1.1
    deck.controller.remove(PROBE)
    rows = tables(deck, POLICIES_TABLE)
    acted = {name: rows["acted"][rows["policy"] == name].sum() for name in (b"flood", b"others")}
    assert acted[b"others"] == others.arrived > 500
    begin, end = (t for t in deck.said("warning", PROBE) if t.startswith("policy flood "))
    assert begin == (
        f"policy flood limits to {RATE} packets/s: incoming packets of udp dport:2000, for 5m00s at"
        " most"
    )
    dropped = re.match(r"policy flood dropped (\d+) packets, .*: the monitor ends", end)
    assert dropped
    assert acted[b"flood"] == int(dropped[1]) > 50_000


@pytest.mark.slow
def test_a_mirror_copies_each_packet_once_and_takes_none(deck: Deck) -> None:
    """Of two policies: a copy is no packet of another action."""
    sink = netns.fresh()
    ends = (
        End(deck.right.ns, "copies", 0, "10.96.0.1", "fd96::1"),
        End(sink, "sink", 0, "10.96.0.2", "fd96::2"),
    )
    netns.write_sysctls(deck.right.ns, {"net/ipv6/conf/all/disable_ipv6": "0"})
    join(*ends)
    with netns.inside(sink):
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        seen.settimeout(2)
        seen.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    watch(deck)
    set_policy(deck, f"in: always -> mirror copies on udp dport:{PORT}")
    set_policy(deck, f"again: always -> mirror copies on udp dport:{PORT}")
    others = Others(deck.left, deck.right)
    time.sleep(0.3)
    others.finish()
    copies = [seen.recv(2000) for _ in range(2 * others.sent)]
    with seen, pytest.raises(TimeoutError):
        seen.recv(2000)
    assert others.sent == others.arrived > 20
    assert {(each[36:38], each[-1:]) for each in copies} == {(PORT.to_bytes(2, "big"), b"?")}
    wait_for(lambda: all(a and a.packets == others.sent for a in actions_of(deck)))
    assert [a.failed for a in actions_of(deck) if a] == [0, 0]
    os.close(sink)


@pytest.mark.slow
def test_another_action_of_the_host_takes_no_copy(deck: Deck) -> None:
    """The copies come in again by another watched interface of the namespace."""
    ends = [End(deck.right.ns, name, 0, f"10.96.0.{n}", f"fd96::{n}")
            for n, name in enumerate(("copies", "sink"), 1)]  # fmt: skip
    netns.write_sysctls(deck.right.ns, {"net/ipv6/conf/all/disable_ipv6": "0"})
    join(*ends)
    watch(deck)
    set_policy(deck, f"in: always -> mirror copies on udp dport:{PORT}")
    options = MonitorOptions(bits=8, interval=WINDOW, allow_actions=True)
    taken = Policy.parse_short(f"gone: always -> drop on udp dport:{PORT}")
    with Controller() as other:
        other.watch_metrics("sink", options, policies=[taken])
        others = Others(deck.left, deck.right)
        time.sleep(0.3)
        others.finish()
        wait_for(lambda: all(a and a.packets == others.sent for a in actions_of(deck)))
        time.sleep(WINDOW)
        info = other.monitor()
        assert info
        (found,) = (each.action for each in info.policies)
        assert found
        assert (found.state, found.packets) == (ActionState.ACTS, 0)


def actions_of(deck: Deck) -> list[ActionInfo | None]:
    info = deck.controller.monitor()
    assert info
    return [each.action for each in info.policies]


@pytest.mark.slow
def test_outgoing_packets_are_dropped(deck: Deck) -> None:
    watch(deck)
    set_policy(deck, f"out: always -> drop out on udp dport:{PORT + 1}")
    with netns.inside(deck.left.ns):
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        to.bind((deck.left.ipv4, PORT + 1))
        to.settimeout(0.3)
    with to, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"?", to.getsockname())
        with pytest.raises(TimeoutError):
            to.recv(100)
        deck.controller.stop_actions()
        made.sendto(b"!", to.getsockname())
        assert to.recv(100) == b"!"
