"""Loss between two controllers, with a program in between that drops packets and counts them."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import RemoteController
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.cli.main import cli
from app.fleet import segment_run
from app.fleet.segment_run import MeasuredHost, SegmentReport, SegmentRun
from app.lab import netns
from bpf.attach import interface as interfaces
from bpf.attach.attachment import Hook, attach
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.maps.map import Map, reduce_cpus
from bpf.programs.program import Program
from probes.control.controller import Controller
from probes.path.options import PathOptions
from probes.segment.options import SegmentOptions
from probes.snapshot import Event
from tests.app.fleet.elsewhere import Elsewhere
from tests.probes.running import compile_for
from tests.support.sight import becomes

DROPPER = """\
#include "packet.h"
BPF_PERCPU_ARRAY(dropped, u64, 1);
int drop(CONTEXT *ctx) {
    struct packet packet = {};
    u32 zero = 0;
    u64 protocol, *count = dropped.lookup(&zero);
    if (parse_packet(ctx, &packet) != PARSED || !count)
        return VERDICT_PASS;
    protocol = PROTOCOL(&packet.key);
    if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || bpf_get_prandom_u32() % 1000)
        return VERDICT_PASS;
    *count += packets_of(ctx);
    return VERDICT_DROP;
}
"""
LARGE = """\
#include "packet.h"
BPF_PERCPU_ARRAY(large, u64, 1);
int watch(CONTEXT *ctx) {
    u32 zero = 0;
    struct packet packet = {};
    u64 *count = large.lookup(&zero);
    parse_packet(ctx, &packet);
    if (count && packets_of(ctx) > 1 && PROTOCOL(&packet.key) == IPPROTO_TCP)
        *count += 1;
    return VERDICT_PASS;
}
"""
A4, B4, A6, B6 = "10.71.1.1", "10.71.2.1", "fd71:1::1", "fd71:2::1"
FILTER = f"(host:{A4} host:{B4}) or (host:{A6} host:{B6})"
OPTIONS = SegmentOptions("secret", capture=FILTER, interval=0.25)
STREAM, DATAGRAMS = 12 << 20, 2000
MOST_PACKETS = 46
"""Packets of the largest segment: 64 KiB in parts of 1428 bytes."""
_SIOCETHTOOL, _STSO, _SGSO, _SGRO = 0x8946, 0x1F, 0x24, 0x2C
_UDP_SEGMENT = 103


@dataclass(frozen=True)
class Segment:
    """Two hosts with a router in between."""

    a: int
    b: int
    router: int
    """Namespaces."""
    urls: tuple[str, str]
    remotes: tuple[RemoteController, RemoteController]
    dropped: tuple[Callable[[], int], Callable[[], int]]
    """Dropped packets from A, and from B."""
    large: dict[str, Callable[[], int]]
    """Large segments of TCP that left A, passed the router, and came to B."""


def offload(name: str, command: int, on: bool) -> None:
    """Change an offload of an interface of this namespace, as ethtool -K does."""
    value = bytearray(struct.pack("II", command, on))
    buffer = (ctypes.c_char * len(value)).from_buffer(value)
    request = struct.pack("16sQ16x", name.encode(), ctypes.addressof(buffer))
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


def overflown(ns: int, name: str) -> int:
    """Packets that a veth dropped because its peer's queue was full; a large segment is one."""
    with netns.inside(ns):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    (counts,) = (line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == name)
    return int(counts[11])


async def cable(spaces: dict[str, int]) -> None:
    hosts = {name: await netns.open_host(ns) for name, ns in spaces.items()}
    for host, net in (("a", 1), ("b", 2)):
        await netns.add_veth(hosts[host], "eth0", spaces["r"], f"to_{host}")
        for node, name, last in ((host, "eth0", 1), ("r", f"to_{host}", 2)):
            index = netns.ifindex(spaces[node], name)
            await netns.bring_up(
                hosts[node], index, f"10.71.{net}.{last}", f"fd71:{net}::{last}"
            )  # fmt: skip
    for host, net in (("a", 1), ("b", 2)):
        for node, name in ((host, "eth0"), ("r", f"to_{host}")):
            await netns.wait_until_running(hosts[node], netns.ifindex(spaces[node], name))
        await hosts[host].route("add", dst="10.71.0.0/16", gateway=f"10.71.{net}.2")
        await hosts[host].route("add", dst="fd71::/16", gateway=f"fd71:{net}::2")
    for host in hosts.values():
        host.close()


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Segment]:
    folder = tmp_path_factory.mktemp("segment")
    with ExitStack() as stack:
        compiler = stack.enter_context(Compiler())
        spaces = {name: netns.fresh() for name in "abr"}
        for ns in spaces.values():
            stack.callback(os.close, ns)
        netns.write_sysctls(
            spaces["r"], {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
        )
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, cable(spaces)).result()
        remotes = [stack.enter_context(host(spaces[name], folder / name)) for name in "ab"]
        for remote in remotes:
            remote.measure_segment(OPTIONS)

        def count(node: str, name: str, hook: Hook, source: str = LARGE) -> Callable[[], int]:
            return stack.enter_context(counting(compiler, spaces[node], name, hook, source))

        ingress, egress = Hook.TC_INGRESS, Hook.TC_EGRESS
        large = {
            "a": count("a", "eth0", egress),
            "r": count("r", "to_b", egress),
            "b": count("b", "eth0", ingress),
        }
        droppers = [count("r", f"to_{name}", ingress, DROPPER) for name in "ab"]
        yield Segment(
            spaces["a"], spaces["b"], spaces["r"],
            (f"unix:{folder}/a", f"unix:{folder}/b"),
            (remotes[0], remotes[1]), (droppers[0], droppers[1]), large,
        )  # fmt: skip


@contextmanager
def host(ns: int, path: Path) -> Iterator[RemoteController]:
    with netns.inside(ns), ExitStack() as stack:
        controller = stack.enter_context(Controller())
        controller.paths.configure("eth0", PathOptions())
        stack.enter_context(ApiListener(controller, Api("1", socket=str(path))))
        yield stack.enter_context(RemoteController(Remote(f"unix:{path}")))


@contextmanager
def counting(
    compiler: Compiler, ns: int, name: str, hook: Hook, source: str
) -> Iterator[Callable[[], int]]:
    with (
        compile_for(compiler, source, hook) as compiled,
        closing(Program(compiled, next(iter(compiled.programs)))) as program,
    ):
        declared = next(m for n, m in compiled.maps.items() if n in ("dropped", "large"))
        fd = os.dup(program.map_fd(declared.spec.name))
        with Map(fd, declared.spec, declared.key, declared.value) as counter, netns.inside(ns):
            attached = attach(hook, program.fd, interfaces.find(name))
            try:
                yield lambda: int(reduce_cpus(counter.read().values)[0])
            finally:
                attached.close()


def stream(segment: Segment, server: str, client: str) -> None:
    """Send a stream from the client in A to the server in B."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with netns.inside(segment.b):
        listening = socket.create_server((server, 0), family=family)
    with netns.inside(segment.a):
        sending = socket.socket(family)
        sending.bind((client, 0))

    def receive() -> int:
        with listening, listening.accept()[0] as accepted:
            return sum(iter(lambda: len(accepted.recv(1 << 20)), 0))

    with ThreadPoolExecutor(1) as thread, sending:
        received = thread.submit(receive)
        sending.connect(listening.getsockname())
        sending.sendall(bytes(STREAM))
        sending.shutdown(socket.SHUT_WR)
        assert received.result() == STREAM


def datagrams(source_ns: int, source: str, destination: str, count: int, size: int) -> None:
    """Datagrams of `size` bytes; fragments, if they are larger than the MTU."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with netns.inside(source_ns), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        for number in range(count):
            sock.sendto(number.to_bytes(4, "big") * (size // 4), (destination, 9))


def large_datagrams(segment: Segment, source: str, destination: str) -> None:
    """Segments that the kernel takes apart into datagrams of 1000 bytes (UDP GSO)."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with netns.inside(segment.a), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 1000)
        for number in range(200):
            sock.sendto(os.urandom(3) + number.to_bytes(1, "big") * 20_500, (destination, 9))


def windows(run: SegmentRun) -> list[int]:
    """The newest window of each host that came completely."""
    return [host.window if not host.tables else 0 for host in run._comparison._hosts]


def settled(run: SegmentRun, ended: list[int]) -> SegmentReport:
    """The report once the windows came and all packets have arrived or are lost."""

    def over() -> bool:
        report = run.report()
        decided = all(
            side.counts.sent == side.sent_packets and not side.counts.in_flight
            for side in (report.there, report.back)
        )
        return decided and all(n >= m for n, m in zip(windows(run), ended, strict=True))

    assert becomes(over), run.report()
    return run.report()


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["large segments", "split and joined"])
def test_lost_packets_are_those_that_were_dropped(segment: Segment, split: bool) -> None:
    """To the packet: TCP with TSO and GRO, UDP, UDP GSO and fragments, by IPv4 and IPv6. In one
    case the router sees and drops large segments, in the other the packets of them."""
    # A veth joins packets (GRO) of a peer without TSO only.
    for ns, name in ((segment.a, "eth0"), (segment.router, "to_b"), (segment.b, "eth0")):
        with netns.inside(ns):
            offload(name, _STSO, not split)
            offload(name, _SGSO, not split)
            offload(name, _SGRO, split and name == "eth0")

    def gone() -> list[int]:
        """Packets that the router drops and that cables drop, from A and from B."""
        return [
            segment.dropped[0](),
            overflown(segment.a, "eth0") + overflown(segment.router, "to_b"),
            segment.dropped[1](),
            overflown(segment.b, "eth0") + overflown(segment.router, "to_a"),
        ]

    before = gone()
    large = {node: count() for node, count in segment.large.items()}
    one, other = segment.remotes
    elsewhere: tuple[MeasuredHost, MeasuredHost] = one, Elsewhere(other, 5_000_000_000)
    with (
        SegmentRun((one, other), OPTIONS, 0.5) as run,
        SegmentRun(elsewhere, OPTIONS, 0.5) as apart,
    ):
        assert becomes(lambda: all(windows(run)) and all(windows(apart)))
        apart.look_at_clocks()
        work = [
            threading.Thread(target=stream, args=(segment, B4, A4)),
            threading.Thread(target=stream, args=(segment, B6, A6)),
            *(
                threading.Thread(target=datagrams, args=(ns, *ends, DATAGRAMS, size))
                for size in (400, 4000)
                for ns, *ends in (
                    (segment.a, A4, B4), (segment.b, B4, A4),
                    (segment.a, A6, B6), (segment.b, B6, A6),
                )
            ),
            *(
                threading.Thread(target=large_datagrams, args=(segment, *ends))
                for ends in ((A4, B4), (A6, B6))
                if not split
            ),
        ]  # fmt: skip
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        ended = [remote.export("segment")[0].window for remote in segment.remotes]
        report, other_report = settled(run, ended), settled(apart, ended)
    dropped = [now - was for now, was in zip(gone(), before, strict=True)]
    # A cable of a busy machine may drop large segments, and counts each as one packet.
    most = 1 if split else MOST_PACKETS
    for found in (report, other_report):
        for side, (by_router, by_cables) in (
            (found.there, dropped[:2]),
            (found.back, dropped[2:]),
        ):
            counts = side.counts
            assert by_router + by_cables <= counts.lost <= by_router + by_cables * most
            assert counts.lost > 0
            assert counts.delivered + counts.lost == counts.sent == side.sent_packets
            assert counts.delivered == side.received_packets
            rest = replace(counts, sent=0, delivered=0, lost=0, reordered=0, ordered=0)
            assert rest == type(counts)()
    grown = {node: count() - large[node] for node, count in segment.large.items()}
    assert min(grown["a"], grown["b"]) > 100
    assert grown["r"] == 0 if split else grown["r"] > 100
    assert report.one_clock
    assert report.there.delay is not None
    assert 0 <= report.there.delay.least < report.there.delay.median < 0.5
    assert not other_report.one_clock
    assert abs(other_report.offset_s - 5) <= other_report.error_s < 0.01


@pytest.mark.slow
def test_a_host_measures_for_one_key_at_a_time(segment: Segment) -> None:
    one, _ = segment.remotes
    status = one.measure_segment(OPTIONS)
    assert (status.running, status.interface, status.ratio) == (True, "eth0", 1)
    assert one.measure_segment(OPTIONS).key_id == status.key_id
    with pytest.raises(UsageError, match="another key"):
        one.measure_segment(replace(OPTIONS, key="other"))
    one.remove("segment")
    assert not one.segment().running
    assert time.time_ns() - one.segment().utc_ns < 1_000_000_000


@pytest.mark.slow
def test_a_probe_ends_when_nobody_renews_its_lease(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed measurement renews no lease. The other host's probe runs without a lease."""
    one, other = segment.remotes
    if one.segment().running:
        one.remove("segment")
    with pytest.raises(UsageError, match="a lease of"):
        one.measure_segment(OPTIONS, -1)
    events: list[str] = []
    one.listen(lambda item: events.append(item.text) if isinstance(item, Event) else None)
    monkeypatch.setattr(segment_run, "LEASE_S", 0.6)
    run = SegmentRun((one, other), OPTIONS, 0.5)
    end = time.monotonic() + 0.9
    while time.monotonic() < end:
        run.look_at_clocks()
        time.sleep(0.05)
    assert one.segment().running
    assert not any("lease" in text for text in events)
    assert becomes(lambda: any("lease" in text for text in events))
    assert becomes(lambda: not one.segment().running)
    assert other.segment().running


@pytest.mark.slow
def test_the_command_measures_and_leaves_nothing_running(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts the probe on the first host, and shares the one that runs on the other."""
    one, other = segment.remotes
    if one.segment().running:
        one.remove("segment")
    # The command's windows last a second, which is long for a test.
    monkeypatch.setattr("app.run.item_loop.on_signals", lambda _: None)
    monkeypatch.setattr(segment_run, "with_key", lambda options: replace(options, interval=0.25))
    ended = threading.Event()

    def send() -> None:
        with netns.inside(segment.a), socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind((A4, 0))
            while not ended.wait(0.001):
                sock.sendto(os.urandom(100), (B4, 9))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        arguments = ("--key", OPTIONS.key, "--for", "1", "--horizon", "0.2")
        cli(["segment", *segment.urls, FILTER, *arguments], standalone_mode=False)
    finally:
        ended.set()
        sender.join()
    head, *lines, a, b, clock, uncompared = capsys.readouterr().out.splitlines()
    assert head.split() == ["A", "->", "B", "B", "->", "A"]
    assert max(map(len, lines)) < 80
    assert (a, b) == (f"A: {segment.urls[0]}", f"B: {segment.urls[1]}")
    assert clock == "Both hosts read one clock: delays are exact."
    assert uncompared.startswith("Not compared: early packets were sent before")
    cells = {name: rest for name, *rest in (re.split("  +", line) for line in lines)}
    rows = ((name, there) for name, (there, _) in cells.items() if not name.startswith("delay"))
    counts = {name: int(there.split()[0].replace(",", "")) for name, there in rows}
    decided = counts["delivered"] + counts["lost"] + counts.get("unknown", 0)
    assert 0 < counts["delivered"] <= decided == counts["chosen"]
    others = ("chosen", "in flight", "not compared: early", "not compared: late", "not recorded")
    assert counts["pass the filter"] == sum(counts.get(name, 0) for name in others)
    assert re.fullmatch(r"\d+\.\d{3} ms", cells["delay, median"][0])
    assert not one.segment().running
    assert other.segment().running
