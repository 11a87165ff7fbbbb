"""Actions on packets that really arrive."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.lab import netns
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.monitor.actions.state import ActionInfo, ActionState
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import POLICIES_TABLE, PROBE
from tests.probes.deck import Deck, deck
from tests.probes.monitor.test_live import tables, wait_for
from tests.support.generator import Generator
from tests.support.veth import End, join

__all__ = ["deck"]
WINDOW = 1.0
RATE = 1000
PORT = 7777
SO_RCVBUFFORCE = 33
_SO_RCVBUFFORCE = 33
_SIOCGIFHWADDR, _SIOCETHTOOL, _ETHTOOL_SGRO = 0x8927, 0x8946, 0x2C
LIMIT = f"flood: rate(packets on udp dport:2000) > 10k/s -> limit {RATE}pps on udp dport:2000"


def received() -> int:
    """Packets that the network stack behind the hook got, in the namespace of this thread."""
    lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Ip:"))
    return int(values[names.index("InReceives")])


def generator_of(compiler: Compiler, deck: Deck) -> Generator:
    """Frames to the watched end's own address: the network stack counts no others."""
    made = Generator(compiler, deck.left, flows=100, cpu=1)
    with socket.socket() as asking:
        packed = struct.pack("16s24x", deck.right.ifname.encode())
        address = fcntl.ioctl(asking, _SIOCGIFHWADDR, packed)[18:24]
        # Without XDP, a veth takes the generator's frames only if it merges received packets.
        merges = array("I", [_ETHTOOL_SGRO, 1])
        packed = struct.pack("16sP16x", deck.right.ifname.encode(), merges.buffer_info()[0])
        fcntl.ioctl(asking, _SIOCETHTOOL, packed)
    made.frame = address + made.frame[6:]
    return made


@contextmanager
def flooding(generator: Generator) -> Iterator[None]:
    """Send some 500,000 packets a second until the block ends."""
    over = threading.Event()

    def send() -> None:
        due = time.monotonic()
        while not over.is_set():
            generator.send(25_000)
            due += 0.05
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Others:
    """Numbered datagrams to another port, one each 2 ms, and those that arrived."""

    def __init__(self, deck: Deck) -> None:
        self.sent = self.arrived = 0
        self._over = threading.Event()
        with netns.inside(deck.right.ns):
            self._to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._to.bind((deck.right.ipv4, PORT))
            self._to.setblocking(False)
            self._to.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 32 << 20)
        with netns.inside(deck.left.ns):
            self._from = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._from.connect((deck.right.ipv4, PORT))
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(0.002):
            self._from.send(b"?")
            self.sent += 1

    def finish(self) -> None:
        self._over.set()
        self._thread.join()
        time.sleep(0.2)
        try:
            while self._to.recv(100):
                self.arrived += 1
        except BlockingIOError:
            pass
        self._to.close()
        self._from.close()


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
    others = Others(deck)
    with generator_of(compiler, deck) as generator:
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
def test_nothing_acts_without_the_permission_and_the_dry_run_counts_the_same(
    deck: Deck, compiler: Compiler
) -> None:
    """One selection, dropped and counted, at different times: as many packets."""
    watch(deck, allowed=False)
    set_policy(deck, "flood: always -> drop on udp dport:2000")
    wait_for(lambda: any("actions need --allow-actions" in t for t in deck.said("warning", PROBE)))
    before = received()
    with generator_of(compiler, deck) as generator:
        generator.send(20_000)
    wait_for(lambda: action(deck).packets > 19_000)
    wait_for(lambda: action(deck).packets == received() - before)
    assert action(deck).state is ActionState.DRY


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
    others = Others(deck)
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
