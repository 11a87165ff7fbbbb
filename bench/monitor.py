"""The monitor: cost of a packet, live rate, exactness, and how soon a policy acts.

    python -I -m bench.monitor [--frames 6000000] [--rounds 9]

Needs root; sends only between two namespaces that it makes. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from app.lab import netns
from bench.flow import DROP, FLOWS, VARY, Bench, bench_on
from bench.support.report import Report
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import enable_run_time_stats, map_update, prog_test_run
from probes.config.model import parse
from probes.control.controller import Controller
from probes.monitor.applications import catalog
from probes.monitor.applications.application import ApplicationProbe
from probes.monitor.engine import PolicyTransition
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import BUILT_IN, Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.state import METRICS_TABLE
from probes.program.loading import compile_probe
from probes.snapshot import Item, Snapshot
from tests.support.generator import Generator, frame
from tests.support.veth import veth_pair

_REPEAT = 2_000_000
_COUNTED = "8 counters, flags and HLL, b = 12"
_PARTS = ("sources", "destinations", "ports")
_ONE = "+ 1 selection by protocol and port, with every packet"
_SELECTED = {
    "+ 1 selection by protocol and port, without a packet": ["packets on (proto:udp dport:53)"],
    _ONE: ["packets on (proto:udp dport:2000)"],
    "+ 10 selections by protocol and port, with every packet": [
        f"packets on (proto:udp dport:{2000 - n}-2000)" for n in range(10)
    ],
    "+ 1 selection by a network, with every packet": [
        "packets on (src:10.0.0.0/8 or src:fd95::/16)"
    ],
    "+ 1 selection with 1 sketch": ["sources on (proto:udp dport:2000)"],
    "+ 1 selection with 3 sketches": [f"{part} on (proto:udp dport:2000)" for part in _PARTS],
}
"""Metrics of selections in conditions, by their line."""
_PARSE = """
#include "packet.h"

BPF_PERCPU_ARRAY(last, struct packet, 1);

/* Parsing alone: what is found is kept, or the compiler would not look for it. */
int
parse_alone(struct xdp_md *ctx)
{
    u32 zero = 0;
    struct packet packet = {}, *kept = last.lookup(&zero);
    if (!kept || parse_packet(ctx, &packet) != PARSED)
        return VERDICT_PASS;
    *kept = packet;
    return VERDICT_PASS;
}
"""
_FLOOD = """
#include "probe.h"

BPF_ARRAY(on, u32, 1);

/* A thousand flows; while `on`, one packet in ten is another's, from anywhere. */
int
flood(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    u32 zero = 0, random = bpf_get_prandom_u32(), *flooded = on.lookup(&zero);
    if (data + 60 > (void *)(long)ctx->data_end || !flooded)
        return XDP_ABORTED;
    if (*flooded && random % 10 == 0) {
        *(u32 *)(data + 26) = bpf_get_prandom_u32();
        *(u32 *)(data + 34) = bpf_get_prandom_u32();
    } else {
        *(u32 *)(data + 26) = bpf_htonl(0x0a5f4000u + random % 1000);
        *(u32 *)(data + 34) = 1;
    }
    return VERDICT_PASS;
}
"""
_COUNTING = """
#include "application.h"

BPF_PERCPU_ARRAY(totals, u64, 1);

APPLICATION(counting) {
    u32 zero = 0;
    u64 *total = totals.lookup(&zero);
    if (total)
        *total += packet->packets;
}
"""


class Monitored:
    """The monitor on a bench's hook, with policies that a test sets."""

    def __init__(self, compiler: Compiler, bench: Bench, stack: ExitStack, bits: int = 12) -> None:
        self._compiler, self._bench, self._stack = compiler, bench, stack
        options = MonitorOptions(bits=bits, ingress=Hook.XDP)
        self.probe = MonitorProbe(compiler, bench.interface, bench.hooks, options)
        stack.callback(self.probe.close)

    def count(self, number: int) -> list[str]:
        """So many applications that only count, loaded and in no policy."""
        names = [f"count{n}" for n in range(number)]
        for name in names:
            metric = {"name": "totals", "map": "totals", "agg": "sum"}
            direction = {"interface": self._bench.interface.name, "hook": "monitor",
                         "source": _COUNTING, "metrics": [metric]}  # fmt: skip
            self._load(parse({"name": name, "interval": 0, "ingress": direction}, "bench"))
        return names

    def built_in(self, name: str) -> None:
        self._load(catalog.built_in(name, self._bench.interface.name))

    def policy(self, text: str) -> None:
        policy = Policy.parse_short(text)
        self.probe.set_policy(policy, policy.run)

    def _load(self, config: object) -> None:
        with (
            netns.inside(self._bench.space),
            closing(
                compile_probe(self._compiler, config, self._bench.hooks)  # type: ignore[arg-type]
            ) as compiled,
        ):
            probe = ApplicationProbe(self._compiler, compiled, self._bench.hooks)
        self._stack.callback(probe.close)


def costs(compiler: Compiler, report: Report, version: int, rounds: int) -> None:
    """Nanoseconds a packet at 25,000 flows, by test runs, interleaved."""
    places = {"ADDRESS_AT": 26 if version == 4 else 34, "PORT_AT": 34 if version == 4 else 54}
    with ExitStack() as stack:
        fds: dict[str, int] = {}

        def bench(name: str) -> Bench:
            made, _ = stack.enter_context(bench_on(compiler))
            made.add(VARY, "vary", FLOWS=FLOWS, **places)
            fds[name] = made.point.chain.fd
            return made

        def monitored(name: str, bits: int = 12) -> Monitored:
            return Monitored(compiler, bench(name), stack, bits)

        bench("nothing")
        bench("parse alone").add(_PARSE, "parse_alone")
        for bits in (8, 10, 12, 14):
            monitored(f"8 counters, flags and HLL, b = {bits}", bits)
        for name, metrics in _SELECTED.items():
            counting = monitored(name)
            for n, metric in enumerate(metrics):
                counting.policy(f"p{n}: {metric} > 1T -> dns")
        idle = monitored("16 applications, 8 policies with tables, none active")
        names = ", ".join(idle.count(16))
        for n in range(8):
            idle.policy(f"p{n}: packets > 1T -> {names} on proto:udp dst:10.{n}.0.0/16")
        other = monitored("router: 1 table, which does not match")
        other.count(1)
        other.policy("p: always -> count0 on proto:sctp")
        for number in (1, 2, 4, 8, 16):
            every = monitored(f"router: everything to {number} applications that count")
            every.policy(f"p: always -> {', '.join(every.count(number))}")
        tables = monitored("router: 4 tables, 1 matches, 1 application that counts")
        tables.count(1)
        tables.policy("p: always -> count0 on proto:udp or proto:tcp dport:80")
        tables.policy("q: always -> count0 on src:1.0.0.0/8 or dst:10.0.0.0/16")
        for name in BUILT_IN:
            app = monitored(f"router: everything to {name}")
            app.built_in(name)
            app.policy(f"p: always -> {name}")
        times: dict[str, list[int]] = {name: [] for name in fds}
        packet = frame(version)
        for _ in range(rounds + 1):
            for name, fd in fds.items():
                times[name].append(prog_test_run(fd, packet, repeat=_REPEAT).duration_ns)
    medians = {name: statistics.median(t[1:]) for name, t in times.items()}
    floor, counted = medians["parse alone"], medians[_COUNTED]
    for name, median in medians.items():
        text = f"{median:.0f} ns, {median - floor:+.0f} to parsing"
        if name.startswith(("8 counters", "16 applications")):
            report.target(f"IPv{version}: {name}", text, median - floor <= 5)
        elif name in _SELECTED:
            text = f"{median:.0f} ns, {median - counted:+.0f} to the counters"
            report.target(f"IPv{version}: {name}", text, median - counted <= 3 or name != _ONE)
        else:
            report.row(f"IPv{version}: {name}", text)


def live_rate(compiler: Compiler, report: Report, frames: int, rounds: int) -> None:
    """Millions of packets a second over a veth, each then dropped: parsed, or monitored too."""
    rates: dict[str, list[float]] = {"parse": [], "monitor": []}
    for number in range(2 * rounds):
        name = ("parse", "monitor")[number % 2]
        with bench_on(compiler) as (bench, left), ExitStack() as stack:
            if name == "parse":
                bench.add(_PARSE, "parse_alone")
            else:
                monitor = Monitored(compiler, bench, stack)
                stack.callback(bench.poller(monitor.probe, lambda _: None).stop)
            bench.add(DROP, "drop")
            with Generator(compiler, left, flows=FLOWS) as generator:
                generator.send(frames)
                rates[name].append(frames / generator.seconds / 1e6)
    parsed, monitored = (statistics.median(rate) for rate in rates.values())
    ratio = statistics.median(b / a for a, b in zip(*rates.values(), strict=True))
    report.target(
        "live, 8 counters and HLL, a swap each 100 ms",
        f"{monitored:.2f} of {parsed:.2f} Mpps by parsing alone; median of pairs {ratio:.3f}",
        ratio >= 0.98,
    )


def _rows(items: Sequence[Item], metric: str) -> Array:
    found = [i.rows for i in items if isinstance(i, Snapshot) and i.metric == metric]
    return np.concatenate(found)


def exactness(compiler: Compiler, report: Report, frames: int) -> None:
    """Policies that come and go ten times a second, at full rate."""
    with bench_on(compiler) as (bench, left), ExitStack() as stack:
        monitor = Monitored(compiler, bench, stack)
        names = monitor.count(3)
        monitor.policy(f"a: operator -> {names[0]}, {names[1]} on proto:udp")
        monitor.policy(f"b: operator -> {names[1]}, {names[2]} on sport:1024,1025 or dport:2000")
        items: list[Item] = []
        poller = bench.poller(monitor.probe, items.append)
        bench.add(DROP, "drop")
        with run_counts(), Generator(compiler, left, flows=500) as generator:
            sender = threading.Thread(target=generator.send, args=(frames,))
            sender.start()
            toggles = 0
            while sender.is_alive():
                for name in "ab":
                    monitor.probe.activate(name)
                    time.sleep(0.03)
                    monitor.probe.deactivate(name)
                    time.sleep(0.02)
                toggles += 1
            sender.join()
            time.sleep(0.1)
            seen = bench.point.chain.info().run_count
            rate = frames / generator.seconds / 1e6
        poller.stop()
        given, selected = monitor.probe.router.given(), monitor.probe.router.selected()
        counted = int(_rows(items, METRICS_TABLE)["packets"].sum())
    report.target(
        f"{rate:.1f} Mpps, {toggles} x 2 activations and deactivations",
        f"{seen} seen, {counted} in windows; {selected} selected, {given} given",
        counted == seen
        and given["count0"] == selected["a"] > 0
        and given["count2"] == selected["b"]
        and given["count1"] == selected["a"] + selected["b"],
    )


@contextmanager
def run_counts() -> Iterator[None]:
    """The kernel counts the runs of programs as long as this lasts."""
    fd = enable_run_time_stats()
    try:
        yield
    finally:
        os.close(fd)


def reaction(report: Report, rounds: int) -> None:
    """From the end of the window in which a condition holds to its application's running."""
    with ExitStack() as stack:
        left, right = stack.enter_context(veth_pair())
        stack.enter_context(netns.inside(right.ns))
        controller = stack.enter_context(Controller())
        controller.watch_metrics(right.ifname, MonitorOptions(interval=0.1, ingress=Hook.XDP))
        for number in range(5):
            text = f"p{number}: flows > 100 * baseline(60s) + {number} or packets > 1T -> dns"
            controller.set_policy(Policy.parse_short(text))
        controller.set_policy(Policy.parse_short("here: udp_packets > 20 -> accounting"))
        late: list[float] = []

        def measure(transitions: Sequence[PolicyTransition]) -> None:
            now = time.monotonic_ns()
            late.extend((now - each.at_ns) / 1e6 for each in transitions if each.after.runs)

        controller._monitored().probe.changed = measure
        compiler = stack.enter_context(Compiler())
        with Generator(compiler, left, flows=10) as generator:
            for _ in range(rounds):
                generator.send(1000)
                time.sleep(0.35)
    report.target(
        f"window's end to the application's running, {len(late)} times",
        f"median {np.median(late):.2f} ms, p95 {np.percentile(late, 95):.2f}, most {max(late):.2f}",
        max(late) <= 5,
    )


def flood(compiler: Compiler, report: Report) -> None:
    """The paper's figure 8: the estimate against an exact count, and a flood from a set moment."""
    windows, flooded = 40, range(20, 30)
    with bench_on(compiler) as (bench, _), ExitStack() as stack:
        flooding = bench.add(_FLOOD, "flood")
        exact = bench.add_flow()
        monitor = Monitored(compiler, bench, stack)
        conditions = {"level": "flows > 1500", "anomaly": "flows > 2 * baseline(200ms)"}
        for name, condition in conditions.items():
            monitor.policy(f"{name}: {condition} -> accounting")
        errors: list[float] = []
        active: dict[str, list[int]] = {name: [] for name in conditions}
        for window in range(windows):
            value = int(window in flooded).to_bytes(4, "little")
            map_update(flooding.map_fd("on"), bytes(4), value)
            prog_test_run(bench.point.chain.fd, frame(4), repeat=40_000)
            time.sleep(0.02)
            items = monitor.probe.export()
            count = len(exact.poll().rows)
            errors.append(float(_rows(items, METRICS_TABLE)["flows"][0]) / count - 1)
            for standing in monitor.probe.policies():
                if standing.state.runs:
                    active[standing.policy.name].append(window)
    worst, rms = max(map(abs, errors)), float(np.sqrt(np.mean(np.square(errors))))
    report.target(
        "estimate against exact counts, b = 12",
        f"RMS {rms:.2%}, worst {worst:.2%} of {windows} windows",
        rms <= 1.04 / 64,
    )
    for name, found in active.items():
        report.target(
            f"a flood in windows {flooded[0]} to {flooded[-1]}: {conditions[name]}",
            f"active after windows {found[0]} to {found[-1]}" if found else "never active",
            found == list(flooded),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=6_000_000, help="of a live measurement")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    report = Report("The monitor")
    parts: list[Callable[[Compiler], None]] = [
        lambda c: costs(c, report, 4, options.rounds),
        lambda c: costs(c, report, 6, options.rounds),
        lambda c: live_rate(c, report, options.frames, options.rounds),
        lambda c: exactness(c, report, 4 * options.frames),
        lambda c: flood(c, report),
    ]
    with Compiler() as compiler:
        for part in parts:
            part(compiler)
    reaction(report, 50)
    report.end()


if __name__ == "__main__":
    main()
