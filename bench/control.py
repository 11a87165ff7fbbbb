"""The controller: what a snapshot costs to compile and to export, and whether packets are missed.

    python -I -m bench.control [--rounds 15] [--part swaps]

Repeats figures 4a and 4b of the control plane's paper, on live frames over a veth; see
tests/support/generator.py for where they come from.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.lab import netns
from bench.support.report import Report
from bpf.compiler import Compiler
from probes.config.model import ProbeConfig, parse
from probes.control.controller import Controller
from probes.hooks import Hooks
from probes.program.loading import compile_probe
from probes.program.probe import ProgramProbe
from probes.snapshot import Item, Snapshot
from tests.support.generator import Generator
from tests.support.veth import End, veth_pair

_HERTZ = (1, 10, 100)
_STRETCH_S = 1.0
_MAPS = (1, 10, 50, 64, 100)
_USED = 32
"""Maps that the program touches; the kernel takes 64."""

_COUNT = """
BPF_PERCPU_ARRAY(packets, u64, 1);

int count(struct xdp_md *ctx) {
    int zero = 0;
    u64 *n = packets.lookup(&zero);
    if (n)
        (*n)++;
    return XDP_%s;
}
"""
_VARIANTS = {
    "bcc": (
        _COUNT % "PASS",
        """
BPF_HASH(packets, u32, u64, 2048);

int by_port(struct xdp_md *ctx) {
    u8 *at = (void *)(long)ctx->data;
    u32 port = at + 36 <= (u8 *)(long)ctx->data_end ? at[35] : 0;
    u64 none = 0, *n = packets.lookup_or_try_init(&port, &none);
    if (n)
        lock_xadd(n, 1);
    return XDP_PASS;
}
""",
        """
struct seen { u64 packets; u64 bytes; };
BPF_PERCPU_HASH(packets, u32, struct seen, 64);
BPF_ARRAY(largest, u64, 1);
BPF_QUEUE(unused, u64, 16);

int by_protocol(struct xdp_md *ctx) {
    u8 *at = (void *)(long)ctx->data;
    u32 protocol = at + 36 <= (u8 *)(long)ctx->data_end ? at[23] : 0;
    struct seen none = {}, *n = packets.lookup_or_try_init(&protocol, &none);
    if (n) {
        n->packets++;
        n->bytes += ctx->data_end - ctx->data;
    }
    return XDP_PASS;
}
""",
        """
BPF_ARRAY(packets, u64, 4096);

int by_size(struct xdp_md *ctx) {
    u32 size = (ctx->data_end - ctx->data) & 4095;
    u64 *n = packets.lookup(&size);
    if (n)
        lock_xadd(n, 1);
    return XDP_PASS;
}
""",
    ),
    "libbpf": (
        """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} packets SEC(".maps");
SEC("xdp") int count(struct xdp_md *ctx) {
    __u32 zero = 0;
    __u64 *n = bpf_map_lookup_elem(&packets, &zero);
    if (n)
        __sync_fetch_and_add(n, 1);
    return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
""",
        """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
__u64 packets;
SEC("xdp") int count(struct xdp_md *ctx) {
    __sync_fetch_and_add(&packets, 1);
    return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
""",
    ),
}
"""Programs that all count packets in a map `packets`, of other kinds, layouts and sizes."""

_SWAP_PPS = 15_000
_TIMED = """
BPF_ARRAY(first, u64, 1);

int edit_%d(struct xdp_md *ctx) {
    int zero = 0;
    u64 *at = first.lookup(&zero);
    if (at && !*at)
        *at = bpf_ktime_get_ns();
    return XDP_PASS;
}
"""
_TIMED_FOR_LIBBPF = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
__u64 first;
SEC("xdp") int edit_%d(struct xdp_md *ctx) {
    if (!first)
        first = bpf_ktime_get_ns();
    return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"""
_TRICKLE = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    out.sendto(b"x", (sys.argv[1], 9))
    time.sleep(0.0002)
"""


def config(
    name: str, interface: str, source: str, *, agg: str = "", snapshot: bool = True,
    interval: float = 0, metric: str = "packets",
) -> ProbeConfig:  # fmt: skip
    """A probe of one metric on ingress."""
    shown = {"name": metric, "map": metric, "snapshot": snapshot, "agg": agg}
    direction = {"interface": interface, "hook": "xdp", "source": source, "metrics": [shown]}
    return parse({"name": name, "interval": interval, "ingress": direction}, "bench")


def variant(number: int, interface: str, dialects: Sequence[str]) -> ProbeConfig:
    """The counter in one of its shapes in these dialects."""
    sources = [source for dialect in dialects for source in _VARIANTS[dialect]]
    source = sources[number % len(sources)]
    percpu = "BPF_PERCPU" in source.partition("packets")[0] or "PERCPU_HASH(packets" in source
    return config("counter", interface, source, agg="sum" if percpu else "")


def compiling(report: Report, rounds: int) -> None:
    """Figure 4a: with every metric a snapshot against none, all else the same."""
    with Compiler(stores=()) as compiler:
        for maps in _MAPS:
            times: dict[bool, list[float]] = {False: [], True: []}
            for _, snapshot in itertools.product(range(rounds + 1), times):
                probe = many_maps(maps, snapshot)
                started = time.perf_counter()
                hooks = Hooks(lambda point: None)
                with compile_probe(compiler, probe, hooks) as compiled:
                    loaded = ProgramProbe(compiler, compiled, hooks)
                times[snapshot].append(time.perf_counter() - started)
                loaded.close()
            off, on = (statistics.median(t[1:]) for t in times.values())
            report.target(
                f"compile and load, {maps} maps: snapshot on against off",
                f"{on * 1e3:.1f} / {off * 1e3:.1f} ms = {on / off:.3f} (the paper: 2.0 to 2.1)",
                on <= 1.1 * off,
            )


def many_maps(count: int, snapshot: bool) -> ProbeConfig:
    declared = "".join(f"BPF_ARRAY(map_{n}, u64, 16);\n" for n in range(count))
    used = "".join(
        f"    if ((n = map_{n}.lookup(&zero)))\n        (*n)++;\n" for n in range(min(count, _USED))
    )
    body = f"    int zero = 0;\n    u64 *n;\n{used}    return XDP_PASS;\n"
    source = f"{declared}int many(struct xdp_md *ctx) {{\n{body}}}\n"
    metrics = [{"name": f"m{n}", "map": f"map_{n}", "snapshot": snapshot} for n in range(count)]
    direction = {"interface": "lo", "source": source, "metrics": metrics}
    return parse({"name": "many", "interval": 0, "ingress": direction}, "bench")


@contextmanager
def controller_on_veth() -> Iterator[tuple[Controller, End, End]]:
    """A controller in the namespace of a veth's right end."""
    with veth_pair() as (left, right):
        for end in (left, right):
            # Or neighbour discovery would be counted too.
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": "1"})
        with netns.inside(right.ns), Controller() as controller:
            yield controller, left, right


def throughput(report: Report, rounds: int) -> None:
    """Figure 4b: packets a second while a snapshot is exported, against none, side by side.

    One stream of frames is cut into short stretches, in the order without, with, with, without: a
    machine whose speed drifts by percents then shows differences of a tenth of one.
    """
    with controller_on_veth() as (controller, left, right), Compiler() as compiler:
        controller.add(
            config("reference", right.ifname, _COUNT % "PASS", agg="sum", snapshot=False)
        )
        controller.add(config("counter", right.ifname, _COUNT % "DROP", agg="sum"), force=True)
        with Generator(compiler, left) as generator, generator.streaming():
            for hertz in _HERTZ:
                ratios = []
                for _ in range(max(rounds, 2)):  # Quartiles need two.
                    without, *both, last = (
                        stretch(controller, hertz if exporting else 0)
                        for exporting in (False, True, True, False)
                    )
                    ratios.append(sum(both) / (without + last))
                ratio = statistics.median(ratios)
                low, _, high = statistics.quantiles(ratios, n=4)
                report.target(
                    f"exporting at {hertz:g} Hz, of {without / 1e6:.1f} Mpps without",
                    f"{ratio - 1:+.2%} (middle half {low - 1:+.2%} to {high - 1:+.2%}; "
                    "the paper: -0.15 %, -1.4 % at 100 Hz)",
                    ratio >= (0.99 if hertz > 10 else 0.9985),
                )


def stretch(controller: Controller, hertz: float) -> float:
    """Packets a second over a while, with an export so often."""
    seen = int(controller.export("reference")[0].rows["value"][0])
    started = time.perf_counter()
    end = started + _STRETCH_S
    due = started + 0.5 / hertz if hertz else math.inf
    while (now := time.perf_counter()) < end:
        if now >= due:
            controller.export("counter")
            due += 1 / hertz
        time.sleep(max(0.0, min(due, end) - time.perf_counter()))
    count = int(controller.export("reference")[0].rows["value"][0]) - seen
    return count / (time.perf_counter() - started)


def exactness(
    report: Report, exports: int, replacements: int, dialects: Sequence[str], pps: float = 0
) -> None:
    """Every packet in one window of one generation, while it is exported and replaced.

    `pps` packets a second come, or as many as the machine can send.
    """
    counted = {"packets": 0, "windows": 0}

    def add(item: Item) -> None:
        if isinstance(item, Snapshot) and item.probe == "counter":
            values = item.rows["value"]
            total = values["packets"] if values.dtype.names else values
            counted["packets"] += int(total.sum())
            counted["windows"] += 1

    with controller_on_veth() as (controller, left, right), Compiler() as compiler:
        controller.listen(add)
        reference = config("reference", right.ifname, _COUNT % "PASS", agg="sum", snapshot=False)
        controller.add(reference)
        controller.add(variant(0, right.ifname, dialects))
        controller.add(config("end", right.ifname, _COUNT % "DROP"), force=True)
        with Generator(compiler, left) as generator:
            with generator.streaming(pps):
                started = time.perf_counter()
                for number in range(replacements):
                    controller.replace(variant(number + 1, right.ifname, dialects))
                    for _ in range(exports // replacements):
                        controller.export("counter")
                        time.sleep(0.005)
                seconds = time.perf_counter() - started
            sent = generator.sent()
        time.sleep(0.1)
        controller.remove("counter")
        seen = int(controller.export("reference")[0].rows["value"].sum())
    report.target(
        f"{exports} exports and {replacements} replacements of {' and '.join(dialects)} at "
        f"{sent / seconds / 1e3:,.1f} kpps",
        f"{sent} packets sent, {seen} seen, {counted['packets']} in {counted['windows']} windows",
        counted["packets"] == seen
        and (not pps or seen == sent)
        and counted["windows"] >= exports + replacements,
    )


def swaps(report: Report, replacements: int) -> None:
    """Replacements in each dialect at a rate that a host of the field may have."""
    for dialect in _VARIANTS:
        exactness(report, replacements, replacements, [dialect], _SWAP_PPS)


def editing(report: Report, rounds: int) -> None:
    """From the key to the first packet that the edited program counts, in each dialect."""
    edits(report, rounds, "bcc", _TIMED, 60)
    edits(report, rounds, "libbpf", _TIMED_FOR_LIBBPF, 80)
    with_types = _TIMED_FOR_LIBBPF.replace("<linux/bpf.h>", '"vmlinux.h"')
    edits(report, rounds, "libbpf with vmlinux.h", with_types, 100)


def edits(report: Report, rounds: int, dialect: str, source: str, most_ms: int) -> None:
    with controller_on_veth() as (controller, left, right):
        with netns.inside(left.ns):
            command = [sys.executable, "-I", "-c", _TRICKLE, right.ipv4]
            trickle = subprocess.Popen(command)
        try:
            name = right.ifname
            controller.add(config("p", name, source % 0, metric="first"))
            waits = []
            for number in range(1, rounds * 3 + 2):
                edited = config("p", name, source % number, metric="first")
                started = time.monotonic_ns()
                controller.replace(edited)
                time.sleep(0.02)
                first = int(controller.export("p")[0].rows["value"][0])
                waits.append((first - started) / 1e6)
        finally:
            trickle.kill()
            trickle.wait()
    middle, worst = statistics.median(waits[1:]), max(waits[1:])
    report.target(
        f"edit to first packet counted, {len(waits) - 1} edits for {dialect}",
        f"median {middle:.1f} ms, longest {worst:.1f} ms",
        middle <= most_ms,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--exports", type=int, default=1000)
    parser.add_argument("--replacements", type=int, default=200)
    names = ("compiling", "editing", "swaps", "exactness", "throughput")
    parser.add_argument(
        "--part", action="append", choices=names, help="run this part only; may be repeated"
    )
    options = parser.parse_args()
    report = Report("the controller")
    with tempfile.TemporaryDirectory() as store:
        # Edits that an earlier run has stored would not be compiled.
        os.environ["CACHE_DIRECTORY"] = store
        parts: dict[str, Callable[[], None]] = {
            "compiling": lambda: compiling(report, options.rounds),
            "editing": lambda: editing(report, options.rounds),
            "swaps": lambda: swaps(report, options.replacements),
            "exactness": lambda: exactness(
                report, options.exports, options.replacements, list(_VARIANTS)
            ),
            "throughput": lambda: throughput(report, options.rounds),
        }
        for part in options.part or names:
            parts[part]()
    report.end()


if __name__ == "__main__":
    main()
