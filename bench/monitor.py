"""The monitor: cost of a packet, live rate, exactness, and how soon a policy acts.

Frames travel only between two namespaces that it makes.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from app.lab import netns
from bench.flow import DROP, FLOWS, PASS, Bench, bench_on, constant, two_queues, varied
from bench.runner.cases import Case, Effort, Group, Line, MissingError, at_least, at_most, exactly
from bench.support.monitored import Monitored
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.machine import possible_cpus
from bpf.syscall import enable_run_time_stats, map_update
from probes.control.controller import Controller
from probes.monitor.engine import PolicyTransition
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import BUILT_IN, Policy
from probes.monitor.state import METRICS_TABLE
from probes.snapshot import Item, Snapshot
from tests.support.generator import Generator, frame
from tests.support.veth import veth_pair

_REPEAT = 2_000_000
_ONE = "1 selection by protocol and port"
_TEN = "10 selections by protocol and port"
_SELECTED = {
    f"{_ONE}, without a packet": ["packets on (proto:udp dport:53)"],
    f"{_ONE}, with every packet": ["packets on (proto:udp dport:2000)"],
    f"{_TEN}, with every packet": [
        f"packets on (proto:udp dport:{2000 - n}-2000)" for n in range(10)
    ],
    "1 selection by a network, with every packet": ["packets on (src:10.0.0.0/8 or src:fd95::/16)"],
    "1 selection with 1 sketch": ["sources on (proto:udp dport:2000)"],
    "1 selection with 3 sketches": [
        f"{part} on (proto:udp dport:2000)" for part in ("sources", "destinations", "ports")
    ],
}
"""Metrics of selections in conditions, by their case."""
_MOST_SELECTED = {f"{_ONE}, with every packet": 3, f"{_TEN}, with every packet": 10}
_CHAIN = (1, 2, 4, 8, 16)
_ACCESSES = """
#include "probe.h"

BPF_HASH(seen, u32, u64, 1048576);

/* So many look-ups and writes of a hash for each packet. */
int
access(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    if (data + 60 > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    u32 key = *(u16 *)(data + 34);
    u64 one = 1;
#pragma unroll
    for (int n = 0; n < ACCESSES; n++) {
        u32 mine = key ^ (n << 16);
        u64 *found = seen.lookup(&mine);
        if (found)
            (*found)++;
        else
            seen.update(&mine, &one);
    }
    return VERDICT_PASS;
}
"""
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


class Costs:
    """Hooks at 25,000 flows, each measured by test runs."""

    def __init__(self, version: int, stack: ExitStack, effort: Effort) -> None:
        self._version, self._stack, self._effort = version, stack, effort
        self._repeat = effort.of(_REPEAT, 5000)

    def bench(self, *sources: str, name: str = "", **macros: object) -> Bench:
        """Return a hook with the stage that varies flows, and one for each source."""
        made = Bench(self._effort.compiler, self._stack)
        varied(made, self._version)
        for source in sources:
            made.add(source, name, **macros)
        return made

    def of(self, bench: Bench) -> partial[float]:
        return partial(bench.test_run, frame(self._version), self._repeat)

    def monitored(self, bits: int = 12) -> tuple[Monitored, partial[float]]:
        bench = self.bench()
        monitored = Monitored(self._effort.compiler, bench, self._stack, bits)
        return monitored, self.of(bench)


def costs(version: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Nanoseconds of the counters, and of selections beyond them."""
    if effort.quick and version == 6:
        return  # It is the code of IPv4.
    at = Costs(version, stack, effort)
    parse = at.of(at.bench(_PARSE, name="parse_alone"))
    ip = f"IPv{version}, {FLOWS} flows"
    yield Case(f"parsing alone, {ip}", "ns", parse, floor=at.of(at.bench()))
    counted = parse
    for bits in effort.of((8, 10, 12, 14), (12,)):
        _, measure = at.monitored(bits)
        counted = measure if bits == 12 else counted
        yield Case(f"8 counters, flags and HLL beyond parsing, b = {bits}, {ip}", "ns", measure,
                   floor=parse, goal=at_most(3))  # fmt: skip
    for name, metrics in _SELECTED.items():
        counting, measure = at.monitored()
        for n, metric in enumerate(metrics):
            counting.policy(f"p{n}: {metric} > 1T -> dns")
        most = _MOST_SELECTED.get(name)
        yield Case(f"{name}, beyond the counters, {ip}", "ns", measure, floor=counted,
                   goal=at_most(most) if most else None)  # fmt: skip
    idle, measure = at.monitored()
    names = ", ".join(idle.count(16))
    for n in range(8):
        idle.policy(f"p{n}: packets > 1T -> {names} on proto:udp dst:10.{n}.0.0/16")
    yield Case(f"16 applications, 8 policies with tables, none active, beyond parsing, {ip}", "ns",
               measure, floor=parse, goal=at_most(5))  # fmt: skip


def router(version: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Nanoseconds of the router and its applications, beside as many tail calls (figure 5 of S2).

    The share of a core counts all programs of the hook at 2 million packets a second.
    """
    if effort.quick and version == 6:
        return  # It is the code of IPv4.
    at = Costs(version, stack, effort)
    parse = at.of(at.bench(_PARSE, name="parse_alone"))
    nothing = at.of(at.bench())
    ip = f"IPv{version}, {FLOWS} flows"
    grows = Line(f"Chained applications, IPv{version}", "applications", "applications")
    share = Line(f"S2 5: a core at 2 Mpps by applications, IPv{version}", "share", "applications")
    other, measure = at.monitored()
    other.count(1)
    other.policy("p: always -> count0 on proto:sctp")
    yield Case(f"router, 1 table, no match, {ip}", "ns", measure, floor=parse)
    for number in effort.of(_CHAIN, (1, 2)):
        every, measure = at.monitored()
        every.policy(f"p: always -> {', '.join(every.count(number))}")
        chained = at.bench(_PARSE, name="parse_alone")
        for _ in range(number):
            chained.add(PASS, "pass")
        calls = at.of(chained)
        yield Case(f"router, {number} applications that count, beside tail calls, {ip}", "ns",
                   measure, calls, f"{number} tail calls", parse, line=grows,
                   size=number)  # fmt: skip
        if number == _CHAIN[-1]:
            yield Case(f"router, {number} applications that count, {ip}", "ns", measure,
                       floor=parse, goal=at_most(200))  # fmt: skip
        yield Case(
            f"share of a core at 2 Mpps, {number} applications, {ip}", "%",
            lambda m=measure: (m() - nothing()) * 0.2, figure="S2 5",  # type: ignore[misc]
            paper="small steps; busy polling takes 100 % always", line=share, size=number,
        )  # fmt: skip
    tables, measure = at.monitored()
    tables.count(1)
    tables.policy("p: always -> count0 on proto:udp or proto:tcp dport:80")
    tables.policy("q: always -> count0 on src:1.0.0.0/8 or dst:10.0.0.0/16")
    yield Case(f"router, 4 tables, 1 matches, 1 application that counts, {ip}", "ns", measure,
               floor=parse)  # fmt: skip
    for name in effort.of(BUILT_IN, BUILT_IN[:1]):
        app, measure = at.monitored()
        app.built_in(name)
        app.policy(f"p: always -> {name}")
        yield Case(f"router, everything to {name}, {ip}", "ns", measure, floor=parse)


def policies(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The cost of a packet by the number of policies that watch and select, none active."""
    at = Costs(4, stack, effort)
    line = Line("Cost of a packet by idle policies", "monitor", "policies", at_most(0.1))
    for count in effort.of((1, 10, 20, 40), (1, 10)):
        watching, measure = at.monitored()
        for number in range(count):
            text = f"p{number}: packets > 1T -> dns on proto:udp dst:10.{number}.0.0/16"
            watching.policy(text)
        yield Case(f"monitor, {count} idle policies, {FLOWS} flows", "ns", measure, line=line,
                   size=count)  # fmt: skip


def accesses(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Throughput by map accesses of a packet (figure 6 of S2)."""
    at = Costs(4, stack, effort)
    line = Line("S2 6: throughput by map accesses", "look-up and write", "accesses", fit=False)
    for number in effort.of((1, 2, 4, 8, 16, 32), (1, 16)):
        run = at.of(at.bench(_ACCESSES, name="access", ACCESSES=number))
        yield Case(
            f"throughput of one core, {number} map accesses, {FLOWS} flows", "Mpps",
            lambda run=run: 1e3 / run(), figure="S2 6",  # type: ignore[misc]
            paper="a falling curve", line=line, size=number,
        )  # fmt: skip


def live(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Packets a second over a veth, each then dropped: parsed, or monitored too."""
    frames = effort.of(6_000_000, 5000)

    def measure(name: str) -> float:
        with bench_on(effort.compiler) as (bench, left), ExitStack() as inner:
            if name == "parse":
                bench.add(_PARSE, "parse_alone")
            else:
                monitor = Monitored(effort.compiler, bench, inner)
                inner.callback(bench.poller(monitor.probe, lambda _: None).stop)
            bench.add(DROP, "drop")
            with Generator(effort.compiler, left, flows=FLOWS) as generator:
                generator.send(frames)
                return frames / generator.seconds / 1e6

    yield Case(f"live, 8 counters and HLL, a swap each 100 ms, {FLOWS} flows", "Mpps",
               partial(measure, "monitor"), partial(measure, "parse"), "parsing alone",
               goal=at_least(0.98))  # fmt: skip


def cores(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Throughput of the monitor and of one application more, on 1 and 2 cores (figure 7 of S2)."""
    if possible_cpus() < 2:
        raise MissingError("this machine has one CPU")
    frames = effort.of(4_000_000, 5000)

    def measure(name: str, count: int) -> float:
        with two_queues(effort.compiler) as (bench, left), ExitStack() as inner:
            monitor = Monitored(effort.compiler, bench, inner)
            if name:
                monitor.built_in(name)
                monitor.policy(f"p: always -> {name}")
            inner.callback(bench.poller(monitor.probe, lambda _: None).stop)
            bench.add(DROP, "drop")
            senders = []
            for cpu in range(count):
                made = Generator(effort.compiler, left, flows=FLOWS, cpu=cpu)
                generator = inner.enter_context(made)
                senders.append(threading.Thread(target=generator.send, args=(frames,)))
            started = time.perf_counter()
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            return count * frames / (time.perf_counter() - started) / 1e6

    for name in effort.of(("", "accounting", "half_open", "dns"), ("",)):
        words = f"the monitor{f' and {name}' if name else ''}, live, {FLOWS} flows a core"
        one, two = partial(measure, name, 1), partial(measure, name, 2)
        yield Case(f"{words}, 2 cores", "Mpps", two, one, "1 core", figure="S2 7",
                   paper="2 cores are ahead once an application runs",
                   goal=at_least(1) if name else None)  # fmt: skip


def _rows(items: Sequence[Item], metric: str) -> Array:
    found = [i.rows for i in items if isinstance(i, Snapshot) and i.metric == metric]
    return np.concatenate(found)


def exactness(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Policies that come and go ten times a second, at full rate."""
    frames = effort.of(24_000_000, 20_000)
    with bench_on(effort.compiler) as (bench, left), ExitStack() as inner:
        monitor = Monitored(effort.compiler, bench, inner)
        names = monitor.count(3)
        monitor.policy(f"a: operator -> {names[0]}, {names[1]} on proto:udp")
        monitor.policy(f"b: operator -> {names[1]}, {names[2]} on sport:1024,1025 or dport:2000")
        items: list[Item] = []
        poller = bench.poller(monitor.probe, items.append)
        bench.add(DROP, "drop")
        with run_counts(), Generator(effort.compiler, left, flows=500) as generator:
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
    name = f"{frames} live packets while 2 policies toggle"
    yield Case(f"{name}: rate", "Mpps", constant(rate))
    yield Case(f"{name}: toggles of each", "toggles", constant(toggles))
    yield Case(f"{name}: missing in windows", "packets", constant(seen - counted), goal=exactly(0))
    due = {"count0": selected["a"], "count1": selected["a"] + selected["b"],
           "count2": selected["b"]}  # fmt: skip
    wrong = sum(abs(given[name] - number) for name, number in due.items())
    yield Case(f"{name}: selected and not given, or the reverse", "packets", constant(wrong),
               goal=exactly(0))  # fmt: skip


@contextmanager
def run_counts() -> Iterator[None]:
    """The kernel counts the runs of programs as long as this lasts."""
    fd = enable_run_time_stats()
    try:
        yield
    finally:
        os.close(fd)


def reaction(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """From the end of the window in which a condition holds to its application's running."""
    left, right = stack.enter_context(veth_pair())
    with netns.inside(right.ns), Controller() as controller:
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
        with Generator(effort.compiler, left, flows=10) as generator:
            for _ in range(effort.of(50, 2)):
                generator.send(1000)
                time.sleep(0.35)
    name = f"from a window's end to the application's running, {len(late)} times"
    yield Case(f"{name}: median", "ms", constant(float(np.median(late))))
    yield Case(f"{name}: latest", "ms", constant(max(late)), goal=at_most(5))


def flood(bits: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """The paper's figure 8: the estimate against an exact count, and a flood from a set moment."""
    windows, flooded = 40, range(20, 30)
    bench = Bench(effort.compiler, stack)
    flooding = bench.add(_FLOOD, "flood")
    exact = bench.add_flow()
    monitor = Monitored(effort.compiler, bench, stack, bits)
    conditions = {"level": "flows > 1500", "anomaly": "flows > 2 * baseline(200ms)"}
    for name, condition in conditions.items():
        monitor.policy(f"{name}: {condition} -> accounting")
    counts: list[tuple[float, int]] = []
    active: dict[str, list[int]] = {name: [] for name in conditions}
    for window in range(windows):
        value = int(window in flooded).to_bytes(4, "little")
        map_update(flooding.map_fd("on"), bytes(4), value)
        bench.test_run(frame(4), 40_000)
        time.sleep(0.02)
        items = monitor.probe.export()
        estimate = float(_rows(items, METRICS_TABLE)["flows"][0])
        counts.append((estimate, len(exact.poll().rows)))
        for standing in monitor.probe.policies():
            if standing.state.runs:
                active[standing.policy.name].append(window)
    errors = np.array([estimate / count - 1 for estimate, count in counts])
    error = 1.04 / math.sqrt(1 << bits)
    words, paper = (
        f"b = {bits}, {windows} windows, a flood in 10",
        "follows closely, reacts at once",
    )
    yield Case(f"distinct flows, {words}: RMS error, in standard errors", "",
               constant(float(np.sqrt(np.mean(errors**2))) / error), goal=at_most(1),
               figure="S2 8", paper=paper)  # fmt: skip
    yield Case(f"distinct flows, {words}: largest error, in standard errors", "",
               constant(float(np.abs(errors).max()) / error), goal=at_most(4), figure="S2 8",
               paper=paper)  # fmt: skip
    for name, found in active.items():
        wrong = len(set(found) ^ set(flooded))
        yield Case(f"windows in which `{conditions[name]}` is wrong, {words}", "windows",
                   constant(wrong), goal=exactly(0), figure="S2 8", paper=paper)  # fmt: skip
    line = Line(f"S2 8: estimate by window, b = {bits}", "estimate", "windows", fit=False)
    for number, (estimate, count) in enumerate(counts, 1):
        yield Case(f"distinct flows, b = {bits}, window {number}", "flows", constant(estimate),
                   constant(count), "exact", line=line, size=number)  # fmt: skip


GROUPS = (
    Group("counters and selections, IPv4", partial(costs, 4)),
    Group("counters and selections, IPv6", partial(costs, 6)),
    Group("router, IPv4", partial(router, 4)),
    Group("router, IPv6", partial(router, 6)),
    Group("idle policies", policies),
    Group("map accesses", accesses),
    Group("live", live, 9),
    Group("one core and two", cores, 3, warm=False),
    Group("every packet", exactness, 1, warm=False),
    Group("a flood, b = 8", partial(flood, 8), 1, warm=False),
    Group("a flood, b = 12", partial(flood, 12), 1, warm=False),
    Group("reaction", reaction, 1, warm=False),
)
