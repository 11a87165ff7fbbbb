"""The monitor under a controller, with packets that really arrive."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from app.lab import netns
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, PROBE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Snapshot
from tests.probes.deck import Deck, deck
from tests.probes.flow.test_windows import counting
from tests.probes.monitor.bed import application
from tests.support.generator import Generator

PORT = 7777
__all__ = ["deck"]


def tables(deck: Deck, metric: str, probe: str = PROBE) -> Array:
    """Rows of all windows that were published."""
    found = [
        item.rows
        for item in tuple(deck.items)
        if isinstance(item, Snapshot) and (item.probe, item.metric) == (probe, metric)
    ]
    return np.concatenate(found)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def talking(deck: Deck) -> Iterator[None]:
    """Datagrams to a port of the watched end, and answers to each."""
    over = threading.Event()
    with ExitStack() as stack:
        ends = []
        for end in (deck.left, deck.right):
            with netns.inside(end.ns):
                opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            opened.bind((end.ipv4, PORT if end is deck.right else 0))
            opened.settimeout(0.1)
            ends.append(opened)
        asking, answering = ends

        def talk() -> None:
            while not over.is_set():
                asking.sendto(b"?", (deck.right.ipv4, PORT))
                with suppress(TimeoutError):
                    data, who = answering.recvfrom(100)
                    answering.sendto(data, who)
                time.sleep(0.005)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture
def monitored(deck: Deck) -> Deck:
    deck.controller.watch_metrics("right", MonitorOptions(bits=8, interval=0.1, ingress=Hook.XDP))
    return deck


@pytest.mark.slow
def test_every_packet_is_in_one_window_and_in_each_of_its_applications_once(
    monitored: Deck, compiler: Compiler
) -> None:
    """S2.8, S2.14, S2.15: at full rate, while policies come and go ten times a second."""
    controller = monitored.controller
    for name in ("one", "two"):
        config = application(name, interface="right")
        controller.add(config.model_copy(update={"interval": 0.07}))
    controller.set_policy(Policy.parse_short("both: operator -> one, two on proto:udp"))
    controller.set_policy(Policy.parse_short("other: operator -> two on sport:1024"))
    with counting() as seen, Generator(compiler, monitored.left, flows=500) as generator:
        sender = threading.Thread(target=generator.send, args=(4_000_000,))
        sender.start()
        toggles = 0
        while sender.is_alive():
            for name in ("both", "other"):
                controller.activate_policy(name)
                time.sleep(0.03)
                controller.deactivate_policy(name)
                time.sleep(0.02)
            toggles += 1
        sender.join()
        expected = seen(controller)
    info = controller.monitor()
    assert info
    given = {app.name: app.packets for app in info.applications}
    selected = {each.policy.name: each.selected for each in info.policies}
    for name in ("one", "two"):
        controller.remove(name)
    controller.remove(PROBE)
    totals = {name: tables(monitored, "totals", name)["value"] for name in ("one", "two")}
    assert tables(monitored, METRICS_TABLE)["packets"].sum() == expected > 1_000_000
    assert toggles > 3
    assert given["one"] == totals["one"]["packets"].sum() == selected["both"] > 100_000
    assert given["two"] == totals["two"]["packets"].sum() > given["one"]
    assert totals["one"]["bytes"].sum() == given["one"] * len(generator.frame)
    policies = tables(monitored, POLICIES_TABLE)
    assert policies["selected"][policies["policy"] == b"both"].sum() == selected["both"]
    triggers = tables(monitored, TRIGGERS_TABLE)
    assert len(triggers) == 4 * toggles
    assert set(triggers["cause"].tolist()) == {
        b"an operator activated it", b"an operator deactivated it",
    }  # fmt: skip
    assert not controller.monitor()


def test_an_application_in_use_is_not_removed(monitored: Deck) -> None:
    controller = monitored.controller
    for name in ("one", "two"):
        controller.add(application(name, interface="right"))
    controller.set_policy(Policy.parse_short("both: operator -> one, two"))
    controller.activate_policy("both")
    with pytest.raises(UsageError, match="one is not removed: the active policy both runs it"):
        controller.remove("one")
    controller.remove("one", force=True)
    controller.deactivate_policy("both")
    controller.remove("two")
    assert [info.name for info in controller.probes()] == [PROBE]


@pytest.mark.slow
@pytest.mark.timing
def test_a_condition_that_holds_has_its_applications_run_within_5_ms(monitored: Deck) -> None:
    """S2.11: from the end of the window; the quickest of several, as the machine may be busy."""
    controller = monitored.controller
    for number in range(10):
        text = f"p{number}: flows > 100 * baseline(60s) + {number} or packets > 1M -> accounting"
        controller.set_policy(Policy.parse_short(text))
    controller.set_policy(Policy.parse_short("here: udp_packets >= 20 -> accounting"))
    changed: list[int] = []
    controller._monitored().probe.changed = lambda _: changed.append(time.monotonic_ns())
    for _ in range(5):
        monitored.receive(40)
        time.sleep(0.3)
    triggers = tables(monitored, TRIGGERS_TABLE)
    assert set(triggers["policy"].tolist()) == {b"here"}
    late = [now - at for now, at in zip(changed, triggers["at_ns"].tolist(), strict=True)]
    assert [PolicyState(after) for after in triggers["after"]] == [
        PolicyState.ACTIVE,
        PolicyState.ARMED,
    ] * 5
    assert min(late[::2]) < 5e6
    said = monitored.said("warning", PROBE)
    assert len(said) == 5
    assert said[0].startswith("here fired: udp_packets ")


def test_applications_come_with_their_policy_and_go_with_the_monitor(monitored: Deck) -> None:
    """S2.12, S2.13, S2.16: loaded when they are first asked for, profiles too."""
    controller = monitored.controller
    started = time.monotonic_ns()
    controller.set_policy(Policy.parse_short("all: always -> accounting, half_open"))
    elapsed = time.monotonic_ns() - started
    names = [info.name for info in controller.probes()]
    assert names == [PROBE, "accounting", "half_open"]
    with pytest.raises(UsageError, match="there is no application 'acounting'"):
        controller.set_policy(Policy.parse_short("more: always -> acounting"))
    monitored.receive(10)
    info = controller.monitor()
    assert info
    assert (info.interface, info.hook, info.input) == ("right", "xdp", Input.REGULAR)
    assert [app.packets for app in info.applications] == [10, 10]
    # Loading measures several packets.
    assert all(app.active and 0 < app.ns < elapsed for app in info.applications)
    assert all(app.summary for app in info.applications)
    controller.remove_policy("all")
    monitored.receive(5)
    info = controller.monitor()
    assert info
    assert [app.active for app in info.applications] == [False, False]
    assert [app.packets for app in info.applications] == [10, 10]
    controller.remove(PROBE)
    assert not controller.probes()
    assert not monitored.xdp()
    with pytest.raises(UsageError, match="no monitor runs"):
        controller.activate_policy("all")
    with pytest.raises(UsageError, match="no monitor runs on right"):
        controller.add(application("late", interface="right"))


def test_late_applications_come_with_the_first_alarm(deck: Deck) -> None:
    """Also while the controller is read-only: policies of the start may wake their applications."""
    controller = deck.controller
    policies = [Policy.parse_short(f"{name}: operator -> {name}") for name in ("dns", "half_open")]
    always = Policy.parse_short("always: always -> accounting")
    controller.watch_metrics(
        "right", MonitorOptions(bits=8, interval=0.1), policies=[*policies, always], late=True
    )
    assert [info.name for info in controller.probes()] == [PROBE, "accounting"]
    controller.activate_policy("half_open")
    wait_for(lambda: len(controller.probes()) == 3)
    deck.receive(10)

    def counted() -> dict[str, int]:
        info = controller.monitor()
        assert info
        return {app.name: app.packets for app in info.applications}

    wait_for(lambda: counted() == {"accounting": 10, "half_open": 10})
    controller.deactivate_policy("half_open")
    deck.receive(5)
    wait_for(lambda: counted() == {"accounting": 15, "half_open": 10})
    # The next policy that is set loads its application at once.
    controller.set_policy(policies[0])
    assert "dns" in counted()


@pytest.mark.slow
def test_a_group_of_interfaces_has_outgoing_metrics_and_applications(deck: Deck) -> None:
    """Programs of a group share maps with longer keys."""
    texts = "out: rate(out_bytes on udp) > 1Gbit/s -> dns", "in: always -> heavy_hitters"
    policies = [Policy.parse_short(text) for text in texts]
    with netns.inside(deck.right.ns):
        deck.controller.watch_metrics("right,lo", MonitorOptions(bits=8), policies=policies)
    info = deck.controller.monitor()
    assert info
    assert {each.name for each in info.applications} == {"dns", "heavy_hitters"}
    assert {p.hook for p in deck.controller.hooks()} == {Hook.TC_INGRESS, Hook.TC_EGRESS}


def test_what_does_not_fit_leaves_nothing_behind(deck: Deck) -> None:
    controller = deck.controller
    wrong = (Policy.parse_short("a: always -> nothing"),)
    with pytest.raises(UsageError, match="nothing"):
        controller.watch_metrics("right", policies=wrong)
    assert not controller.probes()
    assert not controller.monitor()
    assert not deck.xdp()
    with pytest.raises(UsageError, match="bits = 3"):
        controller.watch_metrics("right", MonitorOptions(bits=3))
    controller.watch_metrics("right", policies=(Policy.parse_short("a: packets > 1 -> dns"),))
    with pytest.raises(UsageError, match="there is a probe 'monitor' already"):
        controller.watch_metrics("right")


@pytest.mark.slow
@pytest.mark.timing
def test_a_policy_traces_the_flows_that_it_is_about(deck: Deck) -> None:
    """Exactly the flows with answers are traced, because tracing needs answers; until the policy
    ends."""
    controller = deck.controller
    with netns.inside(deck.right.ns):
        controller.start(FLOW_PROBE, "right", FlowOptions(interval=0.1))
    controller.paths.configure("right")
    text = "talk: packets > 5 -> trace:1 on proto:udp"
    controller.watch_metrics(
        "right", MonitorOptions(interval=0.1), policies=(Policy.parse_short(text),)
    )
    with talking(deck):
        wait_for(lambda: bool(controller.traced()))
        (traced,) = controller.traced()
        assert traced.destination == deck.left.ipv4
        assert [flow.source_port for flow in traced.flows] == [PORT]
    wait_for(lambda: not controller.traced())
    assert {p.hook for p in controller.hooks()} == {Hook.TC_INGRESS, Hook.TC_EGRESS}
