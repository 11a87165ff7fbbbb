"""Windows under live traffic: every packet in exactly one, whatever is swapped meanwhile."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from app.lab import netns
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from bpf.syscall import enable_run_time_stats
from bpf.syscall import prog_test_run as run
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.clock import flow_clock
from probes.flow.filter import FlowFilter
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, hash_keys, key_words
from probes.snapshot import Event, Loss, LossReason, Snapshot, add_losses
from tests.probes.conftest import MakeProbe
from tests.support.compiling import Shared
from tests.support.generator import Generator
from tests.support.veth import End, veth_pair


@pytest.fixture(autouse=True)
def _shared(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers share the session's compile helper."""
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))


class Collected:
    """Items that a controller published."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.events: list[Event] = []

    def __call__(self, item: Snapshot | Event) -> None:
        (self.snapshots if isinstance(item, Snapshot) else self.events).append(item)  # type: ignore[arg-type]

    def rows(self, port: int = 2000) -> Array:
        """All rows to a UDP or TCP port."""
        rows = np.concatenate([s.rows for s in self.snapshots])
        chosen: Array = rows[rows["destination_port"] == port]
        return chosen

    def losses(self) -> dict[LossReason, Loss]:
        total: dict[LossReason, Loss] = {}
        for snapshot in self.snapshots:
            add_losses(total, snapshot.losses)
        return total

    def packets(self) -> int:
        """Packets in flows into the interface."""
        rows = np.concatenate([s.rows for s in self.snapshots])
        return int(rows["packets"][rows["direction"] == FlowDirection.INGRESS].sum())

    def lost(self, reason: LossReason) -> int:
        """Packets of a reason."""
        return self.losses().get(reason, Loss()).packets


@contextmanager
def silent_pair() -> Iterator[tuple[End, End]]:
    """A veth pair on which nobody speaks by himself: no neighbour discovery, no ARP."""
    with veth_pair() as (left, right):
        for end in (left, right):
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": "1"})
        time.sleep(0.05)
        yield left, right


@contextmanager
def counting() -> Iterator[Callable[[Controller], int]]:
    """How many packets the XDP hook of a controller has seen, by the kernel's own count.

    Not how many were sent: a veth whose receiver is not scheduled in time drops frames.
    """
    statistics = enable_run_time_stats()

    def seen(controller: Controller) -> int:
        time.sleep(0.1)
        return sum(p.chain.info().run_count for p in controller.hooks() if p.hook is Hook.XDP)

    try:
        yield seen
    finally:
        os.close(statistics)


@contextmanager
def watching(
    end: End, interval: float, ingress: Hook = Hook.XDP
) -> Iterator[tuple[Collected, FlowProbe, Controller]]:
    """A flow probe on one end of a veth; closing it collects its last window."""
    collected = Collected()
    controller = Controller()
    controller.listen(collected)
    try:
        with netns.inside(end.ns):
            probe = controller.start(
                FLOW_PROBE, end.ifname, FlowOptions(interval=interval, ingress=ingress)
            )
        yield collected, probe, controller
    finally:
        controller.close()


@pytest.mark.slow
def test_every_packet_is_in_exactly_one_window(compiler: Compiler) -> None:
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 0.1) as (collected, _, controller),
        Generator(compiler, left, version=4, flows=25_000) as generator,
    ):
        generator.send(1_500_000)
        expected = seen(controller)
        controller.close()
        size = len(generator.frame)
    assert collected.packets() == expected > 1_000_000
    rows = collected.rows()
    assert int(rows["bytes"].sum()) == int(rows["packets"].sum()) * size
    assert not collected.lost(LossReason.TABLE_FULL)
    windows = [s.window for s in collected.snapshots]
    assert windows == list(range(1, len(windows) + 1))
    assert len(windows) > 4
    for before, after in zip(collected.snapshots, collected.snapshots[1:], strict=False):
        assert before.end_ns == after.start_ns
    assert len(np.unique(rows["source_port"])) > 10_000


@pytest.mark.slow
def test_every_new_flow_is_recorded(compiler: Compiler) -> None:
    """One second's flows exceed the tables: windows end early (S4.8)."""
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 60) as (collected, _, controller),
        Generator(compiler, left, version=6, flows=0) as generator,
    ):
        generator.send(2_000_000)
        expected = seen(controller)
        controller.close()
    # If a busy machine is late, it counts every lost packet. bench/flow.py: a quiet one loses none.
    full = collected.lost(LossReason.TABLE_FULL)
    assert collected.packets() + full == expected > 1_000_000
    assert full < 1_500_000
    rows = collected.rows()
    assert len(np.unique(hash_keys(key_words(rows)))) == len(rows)
    assert (rows["packets"] == 1).all()
    assert len(collected.snapshots) > 5


@pytest.mark.slow
def test_both_cpus_at_once(compiler: Compiler) -> None:
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 0.05) as (collected, _, controller),
    ):
        generators = [Generator(compiler, left, flows=1000, cpu=cpu) for cpu in (0, 1)]
        threads = [threading.Thread(target=g.send, args=(700_000,)) for g in generators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = seen(controller)
        controller.close()
        for generator in generators:
            generator.close()
    assert collected.packets() + collected.lost(LossReason.TABLE_FULL) == expected > 500_000
    for snapshot in collected.snapshots:
        keys = [row.tobytes()[:39] for row in snapshot.rows]
        assert len(set(keys)) == len(keys), "a flow is in a window once, though two CPUs saw it"


@pytest.mark.slow
def test_reconfiguring_loses_no_packet(compiler: Compiler) -> None:
    with (
        counting() as seen,
        silent_pair() as (left, right),
        watching(right, 0.1) as (collected, probe, controller),
        Generator(compiler, left, flows=500) as generator,
    ):
        over = threading.Event()

        def send() -> None:
            while not over.is_set():
                generator.send(200_000)

        sender = threading.Thread(target=send)
        sender.start()
        for capture in ("sport:1024", "udp", "sport:1024"):
            probe.reconfigure(FlowFilter.parse(capture))
        over.set()
        sender.join()
        expected = seen(controller)
        controller.close()
    assert not collected.lost(LossReason.TABLE_FULL)
    assert collected.packets() + collected.lost(LossReason.FILTERED) == expected > 500_000
    assert collected.snapshots[-1].generation == 4


def test_a_filter_that_is_wrong_changes_nothing(make_probe: MakeProbe) -> None:
    loose = make_probe(capture="udp")
    with pytest.raises(ProbedeckError):
        loose.probe.reconfigure(FlowFilter.parse("dir:in"))
    assert loose.probe.capture.text == "udp"
    assert loose.probe.poll().generation == 1


def frame(number: int) -> bytes:
    """A UDP frame of flow `number`."""
    head = bytes(12) + b"\x08\x00" + struct.pack("!BBHHHBBH", 0x45, 0, 46, 0, 0, 64, 17, 0)
    return head + struct.pack("!II", number, 9) + struct.pack("!HHHH", 7, 2000, 26, 0) + bytes(18)


@pytest.mark.slow
def test_what_finds_no_room_is_counted(make_probe: MakeProbe) -> None:
    """4096 records, then the ring, then a loss: to the packet and byte."""
    os.sched_setaffinity(0, {0})  # each CPU has its own records
    loose = make_probe(records=4096)
    flows = 4096 + 4096 * 2048 // 72 + 500
    for number in range(flows):
        run(loose.fd, frame(number))
    snapshot = loose.probe.poll()
    lost = snapshot.losses[LossReason.TABLE_FULL]
    assert lost.packets > 0
    assert len(snapshot.rows) + lost.packets == flows
    assert int(snapshot.rows["bytes"].sum()) + lost.bytes == flows * 60
    assert snapshot.occupancy == 1
    again = loose.probe.poll()
    assert len(again.rows) == 0
    assert not again.losses


def test_flows_that_lose_their_place_in_the_index_are_added_up(make_probe: MakeProbe) -> None:
    """4000 flows in an index of 1024 sets: some sets are full, and no flow is counted twice."""
    loose = make_probe(records=4096)
    for _ in range(3):
        for number in range(4000):
            run(loose.fd, frame(number))
    snapshot = loose.probe.poll()
    assert len(snapshot.rows) == 4000
    assert (snapshot.rows["packets"] == 3).all()


def udp_exchange(left: End, right: End, count: int) -> None:
    """`count` datagrams each way, IPv4, to port 2000 on the right and back."""
    with netns.inside(right.ns):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(left.ns):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server, client:
        server.bind((right.ipv4, 2000))
        server.settimeout(2)
        client.settimeout(2)
        for _ in range(count):
            client.sendto(b"ping", (right.ipv4, 2000))
            data, peer = server.recvfrom(100)
            server.sendto(data, peer)
            client.recv(100)


@pytest.mark.parametrize("ingress", [Hook.XDP, Hook.TC_INGRESS])
@pytest.mark.timing
def test_both_directions_and_times(ingress: Hook) -> None:
    with (
        veth_pair() as (left, right),
        watching(right, 0.2, ingress) as (collected, _, _),
    ):
        started = time.monotonic_ns()
        udp_exchange(left, right, 20)
        ended = time.monotonic_ns()
    clock = flow_clock()
    error_ns = clock.error_ns
    clock.close()
    rows = np.concatenate([s.rows for s in collected.snapshots])
    towards = rows[rows["destination_port"] == 2000]
    back = rows[rows["source_port"] == 2000]
    for part, direction in ((towards, FlowDirection.INGRESS), (back, FlowDirection.EGRESS)):
        assert int(part["packets"].sum()) == 20
        assert int(part["bytes"].sum()) == 20 * 46
        assert (part["direction"] == direction).all()
        assert started - error_ns <= int(part["first_ns"].min())
        assert int(part["last_ns"].max()) <= ended + error_ns
        assert (part["first_ns"] <= part["last_ns"]).all()
    for window in collected.snapshots:
        assert (window.start_ns <= window.rows["first_ns"]).all()
        assert (window.rows["last_ns"] <= window.end_ns).all()


@pytest.mark.parametrize("late", [-(10**10), 10**10])
def test_packets_lie_within_their_window(
    make_probe: MakeProbe, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """A time may lie beside the window, by the error of the clock."""
    loose = make_probe()
    probe = loose.probe
    exact = probe._clock.monotonic_ns
    monkeypatch.setattr(probe._clock, "monotonic_ns", lambda times: exact(times) + late)
    for _ in range(2):
        for number in (1, 2, 1):
            run(loose.fd, frame(number))
        window = probe.poll()
        edge = window.start_ns if late < 0 else window.end_ns
        assert (window.rows["first_ns"] == edge).all()
        assert (window.rows["last_ns"] == edge).all()
        assert len(window.rows) == 2


def test_large_segments_are_counted_as_packets_on_the_wire() -> None:
    """TCP's segments of 64 KB count as packets of one MTU each, with all headers."""
    with (
        veth_pair() as (left, right),
        watching(left, 0.2, Hook.TC_INGRESS) as (collected, _, _),
    ):
        with netns.inside(right.ns):
            server = socket.create_server((right.ipv4, 2000))
        with netns.inside(left.ns):
            client = socket.create_connection((right.ipv4, 2000), timeout=5)
        received = bytearray()

        def receive() -> None:
            connection, _ = server.accept()
            with connection:
                while part := connection.recv(1 << 20):
                    received.extend(part)

        receiver = threading.Thread(target=receive)
        receiver.start()
        with client:
            client.sendall(bytes(4_000_000))
        receiver.join(10)
        server.close()
    rows = collected.rows()
    packets, octets = int(rows["packets"].sum()), int(rows["bytes"].sum())
    # Ethernet, IP and TCP with its timestamp option: 66 bytes a packet. TCP sends lost segments
    # again.
    payload = octets - packets * 66
    assert len(received) == 4_000_000
    assert 4_000_000 <= payload < 5_000_000
    assert packets >= payload / 1448


def test_a_tag_that_the_kernel_takes_out_of_the_packet_is_the_flow_s_vlan() -> None:
    """TC sees the outermost tag beside the packet, and its bytes count."""
    tags = {100: "8100 a064", 5: "88a8 0005 8100 0007"}
    with (
        veth_pair() as (left, right),
        watching(right, 60, Hook.TC_INGRESS) as (collected, _, _),
    ):
        with netns.inside(left.ns):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with sender:
            sender.bind((left.ifname, 0))
            for number, tag in tags.items():
                plain = frame(number)
                sender.send(plain[:12] + bytes.fromhex(tag) + plain[12:])
    rows = collected.rows()
    rows = rows[rows["destination_port"] == 2000]
    found = {int(row["source"][3]): (int(row["vlan"]), int(row["bytes"])) for row in rows}
    assert found == {100: (100, 64), 5: (5, 68)}
