"""The controller: what a snapshot costs to compile and to export, and whether packets are missed.

Repeats figures 4a and 4b of the control plane's paper, on live frames over a veth; see
tests/support/generator.py for where they come from.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from app.lab import netns
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, Line, at_least, at_most, exactly
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


def compiling(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Figure 4a: with every metric a snapshot against none, all else the same."""
    compiler = stack.enter_context(Compiler(stores=()))
    line = Line("S1 4a: compile and load by maps", "snapshot on", "maps")

    def load(probe: ProbeConfig) -> float:
        started = time.perf_counter()
        hooks = Hooks(lambda point: None)
        with compile_probe(compiler, probe, hooks) as compiled:
            loaded = ProgramProbe(compiler, compiled, hooks)
        taken = time.perf_counter() - started
        loaded.close()
        return taken * 1e3

    for maps in effort.of(_MAPS, (1, 10)):
        on, off = (partial(load, many_maps(maps, snapshot)) for snapshot in (True, False))
        yield Case(
            f"compile and load, {maps} maps, every metric a snapshot", "ms", on, off, "no snapshot",
            goal=at_most(1.6), figure="S1 4a", paper="ratio 2.0 to 2.1", line=line, size=maps,
        )  # fmt: skip


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


def throughput(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Figure 4b: packets a second while a snapshot is exported, against none, by turns.

    One stream of frames is cut into short stretches: a machine whose speed drifts by percents then
    shows differences of a tenth of one.
    """
    controller, left, right = stack.enter_context(controller_on_veth())
    controller.add(config("reference", right.ifname, _COUNT % "PASS", agg="sum", snapshot=False))
    controller.add(config("counter", right.ifname, _COUNT % "DROP", agg="sum"), force=True)
    generator = stack.enter_context(Generator(effort.compiler, left))
    stack.enter_context(generator.streaming())
    seconds = effort.of(_STRETCH_S, 0.05)
    for hertz in effort.of(_HERTZ, (100,)):
        yield Case(
            f"packets while a snapshot is exported, period {1 / hertz:g} s", "Mpps",
            partial(pair, controller, hertz, seconds), partial(pair, controller, 0, seconds),
            "no export", goal=at_least(0.99 if hertz > 10 else 0.9985), figure="S1 4b",
            paper="-0.15 % on average, -1.4 % at 100 Hz",
        )  # fmt: skip


def pair(controller: Controller, hertz: float, seconds: float) -> float:
    """Return the mean of two stretches, in millions of packets a second."""
    return sum(stretch(controller, hertz, seconds) for _ in range(2)) / 2e6


def stretch(controller: Controller, hertz: float, seconds: float) -> float:
    """Packets a second over a while, with an export so often."""
    seen = int(controller.export("reference")[0].rows["value"][0])
    started = time.perf_counter()
    end = started + seconds
    due = started + 0.5 / hertz if hertz else math.inf
    while (now := time.perf_counter()) < end:
        if now >= due:
            controller.export("counter")
            due += 1 / hertz
        time.sleep(max(0.0, min(due, end) - time.perf_counter()))
    count = int(controller.export("reference")[0].rows["value"][0]) - seen
    return count / (time.perf_counter() - started)


def exactness(
    name: str, dialects: Sequence[str], pps: float, compiler: Compiler, exports: int,
    replacements: int,
) -> Iterator[Case]:  # fmt: skip
    """Every packet in one window of one generation, while it is exported and replaced.

    `pps` packets a second come, or as many as the machine can send if it is 0.
    """
    counted = {"packets": 0, "windows": 0}

    def add(item: Item) -> None:
        if isinstance(item, Snapshot) and item.probe == "counter":
            values = item.rows["value"]
            total = values["packets"] if values.dtype.names else values
            counted["packets"] += int(total.sum())
            counted["windows"] += 1

    with controller_on_veth() as (controller, left, right):
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
    name = f"{name}, {exports} exports and {replacements} replacements"
    yield Case(f"{name}: rate", "kpps", constant(sent / seconds / 1e3))
    yield Case(f"{name}: packets seen and not in one window", "packets",
               constant(seen - counted["packets"]), goal=exactly(0))  # fmt: skip
    yield Case(f"{name}: windows", "windows", constant(counted["windows"]),
               goal=at_least(exports + replacements))  # fmt: skip
    if pps:
        yield Case(f"{name}: packets sent and not seen", "packets", constant(sent - seen),
                   goal=exactly(0))  # fmt: skip


def swaps(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Replacements of both dialects at full rate, and of each at the rate of a busy host."""
    exports, replacements = effort.of((1000, 200), (4, 4))
    compiler = effort.compiler
    name = "both dialects, live, at full rate"
    yield from exactness(name, list(_VARIANTS), 0, compiler, exports, replacements)
    for dialect in _VARIANTS:
        name = f"dialect of {dialect}, live, {_SWAP_PPS} packets/s"
        yield from exactness(name, [dialect], _SWAP_PPS, compiler, replacements, replacements)


def editing(
    dialect: str, source: str, most_ms: float, stack: ExitStack, effort: Effort
) -> Iterator[Case]:
    """From the key to the first packet that the edited program counts."""
    # Edits that an earlier run has stored would not be compiled.
    stack.callback(_restore, os.environ.get("CACHE_DIRECTORY"))
    os.environ["CACHE_DIRECTORY"] = stack.enter_context(tempfile.TemporaryDirectory())
    waits = edits(stack, source)
    next(waits)  # The first one starts the helper.
    yield Case(f"edit to first packet counted, {dialect}", "ms", partial(next, waits),
               goal=at_most(most_ms))  # fmt: skip


def _restore(store: str | None) -> None:
    if store is None:
        del os.environ["CACHE_DIRECTORY"]
    else:
        os.environ["CACHE_DIRECTORY"] = store


def edits(stack: ExitStack, source: str) -> Iterator[float]:
    """Yield the milliseconds of one edit after the other."""
    controller, left, right = stack.enter_context(controller_on_veth())
    with netns.inside(left.ns):
        command = [sys.executable, "-I", "-c", _TRICKLE, right.ipv4]
        trickle = subprocess.Popen(command)
    stack.callback(trickle.wait)
    stack.callback(trickle.kill)
    name = right.ifname
    controller.add(config("p", name, source % 0, metric="first"))
    for number in itertools.count(1):
        edited = config("p", name, source % number, metric="first")
        started = time.monotonic_ns()
        controller.replace(edited)
        time.sleep(0.02)
        first = int(controller.export("p")[0].rows["value"][0])
        yield (first - started) / 1e6


GROUPS = (
    Group("figure 4a", compiling, 15),
    Group("figure 4b", throughput, 15),
    Group("replacements", swaps, 1, warm=False),
    *(
        Group(f"edits, {name}", partial(editing, name, source, most_ms), 30)
        for name, source, most_ms in (
            ("bcc", _TIMED, 60),
            ("libbpf", _TIMED_FOR_LIBBPF, 80),
            (
                "libbpf with vmlinux.h",
                _TIMED_FOR_LIBBPF.replace("<linux/bpf.h>", '"vmlinux.h"'),
                100,
            ),
        )
    ),
)
