"""The path probe under a controller, with real packets: every probe told, whatever changes."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from bpf.compiler import CompileError
from bpf.errors import UsageError
from probes.path.options import Order, PathOptions, TracedFlow
from probes.path.programs import memory_of
from probes.path.records import ProbeOutcome
from probes.path.targets import TracedDestination
from tests.probes.path.conftest import PORT, MakeHost, outcomes_of, sent_by_hop
from tests.probes.path.wire.frames import PEER, ROUTER, SECRETS, UDP, packed

FAST = PathOptions(rate=100_000)
"""Every packet causes a probe."""


@pytest.mark.slow
@pytest.mark.timing
def test_every_hop_is_measured_at_its_rate_and_all_that_is_sent_is_told(
    make_host: MakeHost,
) -> None:
    """S3.3, S3.4, S3.5, S3.6, S3.8, S3.9, S3.10, S3.11, S3.22: IPv4 and IPv6 at a time."""
    host = make_host(PathOptions(rate=10, timeout=0.5))
    net = host.network
    net.back, net.silent, net.delay = 5, {3}, 0.004
    for destination in PEER.values():
        host.controller.trace(destination)
    flows = [host.open(destination) for destination in PEER.values()]
    host.send(2.2, *flows)
    before = {to: net.by_hop(to) for to in PEER.values()}
    started = time.monotonic()
    sent = host.send(1.2, *flows)
    seconds = time.monotonic() - started
    after = {to: net.by_hop(to) for to in PEER.values()}
    traced = {found.destination: found for found in host.controller.traced()}
    host.settle()
    for to in PEER.values():
        host.controller.untrace(to)
    rows = host.rows()
    for version, to in PEER.items():
        counts = {hop: after[to][hop] - before[to][hop] for hop in range(1, 32)}
        shares = [counts[hop] for hop in (1, 2, 4, 5, 6)]
        assert max(shares) - min(shares) <= 2
        assert 7 * seconds <= min(shares) <= max(shares) <= 10 * seconds + 2  # it may be busy
        assert 1 <= counts[3] <= 2
        assert max(counts[hop] for hop in range(7, 32)) <= 4
        assert (traced[to].length, traced[to].live, traced[to].silent) == (6, (1, 2, 4, 5, 6), (3,))
        assert traced[to].packets >= sent
        here = rows[rows["version"] == version]
        assert sent_by_hop(here) == net.by_hop(to)
        answered = here[here["outcome"] == ProbeOutcome.ANSWERED]
        for hop in (1, 2, 4, 5, 6):
            of_hop = answered[answered["hop"] == hop]
            router = packed(ROUTER[version] % hop).ljust(16, b"\0")
            assert {bytes(row) for row in of_hop["responder"]} == {router}
            assert set(of_hop["ttl"].tolist()) == {65 - hop}
        rtts = (answered["received_ns"] - answered["sent_ns"]) / 1e9
        assert 0.004 <= np.median(rtts) < 0.02
        assert set(here["protocol"].tolist()) == {UDP}
        assert set(here["destination_port"].tolist()) == {PORT}
        lost = here[here["hop"] == 3]["outcome"]
        assert set(lost.tolist()) <= {ProbeOutcome.UNANSWERED, ProbeOutcome.IN_FLIGHT}
    assert net.answers == outcomes_of(rows)[ProbeOutcome.ANSWERED]


@pytest.mark.slow
def test_a_replacement_loses_no_probe_and_doubles_no_packet(make_host: MakeHost) -> None:
    """S3.15: answers are matched across generations, and so are clones that are on their way."""
    host = make_host(FAST)
    net, controller = host.network, host.controller
    net.delay = 0.1
    controller.trace(PEER[4])
    flow = host.open(port=2000)
    host.send(0.1, flow)
    config = host.probe.config
    assert config.egress
    source = config.egress.source + "/* edited */\n"
    egress = config.egress.model_copy(update={"source": source})
    edited = config.model_copy(update={"egress": egress})
    swaps = 25
    with host.sending(flow):
        compatibility = controller.check(edited).compatibility
        assert compatibility
        assert {(fate.map, str(fate.fate)) for fate in compatibility.maps} == {("slots", "kept")}
        controller.replace(edited)
        assert host.info().generation == 2
        assert host.probe.config == edited
        for _ in range(swaps):
            controller.roll_back("path")
            time.sleep(0.005)
    assert (host.info().generation, host.info().previous) == (2 + swaps, 1 + swaps)
    host.settle()
    controller.untrace(PEER[4])
    rows = host.rows()
    assert net.doubled == []
    assert sent_by_hop(rows) == net.by_hop(PEER[4])
    answerable = rows[rows["hop"] <= net.routers]
    assert outcomes_of(answerable)[ProbeOutcome.UNANSWERED] == 0
    assert outcomes_of(rows)[ProbeOutcome.ANSWERED] == net.answers > 100


@pytest.mark.parametrize("order", Order)
def test_a_clone_that_meets_another_generation_is_no_packet_of_the_application(
    make_host: MakeHost, order: Order
) -> None:
    """S3.15: it would be on the wire twice. Only its mark is known."""
    host = make_host(PathOptions(rate=20, timeout=5, order=order))
    host.controller.trace(PEER[4])
    flow = host.open()
    host.send(0.1, flow)
    host.settle()
    assert host.network.packets.total() > 5
    before = host.network.packets.copy(), host.network.probes.copy()
    mark = int(SECRETS["MARK"], 16)
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, struct.pack("I", mark))
    host.send(0.02, flow)
    host.settle()
    assert (host.network.packets, host.network.probes) == before


@pytest.mark.slow
def test_a_source_that_does_not_fit_is_refused_and_all_runs_on(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    flow = host.open()
    config = host.probe.config
    programs = host.info().programs

    def edited(side: str, old: str, new: str) -> object:
        direction = getattr(config, side)
        assert old in direction.source
        source = direction.source.replace(old, new)
        return config.model_copy(update={side: direction.model_copy(update={"source": source})})

    broken: list[tuple[object, type[Exception], str]] = [
        (edited("egress", "int send4(", "int send_4("), UsageError, "must have the program send4"),
        (edited("ingress", "int path(", "int way("), UsageError, "must have the program path"),
        (edited("egress", "BPF_PROG_ARRAY(steps, 7)", "BPF_PROG_ARRAY(steps, 6)"), UsageError,
         "steps"),
        (edited("ingress", '#include "match.h"', '#include "match.h"\n#error no\n'), CompileError,
         "error: no"),
        (edited("egress", "ctx->mark == CONSTANT(MARK)", "*(u8 *)(long)ctx->data"), CompileError,
         "invalid access to packet"),
        (config.model_copy(update={"interval": 1.0}), UsageError,
         "of the path probe only the sources can be replaced, not what interval says"),
    ]  # fmt: skip
    for given, error, text in broken:
        with pytest.raises(error, match=text):
            host.controller.replace(given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no generation to go back to"):
        host.controller.roll_back("path")
    assert host.info().programs == programs
    assert host.info().generation == 1
    host.send(0.1, flow)
    host.settle()
    host.controller.untrace(PEER[4])
    assert outcomes_of(host.rows())[ProbeOutcome.ANSWERED] == host.network.answers > 0


def test_a_place_that_is_taken_again_at_once_mixes_nothing_up(make_host: MakeHost) -> None:
    """S3.6, S3.7: four destinations take all places; the next one takes a place as soon as it is
    free."""
    host = make_host(FAST)
    net, controller = host.network, host.controller
    first, *others = (f"10.96.0.{n}" for n in range(10, 14))
    for address in (first, *others):
        controller.trace(address)
    with pytest.raises(UsageError, match="at most 4 destinations are traced at a time"):
        controller.trace("10.96.0.20")
    assert [traced.destination for traced in controller.traced()] == [first, *others]
    net.delay = 0.05
    old, new = host.open(first), host.open("10.96.0.20")
    host.send(0.03, old)
    controller.untrace(first)
    controller.trace("10.96.0.20")
    host.send(0.03, new)
    controller.untrace("10.96.0.20")
    controller.trace("10.96.0.20")
    host.send(0.03, new)
    host.settle()
    for traced in controller.traced():
        controller.untrace(traced.destination)
    rows = host.rows()
    for to, flow in ((first, old), ("10.96.0.20", new)):
        here = rows[(rows["destination"][:, :4] == np.frombuffer(packed(to), "u1")).all(axis=1)]
        assert sent_by_hop(here) == net.by_hop(to)
        assert set(here["source_port"].tolist()) == {flow.getsockname()[1]}
        assert len(here) > 10
    assert host.controller.traced() == ()
    assert not controller.hooks()


@pytest.mark.slow
def test_128_destinations_at_the_default_rate(make_host: MakeHost) -> None:
    """Each has its own probes, and memory is made for them only if somebody asks for so many."""
    host = make_host(PathOptions(destinations=128))
    addresses = [f"10.96.0.{n}" for n in range(10, 138)]
    for address in addresses:
        host.controller.trace(address)
    with pytest.raises(UsageError, match="at most 128 destinations are traced at a time"):
        host.controller.trace("10.96.0.200")
    sender = host.open(addresses[0])
    for address in addresses:
        sender.sendto(b"x", (address, 5001))
    host.settle()
    for address in addresses:
        host.controller.untrace(address)
    to = host.rows()["destination"][:, :4].tolist()
    assert sorted(to) == sorted(list(packed(address)) for address in addresses)


@pytest.mark.parametrize(
    ("destinations", "memory", "size"),
    [
        (1, 128, 32),  # as many as find room
        (32, 128, 32),
        (33, 128, 33),
        (128, 128, 128),
        (128, 64, 64),  # fewer slots each
        (128, 1, 16),  # the fewest: the controller refuses, if it has not as much
    ],
)
def test_memory_is_made_for_the_destinations(destinations: int, memory: int, size: int) -> None:
    options = PathOptions(destinations=destinations)
    assert memory_of(options, memory << 20) == size << 20


def test_64_destinations_and_not_one_more(make_host: MakeHost) -> None:
    """S3.6."""
    host = make_host(PathOptions(rate=10))
    addresses = [f"10.96.0.{n}" for n in range(10, 74)]
    for address in addresses:
        host.controller.trace(address)
    with pytest.raises(UsageError, match="at most 64 destinations"):
        host.controller.trace(PEER[4])
    assert [traced.destination for traced in host.controller.traced()] == addresses
    last = host.open(addresses[-1])
    last.send(b"x")
    for address in addresses:
        host.controller.untrace(address)
    assert len(host.rows()) == 1
    with pytest.raises(UsageError, match="nothing is traced"):
        host.controller.untrace(addresses[0])


def test_many_threads_change_all_at_a_time_and_every_probe_is_told(make_host: MakeHost) -> None:
    host = make_host(PathOptions(rate=100_000, timeout=0.2))
    net, controller = host.network, host.controller
    controller.trace(PEER[4])
    config = host.probe.config
    other = "10.96.0.40"
    over = threading.Event()
    failures: list[BaseException] = []
    expected = (
        "is not traced",
        "no generation to go back to",
        "was removed",
        "no probe",
        "nothing",
    )

    def repeat(change: Callable[[], object]) -> None:
        while not over.is_set():
            try:
                change()
            except UsageError as error:
                if not any(word in str(error) for word in expected):
                    failures.append(error)
            except BaseException as error:
                failures.append(error)

    flow = TracedFlow(UDP, 1, PORT)
    changes: list[Callable[[], object]] = [
        lambda: controller.trace(other),
        lambda: controller.untrace(other),
        lambda: controller.trace(other, flow),
        lambda: controller.untrace(other, flow),
        lambda: controller.export("path"),
        lambda: controller.replace(config),
        lambda: controller.roll_back("path"),
        lambda: (controller.traced(), controller.probes()),
    ]
    threads = [threading.Thread(target=repeat, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    flows = host.open(port=2000), host.open(other, port=2001)
    deadline = time.monotonic() + 20
    while net.probes.total() < 300 and time.monotonic() < deadline:
        host.send(0.3, *flows)
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    for traced in controller.traced():
        controller.untrace(traced.destination)
    host.settle()
    rows = host.rows()
    for to in (PEER[4], other):
        here = rows[(rows["destination"][:, :4] == np.frombuffer(packed(to), "u1")).all(axis=1)]
        assert sent_by_hop(here) == net.by_hop(to)
    assert len(rows) > 200


@pytest.mark.parametrize("order", Order)
@pytest.mark.timing
def test_fifty_thousand_probes_a_second_are_told_or_counted(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    """S3.10, S3.18: packets at full speed, to silent hops."""
    monkeypatch.setattr(TracedDestination, "decide", lambda *_: None)  # which would leave them out
    host = make_host(PathOptions(rate=100_000, timeout=60, order=order))
    host.network.close()  # its queue fills up, and then packets are dropped
    host.controller.trace(PEER[4])
    flow = host.open()
    sent = 0
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        flow.send(b"x")
        sent += 1
    (traced,) = host.controller.traced()
    (target,) = host.probe._targets
    by_hop = target._kernel["sent"][0].copy()
    host.controller.untrace(PEER[4])
    rows = host.rows()
    told = np.bincount(rows["hop"], minlength=32)
    assert told.tolist() == by_hop.tolist()
    assert traced.packets == sent
    assert len(rows) > 15_000  # on a busy machine
    overrun = outcomes_of(rows)[ProbeOutcome.OVERRUN]
    losses = sum(loss.packets for item in host.snapshots() for loss in item.losses.values())
    assert losses == overrun


def test_one_destination_keeps_its_probes_while_another_s_come_and_go(
    make_host: MakeHost,
) -> None:
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    flows = host.open(), host.open("10.96.0.40")
    for _ in range(10):
        host.controller.trace("10.96.0.40")
        host.send(0.02, *flows)
        host.controller.untrace("10.96.0.40")
    host.settle()
    host.controller.untrace(PEER[4])
    rows = host.rows()
    assert sent_by_hop(rows).total() == sum(host.network.probes.values())
    assert outcomes_of(rows)[ProbeOutcome.OVERRUN] == 0
