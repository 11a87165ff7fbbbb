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
from probes.flow.filter import FlowFilter
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, hash_keys, key_words
from probes.snapshot import Event, Loss, LossReason, Snapshot, add_losses
from tests.probes.conftest import MakeProbe
from tests.support.compiling import Shared
from tests.support.generator import Generator
from tests.support.kernel import name_of
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
                FLOW_PROBE, end.ifname, FlowOptions(interval=interval, ingress=name_of(ingress))
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
