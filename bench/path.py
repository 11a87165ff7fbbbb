"""Path tracing: what it costs, how true it is, and that every probe is accounted for.

In a lab of namespaces. Against the truth where cables have a known delay, and against pings that
are sent to the same routers at the same time where a queue decides.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import numpy as np

from app.lab.network import Lab
from app.lab.plan import Detour, LabPlan
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, Line, MissingError, at_least, at_most, exactly
from bench.support.application import FROM_PORT, PORT, closing_fd, running
from bench.support.traced_lab import application, network, rtts, traced
from bpf.abi import ProgType
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.programs.program import VERDICT_PASS, pack
from bpf.syscall import prog_load, prog_test_run
from probes.hooks import Hooks
from probes.path.analysis.branches import kolmogorov_smirnov
from probes.path.options import PathOptions, TracedFlow
from probes.path.probe import PathProbe
from probes.path.records import ProbeOutcome
from tests.support.generator import frame
from tests.support.lab_truth import delay, hops, interface_counters

_HOPS = 6
_ROUTERS = range(1, _HOPS + 1)
_PACKETS = 1000
"""Per second of the application that is traced."""
_SETTLE_S = 2.0
_SWITCH_S = 1.0
"""After tracing was begun or ended: what compiling takes from the transfer is over then."""
_REPEAT = 1_000_000
_MOST_NS = 4
"""Most that a packet of another flow may cost, the chain's dispatcher included."""
_SURE = 0.001
_MEGABITS = (20, 500)


def cost(ingress: Hook, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """A packet of another flow, by BPF_PROG_TEST_RUN, above a program that only returns."""
    hooks = Hooks(lambda point: None)
    floors = {}
    for kind in (ProgType.XDP, ProgType.SCHED_CLS):
        code = pack([(0xB7, 0, 0, VERDICT_PASS[kind]), (0x95, 0, 0, 0)])
        floors[kind] = prog_load(code, kind, "floor")
        stack.callback(os.close, floors[kind])
    probe = PathProbe(effort.compiler, Interface("lo", 1, True), ingress, hooks)
    stack.enter_context(closing(probe))
    probe.trace("192.0.2.1")
    chains = {point.hook: point.chain.fd for point in hooks.in_use()}
    repeat = effort.of(_REPEAT, 5000)

    def run(fd: int, packet: bytes) -> float:
        return prog_test_run(fd, packet, repeat=repeat).duration_ns

    for version in (4, 6):
        for hook in (ingress, Hook.TC_EGRESS):
            beside = f" beside {ingress.value}" if hook is Hook.TC_EGRESS else ""
            packet = frame(version)
            yield Case(
                f"traced host, IPv{version} packet of another flow, {hook.value}{beside}", "ns",
                partial(run, chains[hook], packet),
                floor=partial(run, floors[hook.prog_type], packet), goal=at_most(_MOST_NS),
            )  # fmt: skip


def destinations(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """A packet of another flow by the number of traced destinations."""
    line = Line("A packet of another flow by destinations", "traced host", "destinations",
                at_most(0.1))  # fmt: skip
    repeat = effort.of(_REPEAT, 5000)
    for count in effort.of((1, 8, 32, 128), (1, 8)):
        hooks = Hooks(lambda point: None)
        options = PathOptions(destinations=count)
        probe = PathProbe(effort.compiler, Interface("lo", 1, True), Hook.XDP, hooks, options)
        stack.enter_context(closing(probe))
        for number in range(count):
            probe.trace(f"192.0.2.{number + 1}")
        fd = next(each.chain.fd for each in hooks.in_use() if each.hook is Hook.TC_EGRESS)
        yield Case(
            f"traced host, IPv4 packet of another flow, tc egress, {count} destinations", "ns",
            lambda fd=fd: prog_test_run(fd, frame(4), repeat=repeat).duration_ns,  # type: ignore[misc]
            line=line, size=count,
        )  # fmt: skip


def truth(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Idle, with cables of known delay."""
    plan = LabPlan(_HOPS, bottleneck_bits=0, delays={1: 0.005, 3: 0.01, 5: 0.002})
    seconds = effort.of(5, 1)
    lab = stack.enter_context(network(plan))
    for version, server in effort.of(
        ((4, lab.server_ipv4), (6, lab.server_ipv6)), ((4, lab.server_ipv4),)
    ):
        pinged = [
            getattr(plan.addresses(name), f"ipv{version}") for (name, *_) in hops(plan)[:_HOPS]
        ]
        for kind in effort.of(("udp", "tcp", "echo"), ("udp",)):
            with (
                traced(lab, server) as (_, collected),
                application(lab, kind, server, seconds + 1, _PACKETS),
                closing_fd(lab.open_namespace()) as here,
                running("ping", seconds, 100, *pinged, node_fd=here) as pings,
            ):
                answers = _pings(pings)
            rows = collected.rows()
            yield _account(f"{kind}, IPv{version}, idle", rows)
            for hop in _ROUTERS:
                name = f"{kind}, IPv{version}, idle, hop {hop}"
                ours, theirs = rtts(rows, hop, version), answers[hop - 1][:, 1]
                yield from _compare(name, ours, theirs, delay(plan, hop))


def _pings(process: subprocess.Popen[str]) -> list[Array]:
    """By address (n, 2): when it was sent, and its round-trip time, in ns."""
    assert process.stdout
    lines = [list(map(int, line.split())) for line in process.stdout]
    table = np.array(lines, "i8").reshape(-1, 3)
    return [table[table[:, 0] == n][:, 1:] for n in range(_HOPS)]


def _compare(name: str, ours: Array, theirs: Array, delay: float) -> Iterator[Case]:
    """Compare with the cables' delays, which are off by some 50 us, like the pings."""
    if not len(ours) or not len(theirs):
        yield Case(f"{name}: hops without an answer", "hops", constant(1), goal=exactly(0))
        return
    error, of_pings = ((np.median(rtts) - delay * 1e9) / 1e3 for rtts in (ours, theirs))
    excess = (np.percentile(ours, 95) - np.percentile(theirs, 95)) / 1e3
    least = min(abs(error), abs(error - of_pings))
    yield Case(f"{name}: median, error to the cables' {delay * 1e3:.0f} ms or to pings", "us",
               constant(float(least)), goal=at_most(50))  # fmt: skip
    yield Case(f"{name}: 95th percentile, above that of pings", "us", constant(float(excess)),
               goal=at_most(500))  # fmt: skip


def _account(name: str, rows: Array) -> Case:
    lost = np.isin(rows["outcome"], (ProbeOutcome.UNANSWERED, ProbeOutcome.OVERRUN)).sum()
    return Case(f"{name}: probes without an answer, of {len(rows)}", "probes",
                constant(float(lost)), goal=exactly(0))  # fmt: skip


def queue(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """A bulk transfer fills the 200 ms of the bottleneck; pings go by beside (figure 1 of S3)."""
    plan, seconds = LabPlan(_HOPS), effort.of(3, 1)
    lab = stack.enter_context(network(plan))
    versions = ((4, lab.server_ipv4), (6, lab.server_ipv6))
    for version, server in effort.of(versions, versions[:1]):
        pinged = [
            getattr(plan.addresses(name), f"ipv{version}") for (name, *_) in hops(plan)[:_HOPS]
        ]
        # Packets that come evenly, as pings do: a transfer's own come when the queue has just
        # given one up.
        flows = {
            "udp": TracedFlow(17, FROM_PORT, PORT),
            "tcp": TracedFlow(6, FROM_PORT, PORT),
            "echo": TracedFlow(1 if version == 4 else 58, 0, 0),
        }
        with closing_fd(lab.open_namespace()) as here, application(lab, "bulk", server, 20):
            time.sleep(_SETTLE_S)
            for kind in effort.of(tuple(flows), ("udp",)):
                with traced(lab) as (controller, collected):
                    controller.trace(server, flows[kind])
                    other = running(kind, server, seconds + 0.5, 500, node_fd=here)
                    with other, running("ping", seconds, 100, *pinged, node_fd=here) as pings:
                        answers = _pings(pings)
                rows = collected.rows()
                name = f"{kind}, IPv{version}, beside a bulk transfer"
                yield _account(name, rows)
                line = Line(f"S3 1: round-trip time by hop, {kind}, IPv{version}", "probedeck",
                            "hops", fit=False)  # fmt: skip
                for hop in _ROUTERS:
                    found = rows[(rows["hop"] == hop) & (rows["outcome"] == ProbeOutcome.ANSWERED)]
                    yield from _pair(f"{name}, hop {hop}", found, answers[hop - 1], line, hop)
                medians = [float(np.median(rtts(rows, hop, version))) for hop in _ROUTERS]
                rises = 1 + int(np.argmax(np.diff([0.0, *medians])))
                yield Case(f"{name}: hop at which the round-trip time rises most", "",
                           constant(rises), goal=exactly(4), figure="S3 1",
                           paper="the queue is at the right hop")  # fmt: skip


def _pair(name: str, ours: Array, pings: Array, line: Line, hop: int) -> Iterator[Case]:
    """Each of ours with the ping that was sent nearest to it: the queue is never twice the same."""
    near = np.zeros(0, bool)
    if len(ours) and len(pings) > 1:
        at = np.searchsorted(pings[:, 0], ours["sent_ns"]).clip(1, len(pings) - 1)
        before = ours["sent_ns"] - pings[at - 1, 0] < pings[at, 0] - ours["sent_ns"]
        nearest = np.where(before, at - 1, at)
        near = np.abs(ours["sent_ns"] - pings[nearest, 0]) < 5_000_000
    if not near.any():
        yield Case(f"{name}: hops without an answer near a ping", "hops", constant(1),
                   goal=exactly(0))  # fmt: skip
        return
    mine, theirs = (ours["received_ns"] - ours["sent_ns"])[near], pings[nearest[near], 1]
    error = abs(np.median(mine - theirs)) / 1e3
    excess = (np.percentile(mine, 95) - np.percentile(theirs, 95)) / 1e3
    yield Case(f"{name}: median round-trip time", "ms", constant(float(np.median(mine)) / 1e6),
               constant(float(np.median(theirs)) / 1e6), "the nearest pings", figure="S3 1",
               paper="the queue is at the right hop", line=line, size=hop)  # fmt: skip
    yield Case(f"{name}: median error to the nearest ping", "us", constant(float(error)),
               goal=at_most(50))  # fmt: skip
    yield Case(f"{name}: 95th percentile, above that of pings", "us", constant(float(excess)),
               goal=at_most(500))  # fmt: skip


def rates(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """100 probes/s a hop and far more: all matched, or counted."""
    lab = stack.enter_context(network(LabPlan(_HOPS, bottleneck_bits=0)))
    all_rates = ((100, 1), (1000, 2), (3000, 4), (8500, 8))
    for rate, burst in effort.of(all_rates, all_rates[:1]):
        with (
            traced(lab, lab.server_ipv4, rate=rate, burst=burst, max_hops=_HOPS) as (_, collected),
            application(lab, "udp", lab.server_ipv4, effort.of(5, 2), 20_000),
        ):
            time.sleep(effort.of(3, 1))
        rows = collected.rows()
        elapsed = (rows["sent_ns"].max() - rows["sent_ns"].min()) / 1e9
        name = f"probing at {rate} a hop and second"
        yield Case(f"{name}: rate", "probes/s", constant(len(rows) / elapsed))
        if rate <= 1000:
            yield _account(name, rows)


def throughput(megabits: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """One bulk transfer, traced and not, by turns."""
    if effort.quick and megabits != _MEGABITS[0]:
        return  # One transfer is enough to pass its code.
    plan = LabPlan(_HOPS, bottleneck_bits=megabits * 1_000_000)
    lab = stack.enter_context(network(plan))
    seconds = effort.of(200, 10)
    process = stack.enter_context(application(lab, "bulk", lab.server_ipv4, seconds))
    controller, _ = stack.enter_context(traced(lab))
    assert process.stdout
    out = process.stdout
    time.sleep(effort.of(4, 0.5))

    def transfer(is_traced: bool) -> float:
        """Return the megabits a second of one second."""
        if is_traced:
            controller.trace(lab.server_ipv4)
        time.sleep(effort.of(_SWITCH_S, 0.3))
        _skip(process)
        taken = statistics.median(int(out.readline()) for _ in range(4)) * 32 / 1e6
        if is_traced:
            controller.untrace(lab.server_ipv4)
        return taken

    yield Case(f"a transfer of {megabits} Mbit/s, traced", "Mbit/s", partial(transfer, True),
               partial(transfer, False), "not traced", goal=at_least(0.99))  # fmt: skip


def _skip(process: subprocess.Popen[str]) -> None:
    """Pass over what was printed while nobody read, and a quarter that began before."""
    assert process.stdout
    while select.select([process.stdout], [], [], 0)[0]:
        process.stdout.readline()
    process.stdout.readline()


def changes(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """A detour mid-flow, and a silent router (figure 2 of S3)."""
    plan = LabPlan(_HOPS, bottleneck_bits=0, detour=Detour(3), silent=("r2",))
    seconds = effort.of(20, 5)
    with (
        network(plan) as lab,
        traced(lab, lab.server_ipv4, lab.server_ipv6) as (_, collected),
        application(lab, "udp", lab.server_ipv4, seconds, _PACKETS),
        application_beside(lab, "udp", lab.server_ipv6, seconds, _PACKETS),
    ):
        time.sleep(effort.of(5, 1))
        for on in (True, False):
            at = lab.detour(on)
            time.sleep(effort.of(3, 1))
            told = [moment for moment, _ in collected.events if moment > at]
            first = (told[0] - at) / 1e9 if told else 99.0
            yield Case(f"from a detour's {'begin' if on else 'end'} to the first event", "s",
                       constant(first), goal=at_most(1), figure="S3 2",
                       paper="the route change is seen mid-flow")  # fmt: skip
        rows = collected.rows()
    late = rows[rows["sent_ns"] > rows["sent_ns"].max() - 6_000_000_000]
    silent = late[(late["hop"] == 2) & (late["version"] == 4)]
    yield Case("probes to a silent hop", "probes/s", constant(len(silent) / 6), goal=at_most(2))


def branches(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Flows over two paths of equal cost; their delays differ by 100 us (figure 3 of S3)."""
    flows = effort.of(16, 4)
    plan = LabPlan(_HOPS, bottleneck_bits=0, twin=3, delays={101: 0.0001})
    lab = stack.enter_context(network(plan))
    with traced(lab, lab.server_ipv4) as (_, collected), lab_flows(lab, flows) as sent:
        pass
    rows = collected.rows()
    rows = rows[rows["outcome"] == ProbeOutcome.ANSWERED]
    answers = rows[rows["hop"] == 3]
    twin = np.array(netns_address(plan.addresses("r3b").ipv4), "u1")
    through = (answers["responder"][:, :4] == twin).all(axis=1)
    by_twin = np.array([sent.get(int(port), False) for port in answers["source_port"]], bool)
    known = np.isin(answers["source_port"], list(sent))
    wrong = (through != by_twin)[known].sum()
    yield Case(f"{flows} flows over two paths: probes of {known.sum()} that disagree with the"
               " routers' counters", "probes", constant(float(wrong)), goal=exactly(0),
               figure="S3 3", paper="load-balanced paths have a row each")  # fmt: skip
    behind = rows[rows["hop"] == 4]
    times = behind["received_ns"] - behind["sent_ns"]
    is_twin = np.isin(behind["source_port"], [port for port, by in sent.items() if by])
    if is_twin.all() or not is_twin.any():
        raise MissingError("all flows took one of the two paths; run it again")
    test = kolmogorov_smirnov(times[is_twin], times[~is_twin])
    yield Case("two paths, round-trip times at hop 4: the probability of one distribution", "",
               constant(test.p_value), goal=at_most(_SURE), figure="S3 3",
               paper="the Kolmogorov-Smirnov test rejects it")  # fmt: skip


def netns_address(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


@contextmanager
def application_beside(lab: Lab, *arguments: object) -> Iterator[None]:
    """One more in the client, for the server that runs already."""
    with closing_fd(lab.open_namespace()) as here, running(*arguments, node_fd=here):
        yield


@contextmanager
def lab_flows(lab: Lab, count: int) -> Iterator[dict[int, bool]]:
    """Send flows one after the other; by source port, whether the twin's counter has moved."""
    sent: dict[int, bool] = {}
    with closing_fd(lab.open_namespace("server")) as server, running("serve", node_fd=server):
        for _ in range(count):
            out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            out.connect((lab.server_ipv4, PORT))
            before = interface_counters(lab, "r3b", "left").received_packets
            for _ in range(200):
                out.send(bytes(160))
                time.sleep(0.002)
            moved = interface_counters(lab, "r3b", "left").received_packets - before
            sent[out.getsockname()[1]] = moved > 100
            out.close()
        yield sent


def quiet(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """A lab left alone: every event is a false alarm."""
    seconds = effort.of(600, 2)
    with (
        network(LabPlan(delays={1: 0.005, 3: 0.01})) as lab,
        traced(lab, lab.server_ipv4) as (_, collected),
        application(lab, "udp", lab.server_ipv4, seconds, 500),
    ):
        time.sleep(seconds)
        events = sum(event.source == "path" for _, event in collected.events)
        probes = len(collected.rows())
    name = f"a quiet lab for {seconds} s"
    yield Case(f"{name}: probes", "probes", constant(probes), goal=at_least(1))
    yield Case(f"{name}: false alarms", "events", constant(events), goal=exactly(0))


GROUPS = (
    Group("cost, XDP", partial(cost, Hook.XDP), 15),
    Group("cost, TC", partial(cost, Hook.TC_INGRESS), 15),
    Group("cost by destinations", destinations),
    Group("truth", truth, 1, warm=False),
    Group("a queue", queue, 1, warm=False),
    Group("rates", rates, 1, warm=False),
    *(Group(f"a transfer of {n} Mbit/s", partial(throughput, n), 8) for n in _MEGABITS),
    Group("route changes", changes, 1, warm=False),
    Group("load-balanced paths", branches, 1, warm=False),
    Group("quiet", quiet, 1, warm=False),
)
