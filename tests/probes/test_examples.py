"""The examples, each in the kernel against what was sent through it."""

from __future__ import annotations

import re
import socket
import subprocess
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.machine import online_cpus
from probes.config.hook_choice import hook_of
from probes.config.metric_checks import check_metrics
from probes.config.model import DirectionConfig, ProbeConfig, Side, load
from probes.netflow.generator import FEATURES, Method, source
from probes.snapshot import Snapshot
from tests.probes.names.tools import HERE, THERE, answer, udp
from tests.probes.program.tools import Loose
from tests.probes.running import (
    ACK,
    ARP,
    DROPPED,
    FIN,
    IPV6,
    MALFORMED,
    PASSED,
    SYN,
    TCP,
    UDP,
    Frame,
    Running,
    chained,
    compile_for,
    ipv4,
    lengths,
    running,
)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CONFIGS = sorted(
    {*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*.json")} - {EXAMPLES / "policies.toml"}
)
SOURCES = sorted(EXAMPLES.glob("*.c"))
TO = [Frame(destination=f"10.0.{n % 3}.{n % 5}", payload=n) for n in range(200)]
"""To fifteen addresses in three networks."""


def example(name: str, side: Side = "ingress") -> DirectionConfig:
    path = next(path for path in CONFIGS if path.stem == name)
    direction = getattr(load(path), side)
    assert isinstance(direction, DirectionConfig)
    return direction


def by_hook(name: str) -> list[tuple[DirectionConfig, Hook]]:
    """Programs of a configuration, by hook."""
    config = load(next(path for path in CONFIGS if path.stem == name))
    return [
        (direction, hook)
        for side, direction in config.directions()
        if isinstance(hook := hook_of(side, direction) or Hook.XDP, Hook)
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_runs_as_it_is(compiler: Compiler, path: Path) -> None:
    """Named like its file, on whatever interface, with metrics that its maps can give."""
    config: ProbeConfig = load(path)
    assert config.name == path.stem
    for side, direction in config.directions():
        assert direction.interface == ""
        # Both directions share the map of dns.
        assert direction.metrics or path.stem == "dns"
        wish = hook_of(side, direction)
        for hook in (wish,) if wish else (Hook.XDP, Hook.TC_INGRESS):
            with compile_for(compiler, direction.source, hook) as compiled:
                assert len(compiled.programs) == 1
                assert compiled.diagnostics == ()
                check_metrics(config, side, compiled.maps)
        for metric in direction.metrics:
            assert metric.help


@pytest.mark.parametrize("hook", Hook)
def test_the_probe_of_the_documents_compiles(
    compiler: Compiler, tmp_path: Path, hook: Hook
) -> None:
    page = (ROOT / "docs" / "probes.md").read_text()
    written = re.search(
        r"^    # ports.toml\n(.*?)^    /\* ports.c \*/\n(.*?^    }\n)", page, re.M | re.S
    )
    assert written
    for name, text in zip(("ports.toml", "ports.c"), written.groups(), strict=True):
        (tmp_path / name).write_text(textwrap.dedent(text))
    config = load(tmp_path / "ports.toml")
    assert config.ingress
    with compile_for(compiler, config.ingress.source, hook) as compiled:
        assert compiled.diagnostics == ()
        check_metrics(config, "ingress", compiled.maps)


def test_each_is_in_the_readme_and_formatted() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"({path.name})" in text for path in CONFIGS)
    used = {
        Path(direction.file).name
        for path in CONFIGS
        for _, direction in load(path).directions()
        if direction.file
    }
    assert {path.name for path in SOURCES} == used
    formatter = [f"{ROOT}/.venv/bin/clang-format", "--dry-run", "--Werror", *map(str, SOURCES)]
    subprocess.run(formatter, check=True)


@pytest.mark.parametrize(("direction", "hook"), by_hook("packet-counter"))
def test_packet_counter(compiler: Compiler, direction: DirectionConfig, hook: Hook) -> None:
    """S1.32: window granularity."""
    with running(compiler, direction.source, hook) as probe:
        assert probe.send(*TO, ARP) == PASSED[hook]
        assert probe.entries("counts") == [(0, (len(TO) + 1, lengths(TO) + len(ARP)))]


@pytest.mark.parametrize("hook", [Hook.TC_INGRESS, Hook.TC_EGRESS])
def test_dns(compiler: Compiler, hook: Hook) -> None:
    """Names, codes and times of queries and answers, also without their counterpart."""
    long, ends = f"{'a' * 45}.{'B' * 33}.example", (HERE, THERE)
    names = ["www.Example.org"] * 3 + [long, "lost.example", "gone.example", ""]
    asked = [udp(*ends, (40000 + n, 53), answer(name, flags=0x100)) for n, name in enumerate(names)]
    flags = [0x8180, 0x8183, 0x8182, 0x8180, None, 0x8180, 0x8185]
    told = [
        udp(THERE, HERE, (53, 40000 + n), answer(name, flags=flag))
        for n, (name, flag) in enumerate(zip(names, flags, strict=True))
        if flag is not None
    ]
    others = [
        udp(*ends, (53, 53), answer("forged.example")),  # an answer to itself counts as one
        udp(*ends, (40000, 53), answer("wrong.example")),  # an answer to port 53 is none
        udp(*ends, (40000, 53), b"short"),
        udp("2001:db8::1", "2001:db8::7", (40000, 53), answer("six.example", flags=0x100)),
    ]
    del asked[5]
    with running(compiler, example("dns").source, hook) as probe:
        probe.send(*asked, *others)
        time.sleep(0.02)
        probe.send(*told)
        found = {
            (bytes(np.array(key[0], "u4")), bytes(np.array(key[1], "u1")).rstrip(b"\0")): value
            for key, value in probe.entries("questions")
        }
    server = bytes(10) + b"\xff\xff" + socket.inet_aton(THERE)
    counts = {
        name.decode(): (*value[:3], *value[5:])
        for (of, name), value in found.items()
        if of == server
    }
    cut = long.lower()[:64]
    assert counts == {
        "www.example.org": (3, 3, 3, 1, 1), cut: (1, 1, 1, 0, 0), "lost.example": (1, 0, 0, 0, 0),
        "gone.example": (0, 1, 0, 0, 0), "": (1, 1, 1, 0, 1),
    }  # fmt: skip
    assert (socket.inet_pton(socket.AF_INET6, "2001:db8::7"), b"six.example") in found
    mean_us, max_us = found[server, b"www.example.org"][3:5]
    assert 20_000 <= mean_us <= max_us < 2_000_000


@pytest.mark.parametrize("hook", Hook)
def test_empty(compiler: Compiler, hook: Hook) -> None:
    with running(compiler, example("empty").source, hook) as probe:
        assert probe.send(*TO, ARP, Frame(protocol=TCP)) == PASSED[hook]
        assert dict(probe.entries("protocols")) == {UDP: len(TO), TCP: 1}


@pytest.mark.parametrize("hook", Hook)
def test_destinations(compiler: Compiler, hook: Hook) -> None:
    """S1.32: flow granularity; S2.17's accounting, on any hook."""
    packets = Counter(ipv4(frame.destination) for frame in TO)
    sizes: Counter[int] = Counter()
    for frame in TO:
        sizes[ipv4(frame.destination)] += len(frame)
    with running(compiler, example("destinations", "egress").source, hook) as probe:
        assert probe.send(*TO, ARP, IPV6, MALFORMED) == PASSED[hook]
        expected = {address: (packets[address], sizes[address]) for address in packets}
        assert dict(probe.entries("destinations")) == expected
        assert probe.losses().keys() == {"NOT_IP", "FILTERED", "MALFORMED"}


def test_destinations_that_find_no_room_are_losses(compiler: Compiler) -> None:
    small = example("destinations", "egress").source.replace("65536", "4")
    frames = [Frame(destination=f"10.0.0.{number}") for number in range(10)]
    with running(compiler, small) as probe:
        probe.send(*frames)
        counted = probe.entries("destinations")
        lost, _ = probe.losses()["TABLE_FULL"]
        assert sum(packets for _, (packets, _) in counted) + lost == len(frames)
        assert lost > 0


def test_networks(compiler: Compiler) -> None:
    """The longest prefix counts; what none covers brings its own /24."""
    with running(compiler, example("networks").source) as probe:
        with probe.open("networks") as networks:
            networks.update([(8, ipv4("10.0.0.0")), (32, ipv4("10.0.0.5"))], [0, 0])
        frames = [
            Frame(source=address, payload=number)
            for number, address in enumerate(
                ("10.0.0.5", "10.0.0.6", "10.9.9.9", "192.0.2.1", "192.0.2.255", "192.0.3.1")
            )
        ]
        assert probe.send(*frames, *frames) == PASSED[Hook.XDP]
        assert dict(probe.entries("networks")) == {
            (32, ipv4("10.0.0.5")): 2 * len(frames[0]),
            (8, ipv4("10.0.0.0")): 2 * lengths(frames[1:3]),
            (24, ipv4("192.0.2.0")): 2 * lengths(frames[3:5]),
            (24, ipv4("192.0.3.0")): 2 * len(frames[5]),
        }


def test_netflow_and_its_variants_are_made_from_their_features() -> None:
    """S1.30, S1.31; what these programs count is tests/probes/test_netflow.py's business."""
    netflow = example("netflow")
    assert [name for name in FEATURES if f" {name};" in netflow.source] == [
        name for name in FEATURES if name not in ("OUTPUT_SNMP", "SRC_AS", "DST_AS", "SRC_TOS")
    ]
    adaptive = example("adaptive").source
    on = ["IPV4_SRC_ADDR", "IPV4_DST_ADDR", "IN_PKTS", "IN_BYTES"]
    assert f"#define INITIAL {sum(1 << FEATURES.index(name) for name in on):#x}\n" in adaptive
    assert example("non-adaptive").source == source(FEATURES, Method.NON_ADAPTIVE)


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_dropper(compiler: Compiler, hook: Hook) -> None:
    """S1.31: what it drops is counted, and no probe behind it sees it; all else passes."""
    dropped = [Frame(destination_port=9, payload=size) for size in range(7)]
    passed: list[Frame | bytes] = [
        Frame(destination_port=10),
        Frame(destination_port=9 << 8),
        Frame(source_port=9),
        Frame(protocol=TCP, destination_port=9),
        ARP,
        MALFORMED,
    ]
    sources = example("dropper").source, example("packet-counter").source
    with chained(compiler, *sources, hook=hook) as (dropper, behind):
        for frame in dropped:
            assert dropper.send(frame) == DROPPED[hook]
        for other in passed:
            assert dropper.send(other) == PASSED[hook]
        assert dropper.entries("dropped") == [(0, (len(dropped), lengths(dropped)))]
        assert behind.entries("counts") == [(0, (len(passed), sum(map(len, passed))))]


@pytest.mark.parametrize("inward", [Hook.XDP, Hook.TC_INGRESS])
def test_blocklist(compiler: Compiler, inward: Hook) -> None:
    """One list for both directions: of sources in one, of destinations in the other."""
    outward = Hook.TC_EGRESS
    config = load(EXAMPLES / "blocklist.toml").on("lo")
    assert config.ingress
    placed = config.ingress.model_copy(update={"hook": "xdp" if inward is Hook.XDP else "tc"})
    with Loose(compiler) as loose:
        probe = loose.add(config.model_copy(update={"ingress": placed}))

        def verdicts(frame: Frame | bytes) -> list[int]:
            return [loose.send(frame=bytes(frame), hook=hook) for hook in (inward, outward)]

        passes, drops = [PASSED[h] for h in (inward, outward)], [DROPPED[inward], DROPPED[outward]]
        there, back = Frame(source="192.0.2.66"), Frame(destination="192.0.2.66")
        assert verdicts(there) == [drops[0], passes[1]]
        assert verdicts(back) == [passes[0], drops[1]]
        assert [verdicts(other) for other in (Frame(), ARP, IPV6)] == [passes] * 3
        probe.set_entry("blocked", "192.0.2.0/24", 1)
        assert verdicts(Frame()) == [drops[0], passes[1]]
        assert probe.delete_entry("blocked", "192.0.2.0/24")
        assert verdicts(Frame()) == passes
        dropped = {
            s.side: int(s.rows["value"][0]) for s in probe.export() if isinstance(s, Snapshot)
        }
        assert dropped == {"ingress": 2, "egress": 1}


def sampled(probe: Running) -> tuple[int, int]:
    """Packets seen and packets sampled."""
    ((_, (seen, taken)),) = probe.entries("sampling")
    return seen, taken


def test_sampler(compiler: Compiler) -> None:
    """S1.32: packet granularity; all packets are counted, and some looked at."""
    rate, burst, many = 1000, 100, 50_000
    with running(compiler, example("sampler").source) as probe:
        started = time.monotonic()
        assert probe.send(Frame(protocol=TCP), repeat=many) == PASSED[Hook.XDP]
        probe.send(Frame(protocol=UDP), repeat=many)
        elapsed = time.monotonic() - started
        seen, taken = sampled(probe)
        assert seen == 2 * many
        # Each CPU has its own bucket.
        assert burst <= taken <= len(online_cpus()) * (burst + rate * elapsed) + 1
        by_protocol = dict(probe.entries("protocols"))
        assert sum(by_protocol.values()) == taken
        assert {number for number, count in by_protocol.items() if count} <= {TCP, UDP}
        time.sleep(0.02)
        probe.send(ARP)
        assert sampled(probe) == (seen + 1, taken + 1)
        assert dict(probe.entries("protocols"))[255] == 1


def test_tcp_flags(compiler: Compiler) -> None:
    flags = [SYN, SYN | ACK, ACK, ACK, FIN | ACK, 255]
    frames = [Frame(protocol=TCP, flags=combination) for combination in flags]
    with running(compiler, example("tcp-flags").source) as probe:
        assert probe.send(*frames, *TO, ARP, IPV6, MALFORMED) == PASSED[Hook.XDP]
        histogram = dict(probe.entries("tcp_flags"))
        assert {slot: count for slot, count in histogram.items() if count} == Counter(flags)


@pytest.mark.parametrize(("direction", "hook"), by_hook("sizes"))
def test_sizes(compiler: Compiler, direction: DirectionConfig, hook: Hook) -> None:
    frames = [Frame(payload=size) for size in (0, 21, 22, 85, 86, 213, 214, 900)]
    slots = Counter(len(frame).bit_length() for frame in frames)
    with running(compiler, direction.source, hook) as probe:
        assert probe.send(*frames) == 0  # TC_ACT_OK
        histogram = dict(probe.entries("sizes"))
        assert {slot: count for slot, count in histogram.items() if count} == slots


def test_events(compiler: Compiler) -> None:
    """S1.32: packet granularity: one row an attempt, in order, and overflow counted."""
    with running(compiler, example("events").source) as probe:
        attempts = [
            Frame(source=f"10.0.0.{n}", protocol=TCP, flags=SYN, source_port=1000 + n)
            for n in range(9)
        ]
        others = [Frame(protocol=TCP, flags=flags) for flags in (SYN | ACK, ACK, FIN)]
        before = time.monotonic_ns()
        for attempt in attempts:
            assert probe.send(attempt, *others, *TO[:3], IPV6) == PASSED[Hook.XDP]
        after = time.monotonic_ns()
        events = [event for _, event in probe.entries("attempts")]
        assert [event[1:] for event in events] == [
            (ipv4(a.source), ipv4(a.destination), a.source_port, a.destination_port)
            for a in attempts
        ]
        times = [before, *(event[0] for event in events), after]
        assert times == sorted(times)

        probe.send(attempts[0], repeat=4100)
        assert len(probe.entries("attempts")) == 4096
        assert probe.losses() == {"TABLE_FULL": (4, 4 * len(attempts[0]))}
