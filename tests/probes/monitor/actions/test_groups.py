"""Actions in a run on several interfaces: a packet meets them once, where it counts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.lab.netns import inside
from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.monitor.actions.state import ActionInfo
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.snapshot import Event
from tests.probes.flow.pod_host import BRIDGE, PEER, WIRE, PodHost, pod_host
from tests.support.compiling import Shared
from tests.support.waiting import wait_for

PORT = 7777
COUNT = 50


@pytest.fixture(autouse=True)
def _shared(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))


@pytest.fixture(scope="module")
def pods() -> Iterator[PodHost]:
    with pod_host(2) as found:
        yield found


@contextmanager
def monitored(ns: int, interface: str = "any") -> Iterator[tuple[Controller, list[str]]]:
    """Watch interfaces; the list gets the texts of events."""
    texts: list[str] = []
    with inside(ns), Controller() as controller:
        controller.listen(lambda item: texts.append(item.text) if isinstance(item, Event) else None)
        controller.start(FLOW_PROBE, interface, FlowOptions(interval=0.5))
        options = MonitorOptions(bits=8, interval=0.5, allow_actions=True)
        controller.watch_metrics(interface, options)
        yield controller, texts


def send(sender: int, receiver: int, address: str, count: int = COUNT) -> int:
    """Send datagrams; return how many arrive."""
    with inside(receiver):
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        to.bind((address, PORT))
        to.settimeout(0.3)
    with inside(sender):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    arrived = 0
    with to, made:
        for _ in range(count):
            made.sendto(b"?", (address, PORT))
        try:
            while to.recv(100):
                arrived += 1
        except TimeoutError:
            return arrived
    return arrived


def acted(controller: Controller, name: str) -> ActionInfo:
    info = controller.monitor()
    assert info
    (found,) = (each.action for each in info.policies if each.policy.name == name)
    assert found
    return found


@pytest.mark.slow
def test_a_packet_of_each_path_is_dropped_and_counts_once(pods: PodHost) -> None:
    host, peer, (one, two) = pods.host, pods.peer, pods.containers
    paths = {
        "in": (peer, host, WIRE),
        "container to wire": (one, peer, PEER),
        "wire to container": (peer, one, pods.address(1)),
        "container to container": (one, two, pods.address(2)),
        "container to host": (two, host, BRIDGE),
        "loopback": (host, host, "127.0.0.1"),
    }
    for path in paths.values():
        assert send(*path) == COUNT
    with monitored(host) as (controller, _):
        controller.set_policy(Policy.parse_short(f"gone: always -> drop on udp dport:{PORT}"))
        for number, path in enumerate(paths.values(), 1):
            assert send(*path) == 0
            wait_for(lambda: acted(controller, "gone").packets >= number * COUNT)  # noqa: B023
            assert acted(controller, "gone").packets == number * COUNT
        controller.stop_actions()
        for path in paths.values():
            assert send(*path) == COUNT
        # The host's own packets leave at a hook of outgoing ones; forwarded ones count before.
        controller.set_policy(Policy.parse_short(f"gone: always -> drop out on udp dport:{PORT}"))
        assert send(host, peer, PEER) == send(host, one, pods.address(1)) == 0
        assert send(one, peer, PEER) == COUNT
        wait_for(lambda: acted(controller, "gone").packets == 2 * COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("sender", ["container", "wire"])
def test_the_culprit_is_a_container_or_beyond_the_wire_and_the_others_lose_nothing(
    pods: PodHost, sender: str
) -> None:
    one, two = pods.containers
    flood = (one, pods.peer, PEER) if sender == "container" else (pods.peer, one, pods.address(1))
    other = (two, pods.peer, PEER) if sender == "container" else (pods.host, one, pods.address(1))
    address = pods.address(1) if sender == "container" else PEER
    with monitored(pods.host) as (controller, texts):
        when = f"rate(packets on udp dport:{PORT}) > 200/s hold 30s"
        controller.set_policy(Policy.parse_short(f"flood: {when} -> drop culprit on udp"))
        deadline = time.monotonic() + 20
        while send(*flood, count=400) and time.monotonic() < deadline:
            pass
        assert send(*flood) == 0, texts
        assert send(*other) == COUNT
        wait_for(lambda: any(address in t for t in texts if t.startswith("policy flood drops")))


@pytest.mark.slow
def test_copies_leave_by_an_interface_that_is_not_watched(pods: PodHost) -> None:
    with monitored(pods.host, "veth*") as (controller, _):
        with pytest.raises(UsageError, match="veth2 would mirror to itself"):
            controller.set_policy(Policy.parse_short("copies: always -> mirror veth2 on udp"))
        policy = f"copies: always -> mirror eth0 on udp dport:{PORT}"
        controller.set_policy(Policy.parse_short(policy))
        with inside(pods.peer):
            seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            seen.settimeout(2)
        assert send(pods.containers[0], pods.containers[1], pods.address(2)) == COUNT
        with seen:
            copies = [seen.recv(2000) for _ in range(COUNT)]
        assert {each[36:38] for each in copies} == {PORT.to_bytes(2, "big")}
        wait_for(lambda: acted(controller, "copies").packets == COUNT)
