"""Each supported kernel must load every program that comes with probedeck, and count.

`.ci/kernels` runs this module on other kernels, where an emulated machine is slow: no test depends
on time.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.lab.netns import inside
from bpf import features
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface, cgroup2
from bpf.compiler import Compiler, client
from bpf.errors import KernelError
from bpf.kernel_types import kernel_types
from bpf.maps.kinds import unlock
from bpf.syscall import prog_test_run
from probes.config.model import load
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.drops.counted import of_flow
from probes.flow.filter import FlowFilter
from probes.flow.kinds import REPEATED
from probes.flow.options import FlowOptions
from probes.flow.records import FlowDirection
from probes.hooks import Hooks
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.policy import BUILT_IN, Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.names.learned import learned
from probes.path.options import PathOptions
from probes.segment.options import SegmentOptions
from probes.segment.records import DIGESTS_TABLE
from probes.snapshot import Snapshot
from probes.sockets.holders import Holders, SocketEvents
from probes.tunnels import Tunnels
from tests.bpf.cgroups import cgroup, python_in
from tests.bpf.tools import send
from tests.probes.conftest import EMULATED_S, MakeProbe
from tests.probes.deck import Deck, deck, udp
from tests.probes.flow.bonded_host import FAR, NEAR, bonded_host
from tests.probes.flow.pod_host import ping
from tests.probes.flow.test_interfaces import watching
from tests.probes.names.tools import DNS_FRAME, TLS_FRAME
from tests.probes.test_examples import CONFIGS
from tests.support.compiling import Shared
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

__all__ = ["deck"]

PACKETS = 300
PORT = 9
"""Where `send` sends to."""
FRAME = 14 + 20 + 8 + 4
"""Bytes of such a packet's frame."""
IP_IN_IP = (
    bytes(12)
    + struct.pack("!HBBHIBBHII", 0x0800, 0x45, 0, 48, 0, 64, 4, 0, 1, 2)
    + struct.pack("!BBHIBBHII", 0x45, 0, 28, 0, 64, 17, 0, 3, 4)
    + struct.pack("!HHHH", 1000, PORT, 8, 0)
)
PATIENCE_S = 60.0
COUNTED = "counted: packets on proto:udp >= {} and sources on proto:udp < 3 -> accounting"
"""A policy whose condition is true of so many packets of a host."""
INGRESS = pytest.mark.parametrize("ingress", [Hook.XDP, Hook.TC_INGRESS], ids=["xdp", "tc"])


def published(deck: Deck, probe: str, table: str = "") -> Array:
    """Rows of all windows of one table."""
    return np.concatenate(
        [
            item.rows
            for item in tuple(deck.items)
            if isinstance(item, Snapshot) and (item.probe, item.metric) == (probe, table)
        ]
    )


def triggered(deck: Deck) -> set[str]:
    """Names of policies whose condition has become true."""
    return {name.decode() for name in published(deck, PROBE, TRIGGERS_TABLE)["policy"]}


def has_atomic_exchange() -> bool:
    try:
        features.try_atomic_exchange()
    except OSError:
        return False
    return True


def test_the_compile_helper_works(deck: Deck) -> None:
    """Other tests may find their sources compiled, by another kernel's machine."""
    with client.Compiler(cpu_limit=EMULATED_S) as compiler:
        deck.controller._compiler = compiler
        deck.controller.add(deck.config())
    deck.run(PACKETS, udp())
    (packets,) = deck.controller.export("probe")
    assert packets.rows["value"].sum() == PACKETS


@INGRESS
def test_flows_are_counted_and_packets_kept_to_the_packet(deck: Deck, ingress: Hook) -> None:
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=300, ingress=ingress))
    deck.controller.paths.configure("right", PathOptions())
    deck.controller.keep_packets(f"udp dport:{PORT}")
    deck.receive(PACKETS)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    (kept,) = deck.controller.ring().selections
    assert (kept.kept, kept.missed) == (2 * PACKETS, 0)
    newest = deck.controller.kept_packets(2 * PACKETS)
    assert [each.outgoing for each in newest] == [False] * PACKETS + [True] * PACKETS
    assert {each.length for each in newest} == {FRAME}
    sent = [int.from_bytes(bytes.fromhex(each.data)[-4:], "little") for each in newest]
    assert sent == [*range(PACKETS)] * 2
    deck.controller.remove("flow")
    rows = published(deck, "flow")
    rows = rows[rows["destination_port"] == PORT]
    for direction in FlowDirection:
        one = rows[rows["direction"] == direction]
        assert one["packets"].sum() == PACKETS
        assert one["bytes"].sum() == PACKETS * FRAME


@INGRESS
def test_flows_of_tunnels(make_probe: MakeProbe, ingress: Hook) -> None:
    """The largest of all programs."""
    loose = make_probe(ingress, tunnels=Tunnels.BOTH)
    prog_test_run(loose.fd, IP_IN_IP)
    assert sorted(loose.probe.poll().rows["protocol"]) == [4, 17]


@INGRESS
def test_the_monitor_looks_into_tunnels(compiler: Compiler, ingress: Hook) -> None:
    hooks = Hooks(lambda point: None)
    options = MonitorOptions(bits=8, ingress=ingress, tunnels=Tunnels.INNER)
    with closing(MonitorProbe(compiler, Interface("test", 0, True), hooks, options)) as monitor:
        (point,) = hooks.in_use()
        prog_test_run(point.chain.fd, IP_IN_IP)
        (row,) = next(each.rows for each in monitor.export() if isinstance(each, Snapshot))
        assert row["packets"] == row["udp_packets"] == 1


@INGRESS
def test_the_monitor_counts_and_hands_packets_to_every_application(
    deck: Deck, ingress: Hook
) -> None:
    controller = deck.controller
    controller.watch_metrics("right", MonitorOptions(bits=8, interval=300, ingress=ingress))
    controller.set_policy(
        Policy.parse_short(f"all: always -> {', '.join(BUILT_IN)} on proto:udp dport:{PORT}")
    )
    controller.set_policy(Policy.parse_short(COUNTED.format(PACKETS)))
    deck.receive(PACKETS)
    info = controller.monitor()
    assert info
    assert {app.name: app.packets for app in info.applications} == dict.fromkeys(BUILT_IN, PACKETS)
    controller.remove(PROBE)
    assert published(deck, PROBE, METRICS_TABLE)["udp_packets"].sum() == PACKETS
    assert "counted" in triggered(deck)


@INGRESS
def test_actions_take_packets(deck: Deck, ingress: Hook) -> None:
    options = MonitorOptions(bits=8, interval=300, ingress=ingress, allow_actions=True)
    deck.controller.watch_metrics("right", options)
    for action, arrives in (("drop", 0), ("limit 0.01pps", 1), ("dry drop", 2)):
        text = f"taken: always -> {action} on udp dport:{PORT}"
        deck.controller.set_policy(Policy.parse_short(text))
        assert send(deck.left, deck.right, 2) == arrives
    deck.controller.set_policy(Policy.parse_short(f"taken: always -> drop on udp dport:{PORT}"))
    assert deck.controller.stop_actions() == 1
    deck.receive(PACKETS)


@pytest.mark.timeout(600)  # Its programs may be verified for the first time.
@pytest.mark.parametrize("interface", ["any", "any,bond0,bond0.5"])
def test_each_packet_counts_once_with_bonds_and_vlans(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with bonded_host() as (host, peer):
        ping(host, FAR, 4)  # Neighbours are known then.
        with watching(host, interface) as window:
            for sender, address in ((host, FAR), (peer, NEAR)):
                window()
                ping(sender, address, 20)
                found = window()
                assert sum(found.echoes().values()) == 20
                assert found.total == 40
                again = sum(found.echoes(REPEATED).values())
                assert again == (0 if interface == "any" else 40)
                links = [found.both_ways(name) for name in ("eth0", "eth1")]
                assert sum(links) == 40
                assert min(links) > 0


@INGRESS
def test_telemetry_records_are_handed_to_every_application(deck: Deck, ingress: Hook) -> None:
    controller = deck.controller
    receiver = Receiver(deck.left.ipv4, PORT, deck.right.ipv4, PORT)
    options = MonitorOptions(
        bits=8, interval=300, ingress=ingress, input=Input.TELEMETRY, receivers=(receiver,)
    )
    controller.watch_metrics("right", options)
    takers = [name for name in BUILT_IN if name != "tcp_health"]  # records have no sequence numbers
    controller.set_policy(Policy.parse_short(f"all: always -> {', '.join(takers)}"))
    controller.set_policy(Policy.parse_short(COUNTED.format(2 * PACKETS)))
    record = struct.pack("!4s4sHHIQHHHBB", b"\x0a" * 4, b"\x0b" * 4, 1, 2, 0, 0, 0, 100, 0, 17, 0)
    with inside(deck.left.ns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.bind((deck.left.ipv4, PORT))
        for _ in range(PACKETS):
            sender.sendto(struct.pack("!HH", 1, 2) + record * 2, (deck.right.ipv4, PORT))
    info = controller.monitor()
    assert info
    assert {a.name: a.packets for a in info.applications} == dict.fromkeys(takers, 2 * PACKETS)
    controller.remove(PROBE)
    assert published(deck, PROBE, METRICS_TABLE)["udp_packets"].sum() == 2 * PACKETS
    assert "counted" in triggered(deck)


@INGRESS
def test_paths_are_probed(deck: Deck, ingress: Hook) -> None:
    """No router is between the ends, so no probe has an answer: each ends at its destination.

    Without atomic exchanges in the kernel, tracing fails with that reason.
    """
    deck.controller.paths.configure("right", PathOptions(ingress=ingress))
    if not has_atomic_exchange():
        with pytest.raises(KernelError, match="path tracing needs atomic exchanges"):
            deck.controller.trace(deck.left.ipv4)
        return
    deck.controller.trace(deck.left.ipv4)

    def probed() -> bool:
        assert send(deck.right, deck.left, 1) == 1
        return any(traced.sent > 3 for traced in deck.controller.traced())

    wait_for(probed, PATIENCE_S)
    assert send(deck.right, deck.left, PACKETS) == PACKETS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_example_runs(deck: Deck, path: Path) -> None:
    """Each loads, and each but those that want TCP has rows of UDP traffic."""
    config = load(path).on("right")
    if config.event:
        must_describe_types()
    deck.controller.add(config)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    if path.stem != "dropper":
        deck.receive(PACKETS)
    rows = [len(snapshot.rows) for snapshot in deck.controller.export(config.name)]
    assert any(rows) or path.stem in ("dns", "events", "retransmissions")


def must_describe_types() -> None:
    """Skip a test of events on a kernel without BTF or cgroup2."""
    try:
        kernel_types()
        cgroup2()
    except KernelError as error:
        pytest.skip(str(error))


def test_sockets_are_told_with_their_processes(compiler: Compiler) -> None:
    must_describe_types()
    unlock()
    with cgroup() as folder, SocketEvents(compiler, folder) as events:
        with python_in(folder, "import socket; socket.socket().close()") as process:
            process.wait()
        made, closed = events.read()
    assert (made["tgid"], made["cookie"]) == (closed["tgid"], closed["cookie"])
    assert made["tgid"] == process.pid
    assert made["netns"] == os.stat("/proc/self/ns/net").st_ino


def test_holders_of_sockets_are_found(compiler: Compiler) -> None:
    with Holders(compiler) as holders, socket.socket(type=socket.SOCK_DGRAM) as held:
        found: list[Any] = []
        while not holders.passes:
            rows = holders.read(PATIENCE_S)
            found += rows[rows["inode"] == os.fstat(held.fileno()).st_ino].tolist()
        assert len(found) == 1
        assert not holders.why_proc or "bpf_sock_from_file" in holders.why_proc


def test_drops_are_counted(deck: Deck) -> None:
    must_describe_types()
    deck.controller.switch("drops", True)
    ends = [socket.inet_aton(end.ipv4) for end in (deck.left, deck.right)]
    with inside(deck.left.ns), socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind((deck.left.ipv4, 0))
        ports = sender.getsockname()[1], PORT
        for _ in range(5):
            sender.sendto(b"x", (deck.right.ipv4, PORT))
        flows, _ = deck.controller.export("drops")
    (dropped,) = of_flow(flows, ends[0], ends[1], ports)
    assert dropped.packets == 5
    assert dropped.reason in ("no_socket", "not_specified")


def test_names_are_learned(deck: Deck) -> None:
    deck.controller.paths.configure("right", PathOptions())
    deck.controller.switch("names", True)
    prog_test_run(deck.fd(Hook.TC_INGRESS), DNS_FRAME)
    prog_test_run(deck.fd(Hook.TC_EGRESS), TLS_FRAME)
    (ingress, egress) = deck.controller.export("names")
    assert {name.name for name in learned(ingress)} == {"www.example"}
    assert {name.name for name in learned(egress)} == {"shop.example"}


def test_packets_have_digests(deck: Deck) -> None:
    deck.controller.paths.configure("right", PathOptions())
    capture = FlowFilter.parse(f"proto:udp dport:{PORT}")
    deck.controller.measure_segment(SegmentOptions("secret", capture=capture, interval=300))
    deck.receive(PACKETS)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    for table in deck.controller.export("segment"):
        if table.metric == DIGESTS_TABLE:
            assert len(set(table.rows["value"]["digest"].tolist())) == PACKETS, table.side
