"""Several interfaces in one run: each packet counts once, and all counters add up."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app.lab.netns import inside
from bpf.arrays import Array
from bpf.compiler import Compiler
from probes.config.model import load
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.interfaces import INTERFACE
from probes.flow.kinds import INTERFACES, REPEATED
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from probes.snapshot import Event, Item, Snapshot
from tests.probes.flow.pod_host import (
    BRIDGE,
    FAR,
    PEER,
    WIRE,
    PodHost,
    counters,
    ip,
    ping,
    pod_host,
)
from tests.support.compiling import Shared

COUNT = 5
ICMP = 1


@pytest.fixture(autouse=True)
def _shared(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))


@pytest.fixture(scope="module")
def pods() -> Iterator[PodHost]:
    with pod_host(4) as found:
        # The bridge knows its ports then, and hosts know their neighbours.
        _send_everywhere(found, 1)
        ping(found.host, "127.0.0.1", 1)
        ping(found.containers[0], BRIDGE, 1)
        found.keep_neighbours()
        yield found


class Window:
    """The tables of one window."""

    def __init__(self, items: list[Item]) -> None:
        self.events = [item.text for item in items if isinstance(item, Event)]
        self.tables = [item for item in items if isinstance(item, Snapshot)]

    def rows(self, table: str = "") -> Array:
        return np.concatenate([item.rows for item in self.tables if item.metric == table])

    def echoes(self, table: str = "") -> dict[str, int]:
        """Echo requests by interface."""
        rows = self.rows(table)
        asks = (rows["protocol"] == ICMP) & (rows["destination_port"] == 8 << 8)
        found: dict[str, int] = {}
        for row in rows[asks]:
            name = row["interface"].decode()
            found[name] = found.get(name, 0) + int(row["packets"])
        return found

    @property
    def total(self) -> int:
        """Packets that count, with those that are in no flow."""
        lost = sum(
            loss.packets for item in self.tables if not item.metric for loss in item.losses.values()
        )
        return int(self.rows()["packets"].sum()) + lost

    def both_ways(self, name: str) -> int:
        """Packets of an interface, of its row of totals."""
        row = self.rows(INTERFACES)
        row = row[row["interface"] == name.encode()]
        fields = [name for name in INTERFACE.names or () if name.endswith("packets")]
        return sum(int(row[field].sum()) for field in fields)


@contextmanager
def watching(
    ns: int, interface: str, cut: Callable[[FlowProbe], object] = lambda probe: None
) -> Iterator[Callable[[], Window]]:
    """Count flows; the function ends a window, and returns all since it was last called. `cut` may
    leave flows out, as the CPU budget does."""
    items: deque[Item] = deque()
    with inside(ns):
        controller = Controller()
        controller.listen(items.append)
        try:
            probe = controller.start(FLOW_PROBE, interface, FlowOptions(interval=0))
            cut(probe)

            def window() -> Window:
                found = list(probe.export())
                while items:  # Another thread may append.
                    found.append(items.popleft())
                return Window(found)

            yield window
        finally:
            controller.close()


@pytest.mark.slow
def test_each_packet_counts_once_in_every_kind_of_path(pods: PodHost) -> None:
    host, peer, (one, two, *_) = pods.host, pods.peer, pods.containers
    paths = {
        "out": (host, PEER, "eth0", []),
        "in": (peer, WIRE, "eth0", []),
        "container to wire": (one, PEER, "veth1", ["eth0"]),
        "wire to container": (peer, pods.address(1), "eth0", ["veth1"]),
        "container to container": (one, pods.address(2), "veth1", ["veth2"]),
        "container to host": (one, BRIDGE, "veth1", []),
        "host to container": (host, pods.address(2), "veth2", []),
        "loopback": (host, "127.0.0.1", "lo", []),
    }
    with watching(host, "any") as window:
        for ns, address, counts, again in paths.values():
            window()
            ping(ns, address, COUNT)
            found = window()
            assert found.echoes() == {counts: COUNT}
            assert found.echoes(REPEATED) == dict.fromkeys(again, COUNT)
            assert found.total == 2 * COUNT
        # The tunnel's packets: inside at the container, and around them at the wire.
        ping(two, FAR, COUNT)
        found = window()
        assert found.echoes() == {"veth2": COUNT}
        assert found.total == 2 * COUNT
        assert found.both_ways("eth0") == 2 * COUNT


def largest_only(probe: FlowProbe) -> None:
    probe.most_rows = lambda: 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "cut", [lambda probe: None, largest_only, lambda probe: probe.turn_off(True)],
    ids=["whole", "largest", "off"],
)  # fmt: skip
def test_totals_of_an_interface_are_the_kernels_counters(
    pods: PodHost, cut: Callable[[FlowProbe], object]
) -> None:
    names = ["eth0", *(f"veth{n}" for n in range(1, 5))]
    with watching(pods.host, "any", cut) as window:
        before = {name: sum(counters(pods.host, name)) for name in names}
        window()
        _send_everywhere(pods, COUNT)
        found = window()
        for name in names:
            assert found.both_ways(name) == sum(counters(pods.host, name)) - before[name]
        counted = sum(int(found.rows(INTERFACES)[f"{way}_packets"].sum()) for way in ("in", "out"))
        assert counted == found.total > COUNT


def _send_everywhere(pods: PodHost, count: int) -> None:
    for number, space in enumerate(pods.containers, 1):
        ping(space, PEER, count)
        ping(space, pods.address(1 + number % 4), count)
        ping(space, FAR, count)
        ping(pods.peer, pods.address(number), count, "-s", "4000")


def test_interfaces_join_and_leave(pods: PodHost) -> None:
    with watching(pods.host, "veth*") as window:
        space = pods.add_container()
        deadline = time.monotonic() + 5
        events: list[str] = []
        while "joined veth*" not in events and time.monotonic() < deadline:
            events += window().events
            time.sleep(0.01)
        ping(space, BRIDGE, COUNT)
        assert window().echoes() == {"veth5": COUNT}
        ip(pods.host, "link del veth5")
        while "left veth*" not in events and time.monotonic() < deadline:
            events += window().events
            time.sleep(0.01)
        assert events.count("left veth*") == 1


@pytest.mark.slow
def test_interfaces_that_come_and_go_leave_nothing_behind_and_no_packet_is_lost(
    pods: PodHost,
) -> None:
    """More than 200 a minute."""
    one, opened = pods.containers[0], []
    with watching(pods.host, "any") as window:
        window()
        found: dict[str, int] = {}
        for turn in range(20):
            ip(pods.host, "link add tmp0 type veth peer name tmp1", "link set tmp0 up")
            ping(one, PEER, COUNT)
            ip(pods.host, "link del tmp0")
            ping(one, PEER, COUNT)
            for name, packets in window().echoes().items():
                found[name] = found.get(name, 0) + packets
            if turn > 2:
                opened.append(len(os.listdir("/proc/self/fd")))
        assert found == {"veth1": 2 * 20 * COUNT}
        assert max(opened) - min(opened) < 8, opened


def test_two_runs_on_the_same_interfaces_count_the_same(pods: PodHost) -> None:
    one = pods.containers[0]
    with watching(pods.host, "any") as first, watching(pods.host, "eth0,veth1") as second:
        first(), second()
        ping(one, PEER, COUNT)
        for window in (first(), second()):
            assert window.echoes() == {"veth1": COUNT}
            assert window.echoes(REPEATED) == {"eth0": COUNT}


def test_a_flow_has_the_direction_of_the_container_where_it_counts(pods: PodHost) -> None:
    one = pods.containers[0]
    with watching(pods.host, "any") as window:
        for ns, address, interface, way in (
            (one, PEER, b"veth1", FlowDirection.EGRESS),
            (pods.peer, pods.address(1), b"eth0", FlowDirection.INGRESS),
            (pods.host, pods.address(1), b"veth1", FlowDirection.INGRESS),
            (pods.host, PEER, b"eth0", FlowDirection.EGRESS),
        ):
            window()
            ping(ns, address, COUNT)
            rows = window().rows()
            (asked,) = rows[rows["destination_port"] == 8 << 8]
            assert (asked["interface"], asked["direction"]) == (interface, way)


def test_a_list_counts_packets_that_come_by_no_interface_of_it(pods: PodHost) -> None:
    one = pods.containers[0]
    with watching(pods.host, "eth0,lo") as window:
        window()
        ping(one, PEER, COUNT)
        found = window()
        assert found.echoes() == {"eth0": COUNT}
        assert found.echoes(REPEATED) == {}


def test_a_users_program_for_outgoing_packets_sees_them_on_several_interfaces(
    pods: PodHost,
) -> None:
    example = Path(__file__).parents[3] / "examples" / "packet-counter.toml"
    with inside(pods.host), Controller() as controller:
        controller.add(load(example).on("any"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(COUNT):
                sender.sendto(bytes(1000), (FAR, 9))
        tables = {one.side: one.rows for one in controller.export("packet-counter")}
    sizes = {side: int(rows["value"]["bytes"].sum()) for side, rows in tables.items()}
    assert sizes["egress"] >= COUNT * 1042
    assert sizes["ingress"] < COUNT * 1000, "errors about closed ports quote little"
