"""Path tracing: what it costs, how true it is, and that every probe is accounted for.

    python -I -m bench.path [--only cost,truth,queue,rates,throughput,changes,quiet]

In a lab of namespaces. Against the truth where cables have a known delay, and against pings that
are sent to the same routers at the same time where a queue decides.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from app.lab import Lab
from app.lab.plan import Detour, LabPlan
from bench.support.application import FROM_PORT, PORT, closing_fd, running
from bench.support.report import Report
from bench.support.traced_lab import application, network, rtts, traced
from bpf.abi import ProgType
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.programs.program import VERDICT_PASS, pack
from bpf.syscall import prog_load, prog_test_run
from probes.hooks import Hooks
from probes.path.options import TracedFlow
from probes.path.probe import PathProbe
from probes.path.records import ProbeOutcome
from tests.support.generator import frame
from tests.support.lab_truth import delay, hops, interface_counters

_HOPS = 6
_PACKETS = 1000
"""Per second of the application that is traced."""
_SETTLE_S = 2.0
_SWITCH_S = 1.0
"""After tracing was begun or ended: what compiling takes from the transfer is over then."""
_REPEAT, _ROUNDS = 1_000_000, 15
_INGRESS_NS, _EGRESS_NS = 5, 15
"""Most that a packet of another flow may cost, the chain's dispatcher included."""


def cost(report: Report) -> None:
    """A packet of another flow, by BPF_PROG_TEST_RUN, above a program that does nothing.

    Both run in turns, and the medians are compared: other work on the machine slows both down.
    """
    hooks = Hooks(lambda point: None)
    interface = Interface("lo", 1, True)
    floor = {
        kind: prog_load(pack([(0xB7, 0, 0, VERDICT_PASS[kind]), (0x95, 0, 0, 0)]), kind, "floor")
        for kind in (ProgType.XDP, ProgType.SCHED_CLS)
    }
    with Compiler() as compiler:
        for ingress in (Hook.XDP, Hook.TC_INGRESS):
            probe = PathProbe(compiler, interface, ingress, hooks)
            probe.trace("192.0.2.1")
            chains = {point.hook: point.chain.fd for point in hooks.in_use()}
            for version in (4, 6):
                for hook in (ingress, Hook.TC_EGRESS):
                    ns = _above(chains[hook], floor[hook.prog_type], frame(version))
                    most = _EGRESS_NS if hook is Hook.TC_EGRESS else _INGRESS_NS
                    name = f"IPv{version} packet of another flow, {hook.value}"
                    report.target(name, f"{ns:.1f} ns", ns <= most)
            probe.close()


def _above(program: int, floor: int, packet: bytes) -> float:
    """Nanoseconds that a program takes more than another one; medians of interleaved runs."""
    times: dict[int, list[int]] = {program: [], floor: []}
    for _ in range(_ROUNDS):
        for fd, taken in times.items():
            taken.append(prog_test_run(fd, packet, repeat=_REPEAT).duration_ns)
    return statistics.median(times[program]) - statistics.median(times[floor])


def truth(report: Report) -> None:
    """Idle, with cables of known delay."""
    plan = LabPlan(_HOPS, bottleneck_bits=0, delays={1: 0.005, 3: 0.01, 5: 0.002})
    with network(plan) as lab:
        for version, server in ((4, lab.server_ipv4), (6, lab.server_ipv6)):
            pinged = [
                getattr(plan.addresses(name), f"ipv{version}") for (name, *_) in hops(plan)[:_HOPS]
            ]
            for kind in ("udp", "tcp", "echo"):
                with (
                    traced(lab, server) as (_, collected),
                    application(lab, kind, server, 6, _PACKETS),
                    closing_fd(lab.open_namespace()) as here,
                    running("ping", 5, 100, *pinged, node_fd=here) as pings,
                ):
                    answers = _pings(pings)
                rows = collected.rows()
                _account(report, f"{kind} v{version}", rows)
                for hop in range(1, _HOPS + 1):
                    ours, theirs = rtts(rows, hop, version), answers[hop - 1][:, 1]
                    _compare(report, f"{kind} v{version} hop {hop}", ours, theirs, delay(plan, hop))


def _pings(process: subprocess.Popen[str]) -> list[Array]:
    """By address (n, 2): when it was sent, and its round-trip time, in ns."""
    assert process.stdout
    lines = [list(map(int, line.split())) for line in process.stdout]
    table = np.array(lines, "i8").reshape(-1, 3)
    return [table[table[:, 0] == n][:, 1:] for n in range(_HOPS)]


def _compare(report: Report, name: str, ours: Array, theirs: Array, delay: float) -> None:
    """Against the cables' delays, which are off by some 50 us, like the pings."""
    if not len(ours) or not len(theirs):
        report.target(name, "no answers", False)
        return
    error, of_pings = ((np.median(rtts) - delay * 1e9) / 1e3 for rtts in (ours, theirs))
    excess = (np.percentile(ours, 95) - np.percentile(theirs, 95)) / 1e3
    report.target(
        name,
        f"median {error:+.0f} us to the cables' {delay * 1e3:.0f} ms (pings {of_pings:+.0f}); "
        f"p95 {excess:+.0f} us to pings'",
        min(abs(error), abs(error - of_pings)) <= 50 and excess <= 500,
    )


def _account(report: Report, name: str, rows: Array) -> None:
    by = {o.label: int((rows["outcome"] == o).sum()) for o in ProbeOutcome}
    lost = by["unanswered"] + by["overrun"]
    words = ", ".join(f"{count} {what}" for what, count in by.items() if count)
    report.target(f"{name}: probes", words, lost == 0)


def queue(report: Report) -> None:
    """A bulk transfer fills the 200 ms of the bottleneck; pings go by beside."""
    plan = LabPlan(_HOPS)
    with network(plan) as lab:
        for version, server in ((4, lab.server_ipv4), (6, lab.server_ipv6)):
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
            with (
                closing_fd(lab.open_namespace()) as here,
                application(lab, "bulk", server, 20),
            ):
                time.sleep(_SETTLE_S)
                for kind, flow in flows.items():
                    with traced(lab) as (controller, collected):
                        controller.trace(server, flow)
                        other = running(kind, server, 3.5, 500, node_fd=here)
                        with other, running("ping", 3, 100, *pinged, node_fd=here) as pings:
                            answers = _pings(pings)
                    rows = collected.rows()
                    _account(report, f"{kind} v{version}, queue", rows)
                    for hop in range(1, _HOPS + 1):
                        ours = rows[
                            (rows["hop"] == hop) & (rows["outcome"] == ProbeOutcome.ANSWERED)
                        ]
                        _pair(report, f"{kind} v{version} hop {hop}, queue", ours, answers[hop - 1])
                    said = [e.text for _, e in collected.events if "queue" in e.text]
                    report.row(f"{kind} v{version}: events", "; ".join(said[:3]) or "none")


def _pair(report: Report, name: str, ours: Array, pings: Array) -> None:
    """Each of ours with the ping that was sent nearest to it: the queue is never twice the same."""
    if not len(ours) or not len(pings):
        report.target(name, "no answers", False)
        return
    at = np.searchsorted(pings[:, 0], ours["sent_ns"]).clip(1, len(pings) - 1)
    before = ours["sent_ns"] - pings[at - 1, 0] < pings[at, 0] - ours["sent_ns"]
    nearest = np.where(before, at - 1, at)
    near = np.abs(ours["sent_ns"] - pings[nearest, 0]) < 5_000_000
    ours, theirs = (ours["received_ns"] - ours["sent_ns"])[near], pings[nearest[near], 1]
    if not len(ours):
        report.target(name, "none near a ping", False)
        return
    error = np.median(ours - theirs) / 1e3
    excess = (np.percentile(ours, 95) - np.percentile(theirs, 95)) / 1e3
    report.target(
        name,
        f"median {np.median(ours) / 1e6:.3f} ms, {error:+.0f} us to the nearest ping; "
        f"p95 {excess:+.0f} us",
        abs(error) <= 50 and excess <= 500,
    )


def rates(report: Report) -> None:
    """100 probes/s a hop and far more: all matched, or counted."""
    with network(LabPlan(_HOPS, bottleneck_bits=0)) as lab:
        for rate, burst in ((100, 1), (1000, 2), (3000, 4), (8500, 8)):
            with (
                traced(lab, lab.server_ipv4, rate=rate, burst=burst, max_hops=_HOPS) as (
                    _,
                    c,
                ),
                application(lab, "udp", lab.server_ipv4, 5, 20_000),
            ):
                time.sleep(3)
            rows = c.rows()
            by = {o: int((rows["outcome"] == o).sum()) for o in ProbeOutcome}
            elapsed = (rows["sent_ns"].max() - rows["sent_ns"].min()) / 1e9
            words = ", ".join(f"{n} {o.label}" for o, n in by.items() if n)
            report.target(
                f"{rate} a hop and second",
                f"{len(rows) / elapsed:.0f}/s: {words}",
                by[ProbeOutcome.UNANSWERED] + by[ProbeOutcome.OVERRUN] == 0 or rate > 1000,
            )


def throughput(report: Report, rounds: int) -> None:
    """One bulk transfer, traced and not, in turns."""
    for megabits in (20, 500):
        plan = LabPlan(_HOPS, bottleneck_bits=megabits * 1_000_000)
        with (
            network(plan) as lab,
            application(lab, "bulk", lab.server_ipv4, 8 + rounds * 5) as process,
            traced(lab) as (controller, _),
        ):
            assert process.stdout
            taken: dict[bool, list[int]] = {False: [], True: []}
            time.sleep(4)
            for _ in range(rounds):
                for on in taken:
                    (controller.trace if on else _nothing)(lab.server_ipv4)
                    time.sleep(_SWITCH_S)
                    _skip(process)
                    taken[on] += [int(process.stdout.readline()) for _ in range(4)]
                    (controller.untrace if on else _nothing)(lab.server_ipv4)
        off, on_ = (statistics.median(taken[on]) * 32 / 1e6 for on in (False, True))
        report.target(
            f"{megabits} Mbit/s: transfer with tracing against without",
            f"{on_:.3f} / {off:.3f} Mbit/s = {on_ / off:.4f}",
            on_ >= 0.99 * off,
        )


def _skip(process: subprocess.Popen[str]) -> None:
    """Pass over what was printed while nobody read, and a quarter that began before."""
    import select

    assert process.stdout
    while select.select([process.stdout], [], [], 0)[0]:
        process.stdout.readline()
    process.stdout.readline()


def _nothing(address: str) -> None:
    pass


def changes(report: Report) -> None:
    """A detour mid-flow, paths of equal cost, and silent routers."""
    plan = LabPlan(_HOPS, bottleneck_bits=0, detour=Detour(3), silent=("r2",))
    with (
        network(plan) as lab,
        traced(lab, lab.server_ipv4, lab.server_ipv6) as (_, collected),
        application(lab, "udp", lab.server_ipv4, 20, _PACKETS),
        application_beside(lab, "udp", lab.server_ipv6, 20, _PACKETS),
    ):
        time.sleep(5)
        for on in (True, False):
            at = lab.detour(on)
            time.sleep(3)
            told = [(t, e.text) for t, e in collected.events if t > at]
            first = (told[0][0] - at) / 1e9 if told else 99
            report.target(
                f"detour {'on' if on else 'off'}: first event after", f"{first:.2f} s", first <= 1
            )
            for moment, text in told:
                report.row(f"  after {(moment - at) / 1e9:.2f} s", text)
        rows = collected.rows()
    late = rows[rows["sent_ns"] > rows["sent_ns"].max() - 6_000_000_000]
    silent = late[(late["hop"] == 2) & (late["version"] == 4)]
    per_second = len(silent) / 6
    report.target("a silent hop", f"{per_second:.2f} probes/s", per_second <= 2)

    plan = LabPlan(_HOPS, bottleneck_bits=0, twin=3)
    with network(plan) as lab:
        right = wrong = 0
        with traced(lab, lab.server_ipv4) as (_, collected), lab_flows(lab, 16) as sent:
            pass
        rows = collected.rows()
        rows = rows[(rows["hop"] == 3) & (rows["outcome"] == ProbeOutcome.ANSWERED)]
        twin = np.array(netns_address(plan.addresses("r3b").ipv4), "u1")
        for port, by_twin in sent.items():
            answers = rows[rows["source_port"] == port]["responder"][:, :4]
            through = (answers == twin).all(axis=1)
            right += int((through == by_twin).sum())
            wrong += int((through != by_twin).sum())
        report.target(
            "16 flows over two paths: probes that agree with the routers' counters",
            f"{right} of {right + wrong}",
            wrong == 0 and right > 0,
        )


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
    import socket

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


def quiet(report: Report, seconds: float) -> None:
    """A lab left alone: every event is a false alarm."""
    with (
        network(LabPlan(delays={1: 0.005, 3: 0.01})) as lab,
        traced(lab, lab.server_ipv4) as (_, collected),
        application(lab, "udp", lab.server_ipv4, seconds, 500),
    ):
        time.sleep(seconds)
        events = [event.text for _, event in collected.events if event.source == "path"]
        probes = len(collected.rows())
    for text in events:
        report.row("told", text)
    name = f"events about {probes} probes of a quiet lab"
    report.target(name, str(len(events)), probes > 0 and not events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sections: dict[str, Callable[[Report], None]] = {
        "cost": cost,
        "truth": truth,
        "queue": queue,
        "rates": rates,
        "throughput": lambda report: throughput(report, options.rounds),
        "changes": changes,
        "quiet": lambda report: quiet(report, options.minutes * 60),
    }
    parser.add_argument("--only", default=",".join(sections))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10, help="of the quiet lab")
    options = parser.parse_args()
    report = Report("path tracing")
    for name in options.only.split(","):
        sections[name](report)
    report.end()


if __name__ == "__main__":
    main()
