"""The flow table: cost of a packet, live rate, and whether every packet is accounted for.

Frames travel only between two namespaces that it makes.
"""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from app.lab import netns
from bench.runner.cases import (
    Case,
    Effort,
    Group,
    Line,
    Measure,
    MissingError,
    at_least,
    at_most,
    exactly,
)
from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.compiler import Compiler
from bpf.machine import possible_cpus
from bpf.programs.program import Program
from bpf.syscall import map_lookup, prog_test_run
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from probes.hooks import Hooks
from probes.poller import Poller, Probe, Publish
from probes.snapshot import Event, Loss, LossReason, Snapshot
from tests.support.generator import Generator, frame
from tests.support.veth import End, veth_pair

FLOWS = 25_000
_HASH = "per-CPU hash"
_REPEAT = 2_000_000

VARY = """
#include "probe.h"

BPF_PERCPU_ARRAY(sequence, u64, 1);

/* Gives every packet one of FLOWS flows, picked at random, as the generator does. */
int
vary(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    int zero = 0;
    u64 *next = sequence.lookup(&zero);
    if (data + 60 > (void *)(long)ctx->data_end || !next)
        return XDP_ABORTED;
    u64 n = (*next)++;
    u64 flow = ((u64)(u32)((u32)n * 2654435761U) * FLOWS) >> 32;
    *(u32 *)(data + ADDRESS_AT) = bpf_htonl(0x0a5f4000u + (u32)(flow >> 14));
    *(u16 *)(data + PORT_AT) = bpf_htons((u16)(1024 + (flow & 16383)));
    return VERDICT_PASS;
}
"""

DROP = """
#include "probe.h"

int
drop(struct xdp_md *ctx)
{
    return XDP_DROP;
}
"""

PASS = """
#include "probe.h"

int
pass(struct xdp_md *ctx)
{
    return VERDICT_PASS;
}
"""

_COUNT = """
#include "probe.h"

BPF_PERCPU_ARRAY(seen, u64, 1);

/* What reached the hook: a veth drops frames when its receiver is not scheduled in time. */
int
count_seen(struct xdp_md *ctx)
{
    int zero = 0;
    u64 *packets = seen.lookup(&zero);
    if (packets)
        (*packets)++;
    return VERDICT_PASS;
}
"""

_PERCPU_HASH = """
#include "packet.h"

struct value {
    u64 packets;
    u64 bytes;
    u64 first;
    u64 last;
    u32 tcp_flags;
    u32 zero;
};

BPF_PERCPU_ARRAY(scratch, struct packet, 1);
BPF_TABLE("percpu_hash", struct flow_key, struct value, flows, 131072);

/* The same record and the same parser, in the kernel's own per-CPU hash. */
int
hash(struct xdp_md *ctx)
{
    int zero = 0;
    struct packet *packet = scratch.lookup(&zero);
    if (!packet)
        return XDP_DROP;
    *packet = (struct packet){};
    if (parse(ctx, packet) != PARSED)
        return VERDICT_PASS;
    u64 bytes = ctx->data_end - ctx->data;
    u64 now = bpf_jiffies64();
    struct value *value = flows.lookup(&packet->key);
    if (value) {
        value->packets++;
        value->bytes += bytes;
        value->last = now;
        value->tcp_flags |= packet->tcp_flags;
    } else {
        struct value fresh = {1, bytes, now, now, packet->tcp_flags, 0};
        flows.update(&packet->key, &fresh);
    }
    return VERDICT_PASS;
}
"""


class Bench:
    """A hook with stages of C in a chain.

    It is on one end of a veth. Without an end it is of `lo`, unattached, and sees test runs alone.
    """

    def __init__(self, compiler: Compiler, stack: ExitStack, end: End | None = None) -> None:
        self._compiler, self._stack, self._end = compiler, stack, end
        with self.inside():
            self.hooks = Hooks(lambda point: None)
            self.interface = self.hooks.find(end.ifname if end else "lo")
            self.point = self.hooks.acquire(self.interface, Hook.XDP)
            if end:
                self.point.attach()
        stack.callback(self.hooks.release, self.point)

    def inside(self) -> AbstractContextManager[None]:
        """Be in the namespace of the hook for a while."""
        return netns.inside(self._end.ns) if self._end else nullcontext()

    def add(self, source: str, name: str, **macros: object) -> Program:
        """Append a stage: one function `name`, compiled from `source`."""
        flags = {"HOOK_XDP": 1, "LINK_ETHERNET": 1, **macros}
        cflags = [f"-D{key}={value}" for key, value in flags.items()]
        stage = Stage()
        with self._compiler.compile(source, ProgType.XDP, name=name, cflags=cflags) as compiled:
            program = Program(compiled, name, next_fd=stage.next_fd)
        self._stack.callback(program.close)
        self.point.chain.append(stage, program.fd)
        self._stack.callback(self.point.chain.remove, stage)
        return program

    def test_run(self, packet: bytes, repeat: int) -> float:
        """Return the nanoseconds of a packet by BPF_PROG_TEST_RUN."""
        return prog_test_run(self.point.chain.fd, packet, repeat=repeat).duration_ns

    def poller(self, probe: Probe, publish: Publish) -> Poller:
        """A thread that swaps each 100 ms, started; to be stopped."""
        poller = Poller(probe, 0.1, publish)
        with self.inside():
            poller.start()
        return poller

    def add_flow(self) -> FlowProbe:
        """Append the flow probe."""
        where = [(Hook.XDP, FlowDirection.INGRESS)]
        probe = FlowProbe(self._compiler, self.interface, where, self.hooks)
        self._stack.callback(probe.close)
        return probe


@contextmanager
def bench_on(compiler: Compiler) -> Iterator[tuple[Bench, End]]:
    """A fresh veth pair, and a hook on its right end."""
    with ExitStack() as stack:
        left, right = stack.enter_context(veth_pair())
        for end in (left, right):
            # Or neighbour discovery would be counted too.
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": "1"})
        yield Bench(compiler, stack, right), left


def varied(bench: Bench, version: int, flows: int = FLOWS, tag: int = 0) -> None:
    """Append the stage that gives each packet of a test run one of some flows.

    `tag` is the length of a VLAN tag.
    """
    address, port = (26, 34) if version == 4 else (34, 54)
    bench.add(VARY, "vary", FLOWS=flows, ADDRESS_AT=address + tag, PORT_AT=port + tag)


def tagged(packet: bytes) -> bytes:
    """Return the frame with a VLAN tag."""
    return packet[:12] + b"\x81\x00\x00\x0a" + packet[12:]


def test_runs(version: int, tag: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Compare the flow table with the kernel's per-CPU hash at 25,000 flows."""
    nothing, hashed, counted, swapped = (Bench(effort.compiler, stack) for _ in range(4))
    for bench in (nothing, hashed, counted, swapped):
        varied(bench, version, tag=tag)
    hashed.add(_PERCPU_HASH, "hash")
    counted.add_flow()
    probe = swapped.add_flow()
    packet = tagged(frame(version)) if tag else frame(version)
    repeat = effort.of(_REPEAT, 20_000)

    def beside_swaps() -> float:
        poller = swapped.poller(probe, lambda _: None)
        try:
            # Long enough for several swaps.
            return swapped.test_run(packet, 4 * repeat)
        finally:
            poller.stop()

    floor, peer, ours = (
        partial(each.test_run, packet, repeat) for each in (nothing, hashed, counted)
    )
    name = f"flow table, IPv{version}{' with a VLAN tag' if tag else ''}, {FLOWS} flows"
    for words, measure in (("", ours), (", a swap each 100 ms", beside_swaps)):
        yield Case(name + words, "ns", measure, peer, _HASH, floor, at_most(0.42))


def sizes(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The cost of a packet by the number of flows, beside a swap each 100 ms."""
    line = Line("Cost of a packet by flows", "flow table", "flows", at_most(0.2))
    floor = Bench(effort.compiler, stack)
    varied(floor, 4, 1)
    repeat = effort.of(_REPEAT, 20_000)
    full = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 4_000_000)
    for flows in effort.of(full, (1, 1000)):
        bench = Bench(effort.compiler, stack)
        varied(bench, 4, flows)
        probe = bench.add_flow()

        def swapped(bench: Bench = bench, probe: FlowProbe = probe) -> float:
            poller = bench.poller(probe, lambda _: None)
            try:
                return bench.test_run(frame(4), repeat)
            finally:
                poller.stop()

        yield Case(
            f"flow table, IPv4, {flows} flows, by size", "ns", swapped,
            floor=partial(floor.test_run, frame(4), repeat), line=line, size=flows,
        )  # fmt: skip


def chain(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The cost of a packet by the number of chained probes that only pass."""
    line = Line("Cost of a packet by chained probes", "chain", "probes", at_most(1))
    for count in effort.of((1, 2, 4, 8, 16), (1, 2)):
        bench = Bench(effort.compiler, stack)
        for _ in range(count):
            bench.add(PASS, "pass")
        run = partial(bench.test_run, frame(4), effort.of(_REPEAT, 20_000))
        yield Case(f"{count} chained probes that pass", "ns", run, line=line, size=count)


def live(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Nanoseconds of a frame over a veth: dropped at once, and counted by flow before."""
    frames = effort.of(6_000_000, 5000)

    def measure(name: str) -> float:
        with bench_on(effort.compiler) as (bench, left), ExitStack() as inner:
            if name == "flow":
                inner.callback(bench.poller(bench.add_flow(), lambda _: None).stop)
            elif name == "hash":
                bench.add(_PERCPU_HASH, "hash")
            bench.add(DROP, "drop")
            with Generator(effort.compiler, left, flows=FLOWS) as generator:
                generator.send(frames)
                return generator.seconds / frames * 1e9

    drop, hashed, ours = (partial(measure, name) for name in ("drop", "hash", "flow"))
    added = f"live, what the flow table adds to XDP_DROP, {FLOWS} flows, a swap each 100 ms"
    yield Case(added, "ns", ours, hashed, f"{_HASH}, never read", drop, at_most(0.45))
    whole = f"live, the flow table and XDP_DROP, {FLOWS} flows"
    yield Case(whole, "ns", ours, drop, "XDP_DROP alone")


class Total(NamedTuple):
    """Sums of a run over a veth."""

    mpps: float
    seen: int
    """Packets that reached the hook."""
    counted: int
    lost: int
    """Packets beyond a full table."""
    rows: int

    @property
    def missing(self) -> int:
        return self.seen - self.counted


def count_all(
    bench: Bench, lefts: list[tuple[End, int]], compiler: Compiler, frames: int, *,
    version: int = 4, flows: int = FLOWS, dropped: bool,
) -> Total:  # fmt: skip
    """Send frames out of each end from its CPU, and compare the hook's count with all windows.

    Not `dropped`, packets go on to the kernel as they do on an operator's interface.
    """
    sums = {"packets": 0, "rows": 0, "full": 0}

    def add(item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            sums["packets"] += int(item.rows["packets"].sum())
            sums["rows"] += len(item.rows)
            sums["full"] += item.losses.get(LossReason.TABLE_FULL, Loss()).packets

    counter = bench.add(_COUNT, "count_seen")
    probe = bench.add_flow()
    if dropped:
        bench.add(DROP, "drop")
    poller = bench.poller(probe, add)
    with ExitStack() as stack:
        generators = [
            stack.enter_context(Generator(compiler, left, version=version, flows=flows, cpu=cpu))
            for left, cpu in lefts
        ]
        senders = [threading.Thread(target=each.send, args=(frames,)) for each in generators]
        started = time.perf_counter()
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        mpps = frames * len(senders) / (time.perf_counter() - started) / 1e6
        time.sleep(0.05)
        poller.stop()
    values = map_lookup(counter.map_fd("seen"), bytes(4), 8 * possible_cpus())
    seen = sum(struct.unpack(f"{possible_cpus()}Q", values or b""))
    return Total(mpps, seen, sums["packets"], sums["full"], sums["rows"])


def exactness(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The sum over windows and losses against what the hook saw; a swap each 100 ms."""
    frames = effort.of(12_000_000, 5000)
    for flows, dropped, version in itertools.product((FLOWS, 0), (False, True), (4, 6)):
        with bench_on(effort.compiler) as (bench, left):
            total = count_all(
                bench, [(left, 0)], effort.compiler, frames, version=version, flows=flows,
                dropped=dropped,
            )  # fmt: skip
        kind = f"{flows} flows" if flows else "each packet a new flow"
        name = (
            f"live, IPv{version}, {frames} frames, {kind}, {'dropped' if dropped else 'passed on'}"
        )
        unaccounted, merged = total.missing - total.lost, 0 if flows else total.seen - total.rows
        yield Case(f"{name}: rate", "Mpps", constant(total.mpps))
        yield Case(f"{name}: unaccounted", "packets", constant(unaccounted), goal=exactly(0))
        yield Case(f"{name}: lost, and counted as lost", "packets", constant(total.lost),
                   goal=exactly(0))  # fmt: skip
        if not flows:
            merged -= total.lost
            yield Case(f"{name}: flows without a row", "flows", constant(merged), goal=exactly(0))


def constant(value: float) -> Measure:
    """Return a measurement that the set-up has made."""
    return lambda: value


@contextmanager
def two_queues(compiler: Compiler) -> Iterator[tuple[Bench, End]]:
    """A hook on a veth whose frames stay on the one of two CPUs that sent them."""
    with ExitStack() as stack:
        pair = stack.enter_context(veth_pair())
        queues = "numtxqueues 2 numrxqueues 2"
        peer = f"peer name two {queues} netns /proc/{os.getpid()}/fd/{pair[1].ns}"
        with netns.inside(pair[0].ns):
            add = f"ip link add two {queues} type veth {peer}"
            subprocess.run(add.split(), check=True)
        ends = []
        for end in pair:
            with netns.inside(end.ns):
                subprocess.run(["ip", "link", "set", "two", "up"], check=True)
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": "1"})
            ends.append(replace(end, ifname="two", ifindex=netns.ifindex(end.ns, "two")))
        yield Bench(compiler, stack, ends[1]), ends[0]


def cores(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Packets a second into flows on one core and on two, without a loss (figure 4 of S4)."""
    if possible_cpus() < 2:
        raise MissingError("this machine has one CPU")
    frames = effort.of(12_000_000, 5000)
    lost = [0.0]

    def measure(count: int) -> float:
        with two_queues(effort.compiler) as (bench, left):
            lefts = [(left, cpu) for cpu in range(count)]
            total = count_all(bench, lefts, effort.compiler, frames, dropped=True)
        lost.append(1 - total.counted / (frames * count))
        return total.mpps

    one, two = partial(measure, 1), partial(measure, 2)
    name = f"flow table, live, XDP_DROP behind it, {FLOWS} flows a core"
    paper = "3.66 Mpps on one core, 20 on five"
    yield Case(f"{name}, 1 core", "Mpps", one, figure="S4 4", paper=paper)
    yield Case(f"{name}, 2 cores", "Mpps", two, one, "1 core", goal=at_least(1.8), figure="S4 4",
               paper=paper)  # fmt: skip
    yield Case(f"{name}, the largest share of frames that is in no flow", "",
               lambda: max(lost), goal=at_most(1e-6), figure="S4 4", paper="0.0001 %")  # fmt: skip


GROUPS = (
    Group("test runs, IPv4", partial(test_runs, 4, 0)),
    Group("test runs, IPv6", partial(test_runs, 6, 0)),
    Group("test runs, IPv4 with a VLAN tag", partial(test_runs, 4, 4)),
    Group("test runs by the number of flows", sizes, 5),
    Group("test runs by the number of probes", chain),
    Group("live", live, 7),
    Group("every packet", exactness, 1, warm=False),
    Group("one core and two", cores, 5, warm=False),
)
