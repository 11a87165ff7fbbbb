"""NetFlow features as programs in the kernel, against what was sent (S1.30, S1.31)."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.machine import online_cpus
from probes.netflow.generator import (
    FEATURES,
    IP_FEATURES,
    KEYS,
    Feature,
    Method,
    field_types,
    source,
)
from tests.probes.running import (
    ARP,
    DROPPED,
    IPV6,
    MALFORMED,
    PASSED,
    TCP,
    UDP,
    Frame,
    Running,
    chained,
    ipv4,
    running,
    sk_buff,
)

ROOT = Path(__file__).parents[2]
DROPPER = '#include "probe.h"\nint drop(CONTEXT *ctx) { return VERDICT_DROP; }\n'
NOISE = (ARP, IPV6, MALFORMED)
CLOCKS = ("FIRST_SWITCHED", "LAST_SWITCHED")
Rows = dict[tuple[Any, ...], dict[str, Any]]


def traffic(seed: int = 1, count: int = 60) -> list[Frame]:
    """A few flows of each kind, with interleaved packets."""
    draw = random.Random(seed)
    return [
        Frame(
            source=f"192.0.2.{draw.randint(1, 3)}",
            destination=f"198.51.100.{draw.randint(1, 3)}",
            protocol=draw.choice((TCP, UDP, 47)),
            source_port=draw.choice((1024, 65535)),
            destination_port=draw.choice((53, 443)),
            flags=1 << draw.randint(0, 7),
            tos=draw.choice((0, 0xB8)),
            payload=draw.randint(0, 900),
        )
        for _ in range(count)
    ]


def facts(frame: Frame) -> dict[str, int]:
    """A packet's features, by its sender."""
    has_ports = frame.protocol in (TCP, UDP)
    return {
        "IPV4_SRC_ADDR": ipv4(frame.source),
        "IPV4_DST_ADDR": ipv4(frame.destination),
        "PROTOCOL": frame.protocol,
        "SRC_TOS": frame.tos,
        "L4_SRC_PORT": frame.source_port if has_ports else 0,
        "L4_DST_PORT": frame.destination_port if has_ports else 0,
        "IN_BYTES": len(frame),
        "TCP_FLAGS": frame.flags if frame.protocol == TCP else 0,
    }


@dataclass
class Sent:
    """The sent packets, each with the milliseconds between which a probe must see it."""

    packets: list[tuple[dict[str, int], int, int]] = field(default_factory=list)

    def send(self, to: Running, frames: Sequence[Frame | bytes], context: bytes = b"") -> None:
        for frame in frames:
            known = facts(frame) if isinstance(frame, Frame) else {"IN_BYTES": len(frame)}
            before = time.monotonic_ns() // 1_000_000
            assert to.send(frame, context=context) == PASSED[to.hook]
            self.packets.append((known, before, time.monotonic_ns() // 1_000_000))

    def rows(self, features: Collection[Feature], once: dict[str, Any]) -> Rows:
        """The expected values of `flows`; for a clock, a range."""
        flows: dict[tuple[int, ...], dict[str, Any]] = {}
        for known, before, after in self.packets:
            if "PROTOCOL" not in known and not IP_FEATURES.isdisjoint(features):
                continue
            key = tuple(known[name] for name in FEATURES if name in features and name in KEYS)
            new: dict[str, Any] = {"IN_PKTS": 0, "IN_BYTES": 0, "TCP_FLAGS": 0, **once}
            flow = flows.setdefault(key, new | {"FIRST_SWITCHED": (before, after)})
            flow["IN_PKTS"] += 1
            flow["IN_BYTES"] += known["IN_BYTES"]
            flow["TCP_FLAGS"] |= known.get("TCP_FLAGS", 0)
            flow["LAST_SWITCHED"] = (before, after)
        return {
            key: {name: flow[name] for name in features if name not in KEYS}
            for key, flow in flows.items()
        }


def rows(probe: Running, features: Collection[Feature]) -> Rows:
    """The features of `flows`; all other fields must be zero."""
    with probe.open("flows") as opened:
        entries = opened.read()
    found: Rows = {}
    for key, value in zip(entries.keys, entries.values, strict=True):
        for part in (key, value):
            for name in part.dtype.names:
                assert name in features or name in ("all", "seen") or part[name] == 0
        names = [name for name in FEATURES if name in features and name in KEYS]
        row: dict[str, Any] = {n: int(value[n]) for n in features if n not in KEYS}
        assert found.setdefault(tuple(int(key[name]) for name in names), row) is row
    return found


def compare(found: Rows, expected: Rows) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            if name in CLOCKS:
                assert value[0] <= found[key][name] <= value[1], (key, name)
            else:
                assert found[key][name] == value, (key, name)


def run(
    compiler: Compiler,
    features: Collection[Feature],
    method: Method = Method.FULLY_ADAPTIVE,
    hook: Hook = Hook.XDP,
) -> None:
    """Send known packets and compare every feature."""
    expected_on = FEATURES if method is Method.NON_ADAPTIVE else features
    context = b"" if hook is Hook.XDP else sk_buff(ingress_ifindex=7, ifindex=1)
    # By PROG_TEST_RUN, XDP's packets come from the loopback.
    once = {
        "INPUT_SNMP": 1 if hook is Hook.XDP else 7,
        "OUTPUT_SNMP": 1 if hook is Hook.TC_EGRESS else 0,
        "SRC_AS": 0,
        "DST_AS": 0,
    }
    sent = Sent()
    with running(compiler, source(features, method), hook) as probe:
        sent.send(probe, [*traffic(), *NOISE], context)
        compare(rows(probe, expected_on), sent.rows(expected_on, once))
        lost = {} if IP_FEATURES.isdisjoint(expected_on) else LOST
        assert probe.losses() == lost


LOST = {
    "NOT_IP": (1, len(ARP)),
    "FILTERED": (1, len(IPV6)),
    "MALFORMED": (1, len(MALFORMED)),
}


@pytest.mark.parametrize("count", range(1, 16))
def test_each_prefix_of_the_features_is_a_program_that_counts_exactly(
    compiler: Compiler, count: int
) -> None:
    """S1.30, and the x axis of the paper's figure 7."""
    run(compiler, FEATURES[:count])


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(features=st.lists(st.sampled_from(FEATURES), min_size=1, unique=True))
def test_any_subset_in_any_order_is_a_program_that_counts_exactly(
    compiler: Compiler, features: list[Feature]
) -> None:
    """S1.30."""
    run(compiler, features)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("hook", Hook)
def test_the_methods_give_the_same_for_the_same_features(
    compiler: Compiler, method: Method, hook: Hook
) -> None:
    """S1.31, on every hook (S1.4)."""
    run(compiler, FEATURES, method, hook)


@pytest.mark.parametrize(
    "features", [FEATURES[:1], ("IN_PKTS", "IN_BYTES"), FEATURES[4:9], ("SRC_TOS", "TCP_FLAGS")]
)
def test_an_adaptive_program_has_no_more_than_what_is_on(
    compiler: Compiler, features: Sequence[Feature]
) -> None:
    """S1.31: what is off is zero, and flows that only it would tell apart are one."""
    run(compiler, features, Method.ADAPTIVE)


def test_an_adaptive_program_is_switched_by_its_map_while_it_runs(compiler: Compiler) -> None:
    """S1.31: without another program."""
    with running(compiler, source(["IN_PKTS"], Method.ADAPTIVE)) as probe:
        probe.send(*traffic())
        assert rows(probe, ["IN_PKTS"]) == {(): {"IN_PKTS": 60}}
        on: tuple[Feature, ...] = ("IN_BYTES", "PROTOCOL")
        with probe.open("features") as switches, probe.open("flows") as flows:
            flows.clear()
            switches.update([0], [sum(1 << FEATURES.index(name) for name in on)])
        sent = Sent()
        sent.send(probe, traffic())
        compare(rows(probe, on), sent.rows(on, {}))


def test_flows_are_counted_exactly_by_several_cpus_at_once(compiler: Compiler) -> None:
    """S2.21's spread over CPUs must not cost NetFlow a packet."""
    frame = Frame(protocol=TCP, flags=0)
    each = 300_000
    with running(compiler, source(FEATURES)) as probe:

        def send(cpu: int) -> None:
            os.sched_setaffinity(0, {cpu})
            probe.send(Frame(protocol=TCP, flags=1 << cpu % 8), frame, repeat=each)

        threads = [threading.Thread(target=send, args=(cpu,)) for cpu in online_cpus()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((_, row),) = rows(probe, FEATURES).items()
        packets = 2 * each * len(threads)
        assert row["IN_PKTS"] == packets
        assert row["IN_BYTES"] == packets * len(frame)
        assert row["TCP_FLAGS"] == sum({1 << cpu % 8 for cpu in online_cpus()})


def test_autonomous_systems_come_from_a_map_that_others_may_fill(compiler: Compiler) -> None:
    features: list[Feature] = ["SRC_AS", "DST_AS", "IPV4_SRC_ADDR", "IPV4_DST_ADDR"]
    with running(compiler, source(features)) as probe:
        with probe.open("as_numbers") as numbers:
            numbers.update([(16, ipv4("192.0.0.0")), (24, ipv4("192.0.2.0"))], [64500, 64501])
        probe.send(Frame(source="192.0.2.9", destination="192.0.3.9"))
        probe.send(Frame(source="10.0.0.1", destination="192.0.2.1"))
        assert rows(probe, features) == {
            (ipv4("192.0.2.9"), ipv4("192.0.3.9")): {"SRC_AS": 64501, "DST_AS": 64500},
            (ipv4("10.0.0.1"), ipv4("192.0.2.1")): {"SRC_AS": 0, "DST_AS": 64501},
        }


def test_flows_that_find_no_room_are_counted_as_losses(compiler: Compiler) -> None:
    """The program is edited as any other source."""
    edited = source(["IPV4_DST_ADDR", "IN_PKTS"]).replace("MAX_FLOWS 65536", "MAX_FLOWS 4")
    frames = [Frame(destination=f"10.0.0.{number}") for number in (*range(7), 0)]
    with running(compiler, edited) as probe:
        probe.send(*frames)
        assert (
            sum(row["IN_PKTS"] for row in rows(probe, ["IPV4_DST_ADDR", "IN_PKTS"]).values()) == 5
        )
        assert probe.losses() == {"TABLE_FULL": (3, 3 * len(frames[0]))}


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_each_method_can_be_chained_with_a_dropper(
    compiler: Compiler, method: Method, hook: Hook
) -> None:
    """S1.31: before a dropper everything is seen, after it nothing."""
    netflow = source(FEATURES, method)
    frames = traffic()
    with chained(compiler, netflow, DROPPER, netflow, hook=hook) as (before, _, after):
        assert before.send(*frames) == DROPPED[hook]
        assert sum(row["IN_PKTS"] for row in rows(before, FEATURES).values()) == len(frames)
        assert rows(after, FEATURES) == {}


def test_fewer_features_are_a_smaller_program_on_smaller_maps(compiler: Compiler) -> None:
    """S1.26's shrinking, and the memory of the paper's figure 7b: 16 times less for a feature."""
    sizes = []
    for count in (1, 4, 6, 12, 15):
        with running(compiler, source(FEATURES[:count])) as probe:
            size = len(probe.compiled.programs["netflow"].instructions)
            sizes.append((size, probe.program.memory()))
    assert sizes == sorted(sizes)
    assert 16 * sizes[0][1] < sizes[-1][1]


@pytest.mark.parametrize("method", Method)
def test_the_source_is_formatted_like_all_others(method: Method) -> None:
    for features in (FEATURES[:1], FEATURES[:4], FEATURES[4:9], FEATURES[6:7], FEATURES):
        text = source(features, method)
        command = [f"{ROOT}/.venv/bin/clang-format", f"--assume-filename={ROOT}/bpf/netflow.c"]
        formatted = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert formatted.stdout == text
        assert "//:" not in text
        assert ("ON(" in text) == (method is Method.ADAPTIVE)


def test_addresses_are_told_from_numbers() -> None:
    assert field_types(["IPV4_DST_ADDR", "IN_PKTS"]) == {"key.IPV4_DST_ADDR": "ipv4"}
    assert len(field_types(["IN_PKTS"], Method.ADAPTIVE)) == 2
