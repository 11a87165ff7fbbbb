"""The monitor's programs in the kernel: counted, selected, and given to applications."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.features import load_passing
from probes.hooks import Hooks
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.probe import MonitorProbe
from probes.monitor.records import METRIC
from probes.monitor.sketch import Sketch
from probes.monitor.state import MAX_POLICIES, PolicyState
from probes.snapshot import LossReason, Snapshot
from probes.tunnels import Tunnels
from tests.probes.flow.test_tunnels import frames
from tests.probes.monitor.bed import (
    ARP,
    COUNTING,
    DROP,
    PASS,
    Bed,
    application,
    frame,
    ping,
    records,
    tcp,
    udp,
)

RECEIVER = Receiver("192.0.2.1", 5000, "198.51.100.2", 6343)


@pytest.fixture
def bed(compiler: Compiler) -> Iterator[Bed]:
    with Bed(compiler, MonitorOptions(bits=10, seed="test")) as made:
        yield made


def packed(address: str) -> bytes:
    return socket.inet_aton(address)


def test_eight_counters_and_the_distinct_flows_of_each_window(bed: Bed) -> None:
    """S2.5, S2.6, S2.7, S2.8: each packet is in one window, whatever it is."""
    packets = [
        *(frame(layer=tcp(port), size=100) for port in range(20)),
        *(frame("2001:db8::1", "2001:db8::2", udp(port), size=80) for port in range(30)),
        frame(layer=ping()),
        ARP,
        b"\0" * 14,
    ]
    for packet in packets:
        assert bed.run(packet, 2) == PASS
    (row,) = bed.window()["metrics"]
    assert row.dtype == METRIC
    assert row.tolist()[:8] == (106, 2 * (2000 + 2400 + 60 + 60 + 14), 40, 4000, 60, 4800, 2, 120)
    assert row["flows_low"] <= 51 <= row["flows_high"]
    assert row["flows"] == pytest.approx(51, abs=3)
    for packet in packets[:5]:
        bed.run(packet)
    assert bed.window()["metrics"]["flows"] == [5], "five flows are not more than five"
    (again,) = bed.window()["metrics"]
    assert not any(again.tolist()[:9])


@pytest.mark.slow
def test_packets_of_tunnels_count_once_by_their_inner_flow(compiler: Compiler) -> None:
    with Bed(compiler, MonitorOptions(bits=8, tunnels=Tunnels.BOTH)) as made:
        inside = list(frames())
        for packet, _ in inside:
            made.run(packet)
        (row,) = made.window()["metrics"]
    assert row["packets"] == row["udp_packets"] == len(inside)
    assert row["flows_low"] <= len({flow for _, flow in inside}) <= row["flows_high"]


def test_registers_of_windows_merge_and_depend_on_the_seed(compiler: Compiler) -> None:
    """S2.7: of two windows with the same flows the union has as many."""
    sketches: list[Sketch] = []
    for seed in ("one", "one", "two"):
        with Bed(compiler, MonitorOptions(bits=8, seed=seed)) as made:
            for window in range(2):
                for port in range(40):
                    made.run(frame(layer=udp(port + 20 * window)))
                made.window()
            union = made.monitor.sketch(2)
            assert union.band()[0] <= 60 <= union.band()[1]
            assert made.monitor.sketch().estimate() == pytest.approx(40, abs=8)
            sketches.append(union)
    assert (sketches[0].registers == sketches[1].registers).all()
    assert (sketches[0].registers != sketches[2].registers).any()
    with pytest.raises(UsageError):
        sketches[0].merged(sketches[2])


@pytest.mark.slow
def test_each_application_gets_a_packet_once_however_many_policies_select_it(bed: Bed) -> None:
    """S2.4, S2.9, S2.15: up to 16 applications in one chain, and the network stack still gets the
    packet."""
    for number in range(16):
        bed.add(application(f"a{number}"))
    with pytest.raises(UsageError, match="at most 16"):
        bed.add(application("more"))
    names = ", ".join(bed.applications)
    bed.set(f"all: always -> {names}")
    bed.set("some: always -> a0, a15 on proto:tcp or src:192.0.2.1")
    assert bed.run(frame(layer=tcp()), 5) == PASS
    assert {name: bed.counted(name)[0] for name in bed.applications} == dict.fromkeys(
        bed.applications, 5
    )
    assert bed.monitor.router.given() == dict.fromkeys(bed.applications, 5)
    assert bed.monitor.router.selected() == {"all": 5, "some": 5}
    bed.remove("a3")
    bed.monitor.remove_policy("all")
    bed.run(frame(layer=tcp()), 2)
    assert bed.monitor.router.given()["a0"] == bed.monitor.router.given()["a15"] == 7
    assert bed.monitor.router.given()["a4"] == 5


def test_an_application_runs_only_while_a_policy_is_active(bed: Bed) -> None:
    """S2.10, S2.11, S2.12: from the window's end at which the condition holds."""
    bed.add(application("counting"))
    bed.set("busy: packets > 10 -> counting")
    bed.run(frame(), 11)
    assert not bed.counted("counting")[0]
    (transition,) = bed.window()["triggers"]
    assert (transition["before"], transition["after"]) == (PolicyState.ARMED, PolicyState.ACTIVE)
    assert transition["cause"] == b"packets 11 > 10"
    assert transition["metrics"]["packets"] == 11
    bed.run(frame(), 4)
    assert bed.window()["policies"]["selected"].tolist() == [4]
    bed.run(frame(), 3)
    assert bed.counted("counting")[0] == 4
    assert [t.after for t in bed.changes] == [PolicyState.ACTIVE, PolicyState.ARMED]
    bed.monitor.activate("busy")
    bed.run(frame(), 2)
    bed.monitor.deactivate("busy")
    bed.run(frame(), 2)
    assert bed.counted("counting")[0] == 2
    assert len(bed.window()["triggers"]) == 2


@pytest.mark.slow
def test_policies_and_applications_change_while_others_run_on(bed: Bed) -> None:
    """S2.13, S2.14: a replaced policy, application or monitor loses no packet and doubles none."""
    bed.add(application("counting"))
    bed.add(application("other"))
    bed.set("p: always -> counting on proto:udp")
    bed.set("q: always -> other")
    bed.run(frame(), 3)
    bed.set("p: always -> counting on proto:tcp or dst:203.0.113.0/24")
    bed.run(frame(), 2)
    bed.run(frame(layer=tcp()), 4)
    assert bed.counted("counting")[0] == bed.monitor.router.selected()["p"] == 7
    app = bed.applications["counting"]
    double = application("counting", COUNTING.replace("+= packet->packets", "+= 2"))
    with app.compile(double) as compiled:
        app.replace(compiled)
    bed.run(frame(layer=tcp()))
    assert bed.counted("counting")[0] == 2
    app.roll_back()
    config = bed.monitor.config
    assert config.ingress
    edited = config.with_source("ingress", config.ingress.source + "/* edited */\n")
    compiled_monitor = bed.monitor.compile(edited)
    bed.run(frame(layer=tcp()))
    items = bed.monitor.replace(compiled_monitor)
    compiled_monitor.close()
    assert isinstance(items[0], Snapshot)
    assert items[0].rows["packets"] == [11]
    bed.run(frame(layer=tcp()))
    bed.monitor.roll_back()
    bed.run(frame(layer=tcp()))
    assert bed.counted("counting")[0] == 3
    assert bed.monitor.generation == 3
    assert bed.window()["metrics"]["packets"] == [1]
    bed.run(frame(), 5)
    assert bed.counted("other")[0] == 18


def test_mirrored_packets_end_here_after_their_applications(compiler: Compiler) -> None:
    """S2.3."""
    with Bed(compiler, MonitorOptions(input=Input.MIRRORED)) as made:
        assert made.run(frame()) == made.run(ARP) == DROP
        made.add(application("counting"))
        made.set("p: always -> counting on proto:udp")
        assert made.run(frame()) == made.run(frame(layer=tcp())) == DROP
        assert made.counted("counting")[0] == 1
        assert made.window()["metrics"]["packets"] == [4]


@pytest.mark.slow
def test_telemetry_records_are_counted_by_their_own_flow(compiler: Compiler) -> None:
    """S2.1, S2.2: as many as a datagram has; all other packets are the kernel's, untouched."""
    options = MonitorOptions(bits=8, input=Input.TELEMETRY, receivers=(RECEIVER,), seed="x")
    web = [(packed("10.0.0.1"), packed("10.0.0.2"), n, 80, 6, 1000 + n) for n in range(25)]
    dns = [(packed("10.0.0.3"), packed("10.0.0.4"), n, 53, 17, 100) for n in range(20)]
    with Bed(compiler, options) as made:
        made.add(application("counting"))
        made.add(application("dns_only"))
        made.set("p: always -> counting on dport:80")
        made.set("q: always -> dns_only, counting on proto:udp")
        assert made.run(frame(layer=records(*web, *dns))) == DROP
        for other in (frame(layer=tcp()), frame(), ARP, frame(layer=udp(5000, 6344))):
            assert made.run(other) == PASS
        assert made.run(frame("192.0.2.9", layer=records(*web))) == PASS
        assert made.counted("counting") == (45, sum(1000 + n for n in range(25)) + 2000)
        assert made.counted("dns_only") == (20, 2000)
        (row,) = made.window()["metrics"]
        assert row.tolist()[:8] == (45, 25 * 1000 + 300 + 2000, 25, 25300, 20, 2000, 0, 0)
        assert row["flows_low"] <= 45 <= row["flows_high"]


@pytest.mark.slow
def test_what_is_no_telemetry_is_dropped_where_that_is_wanted(compiler: Compiler) -> None:
    """S2.1: and not measured either way."""
    options = MonitorOptions(
        bits=8, input=Input.TELEMETRY, receivers=(RECEIVER,), drop_others=True, seed="x"
    )
    with Bed(compiler, options) as made:
        assert made.run(frame(layer=tcp())) == made.run(ARP) == DROP
        assert made.window()["metrics"]["packets"] == [0]
    with pytest.raises(UsageError, match="drop_others is for telemetry"):
        MonitorOptions(drop_others=True).check()


def test_a_packet_never_needs_more_tail_calls_than_the_kernel_allows(bed: Bed) -> None:
    """S2.15: what is too many is refused, and everything on the hook still sees each packet."""
    (point,) = bed.hooks.in_use()
    bed.add(application("counting"))
    bed.set("p: always -> counting")
    prog_fd = load_passing(Hook.XDP)
    stages = [Stage() for _ in range(32 - 1 - 2 - 1)]  # monitor, route and finish, application
    for stage in stages:
        point.chain.append(stage, prog_fd)
    last = Stage()
    with pytest.raises(UsageError, match="at most 32 probes and applications"):
        point.chain.append(last, prog_fd)
    with pytest.raises(UsageError, match="at most 32 probes and applications"):
        bed.add(application("more"))
    assert bed.run(frame(), 3) == PASS
    assert bed.counted("counting")[0] == 3
    point.chain.remove(stages[0])
    bed.add(application("more"))
    for stage in stages[1:]:
        point.chain.remove(stage)
    for stage in (*stages, last):
        stage.close()
    os.close(prog_fd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "kept", "lost"),
    [
        (records(version=2), 0, 1),
        (records(count=0), 0, 0),
        (records((bytes(4), bytes(4), 1, 2, 6, 77), count=9), 1, 8),
        (records(*[(bytes(4), bytes(4), 1, 2, 6, 77)] * 50), 45, 5),
    ],
)
def test_records_that_are_promised_and_not_there_are_lost(
    compiler: Compiler, layer: Any, kept: int, lost: int
) -> None:
    """S2.2: and counted as such."""
    options = MonitorOptions(bits=8, input=Input.TELEMETRY, receivers=(RECEIVER,), seed="x")
    with Bed(compiler, options) as made:
        assert made.run(frame(layer=layer)) == DROP
        metrics = next(i for i in made.monitor.export() if isinstance(i, Snapshot))
        assert metrics.rows["packets"] == [kept]
        assert sum(loss.packets for loss in metrics.losses.values()) == lost
        assert set(metrics.losses) <= {LossReason.MALFORMED}


def test_the_tables_limits_are_told(bed: Bed) -> None:
    bed.add(application("counting"))
    bed.set("p: always -> counting on dst:198.51.100.0/24")
    many = " or ".join(f"(sport:{n} dport:{n})" for n in range(64))
    with pytest.raises(UsageError, match="65 combinations of header fields"):
        bed.set(f"q: always -> counting on {many}")
    bed.run(frame())
    assert bed.counted("counting")[0] == 1
    for number in range(MAX_POLICIES - 1):
        bed.set(f"more{number}: always -> counting on src:10.{number}.0.0/16")
    with pytest.raises(UsageError, match=str(MAX_POLICIES)):
        bed.set("last: always -> counting")
    bed.run(frame("10.0.0.1", "203.0.113.1"))
    assert bed.counted("counting")[0] == 1


def test_without_ethernet_headers_it_is_in_tc(compiler: Compiler) -> None:
    """One line reports a driver that takes no programs (S2.20)."""
    hooks = Hooks(lambda point: None)
    options = MonitorOptions(ingress=Hook.TC_INGRESS, offload=True)
    monitor = MonitorProbe(compiler, hooks.find("lo"), hooks, options)
    try:
        assert monitor.points()["ingress"].hook is Hook.TC_INGRESS
        assert "\n" not in monitor.offload
        assert monitor.offload.startswith("lo: its driver takes no programs (")
        assert monitor.programs()[0].hook == "tc ingress"
    finally:
        monitor.close()
