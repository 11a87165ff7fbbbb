"""noobflow: cost of a packet, live rate, and whether every packet is accounted for.

    python -I -m bench.flow [--frames 6000000] [--rounds 5]

Needs root; sends only between two namespaces that it makes. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from app.lab import netns
from bench.support.report import Report
from bpf.abi import ProgType
from bpf.attach import interface as interfaces
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
    """A hook with stages of C in a chain, in the namespace of one end of a veth."""

    def __init__(self, compiler: Compiler, right: End, stack: ExitStack) -> None:
        self._compiler = compiler
        self.space = right.ns
        self._stack = stack
        with netns.inside(right.ns):
            self.interface = interfaces.find(right.ifname)
            self.hooks = Hooks(lambda point: None)
            self.point = self.hooks.acquire(self.interface, Hook.XDP)
            self.point.attach()
        stack.callback(self.hooks.release, self.point)

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

    def poller(self, probe: Probe, publish: Publish) -> Poller:
        """A thread that swaps each 100 ms, started; to be stopped."""
        poller = Poller(probe, 0.1, publish)
        with netns.inside(self.space):
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
        yield Bench(compiler, right, stack), left


def cost_of_a_packet(compiler: Compiler, report: Report, version: int, rounds: int) -> None:
    """Nanoseconds a packet at 25,000 flows, by test runs, interleaved."""
    places = {"ADDRESS_AT": 26 if version == 4 else 34, "PORT_AT": 34 if version == 4 else 54}
    with ExitStack() as stack:
        fds: dict[str, int] = {}
        for name in ("nothing", "percpu_hash", "flow"):
            bench, _ = stack.enter_context(bench_on(compiler))
            bench.add(VARY, "vary", FLOWS=FLOWS, **places)
            if name == "percpu_hash":
                bench.add(_PERCPU_HASH, "hash")
            elif name == "flow":
                bench.add_flow()
            fds[name] = bench.point.chain.fd
        times: dict[str, list[int]] = {name: [] for name in fds}
        packet = frame(version)
        for _ in range(rounds + 1):
            for name, fd in fds.items():
                times[name].append(prog_test_run(fd, packet, repeat=2_000_000).duration_ns)
    floor, hashed, ours = (statistics.median(t[1:]) for t in times.values())
    report.row(f"IPv{version}: test run, no probe", f"{floor:.0f} ns")
    report.row(f"IPv{version}: per-CPU hash look-up and update", f"{hashed:.0f} ns")
    report.target(
        f"IPv{version}: noobflow at {FLOWS} flows",
        f"{ours:.0f} ns, {(ours - floor) / (hashed - floor):.2f} of the hash's own cost",
        ours <= hashed,
    )


def live_rate(compiler: Compiler, report: Report, frames: int, rounds: int) -> None:
    """Millions of packets a second over a veth: dropped at once, and counted by flow before."""
    rates: dict[str, list[float]] = {"drop": [], "hash": [], "flow": []}
    for _ in range(rounds):
        for name, measured in rates.items():
            with bench_on(compiler) as (bench, left), ExitStack() as stack:
                if name == "flow":
                    poller = bench.poller(bench.add_flow(), lambda _: None)
                    stack.callback(poller.stop)
                elif name == "hash":
                    bench.add(_PERCPU_HASH, "hash")
                bench.add(DROP, "drop")
                with Generator(compiler, left, flows=FLOWS) as generator:
                    generator.send(frames)
                    measured.append(frames / generator.seconds / 1e6)
    dropped, hashed, counted = (statistics.median(r) for r in rates.values())
    report.row("live, XDP_DROP", f"{dropped:.2f} Mpps")
    report.row("live, per-CPU hash then XDP_DROP, never read", f"{hashed:.2f} Mpps")
    report.target(
        "live, noobflow then XDP_DROP, a swap each 100 ms",
        f"{counted:.2f} Mpps, {counted / dropped:.0%} of XDP_DROP",
        counted >= 0.75 * dropped,
    )


def exactness(
    compiler: Compiler, report: Report, version: int, flows: int, frames: int, *, dropped: bool
) -> None:
    """Sum over windows and losses against what the hook saw; a swap each 100 ms.

    Not `dropped`, packets go on to the kernel as they do on an operator's interface.
    """
    with bench_on(compiler) as (bench, left):
        totals = {"packets": 0, "rows": 0, "full": 0, "windows": 0}
        waits: list[int] = []

        def add(item: Snapshot | Event) -> None:
            if isinstance(item, Snapshot):
                rows = item.rows
                totals["packets"] += int(rows["packets"].sum())
                totals["rows"] += len(rows)
                totals["windows"] += 1
                waits.append(item.swap_ns)
                totals["full"] += item.losses.get(LossReason.TABLE_FULL, Loss()).packets

        counter = bench.add(_COUNT, "count_seen")
        probe = bench.add_flow()
        if dropped:
            bench.add(DROP, "drop")
        poller = bench.poller(probe, add)
        with Generator(compiler, left, version=version, flows=flows) as generator:
            generator.send(frames)
            time.sleep(0.05)
            poller.stop()
            rate = frames / generator.seconds / 1e6
        values = map_lookup(counter.map_fd("seen"), bytes(4), 8 * possible_cpus())
        seen = sum(struct.unpack(f"{possible_cpus()}Q", values or b""))
    kind = f"{flows} flows" if flows else "each packet a new flow"
    exact = totals["packets"] + totals["full"] == seen
    whole = totals["full"] == 0 and (bool(flows) or totals["rows"] == seen)
    report.target(
        f"IPv{version}, {kind}, {'dropped' if dropped else 'passed on'}: {rate:.1f} Mpps",
        f"{seen} seen of {frames}; {totals['packets']} in windows, {totals['full']} lost,"
        f" {totals['rows']} rows, {totals['windows']} windows,"
        f" swap {np.median(waits) / 1000:.0f} us",
        exact and whole,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=6_000_000, help="of a live measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("noobflow")
    parts: list[Callable[[Compiler], None]] = [
        lambda c: cost_of_a_packet(c, report, 4, options.rounds),
        lambda c: cost_of_a_packet(c, report, 6, options.rounds),
        lambda c: live_rate(c, report, options.frames, options.rounds),
    ]
    parts += [
        partial(
            exactness, report=report, version=version, flows=flows, frames=2 * options.frames,
            dropped=dropped,
        )
        for flows, dropped, version in itertools.product((FLOWS, 0), (False, True), (4, 6))
    ]  # fmt: skip
    with Compiler() as compiler:
        for part in parts:
            part(compiler)
    report.end()


if __name__ == "__main__":
    main()
