"""Several interfaces: what 200 of them cost, against one with the same packets.

    python -I -m bench.interfaces [--packets 4000000] [--rounds 5]

Needs root; the interfaces are in a network namespace that it makes. Times are CPU times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from contextlib import ExitStack

from app.lab import netns
from bench.support.report import Report
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_fd_by_id, prog_test_run
from probes.control.hook_watch import HookWatch
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from tests.support.generator import frame

MANY = 200
WHERE = ((Hook.TC_INGRESS, FlowDirection.INGRESS), (Hook.TC_EGRESS, FlowDirection.EGRESS))
WINDOWS = 50
_LOOK_S = 2.0
"""Seconds between two looks at the hooks, as in `probes.control.hook_watch`."""


def veths(stack: ExitStack, count: int) -> int:
    """Return a new namespace with so many pairs of veths, of which one end is `v1`, `v2`, ..."""
    space = netns.fresh()
    stack.callback(os.close, space)
    lines = [f"link add v{n} type veth peer name p{n}" for n in range(1, count + 1)]
    with netns.inside(space):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    return space


class Watched:
    """A flow probe on all `v*` of a namespace."""

    def __init__(self, compiler: Compiler, stack: ExitStack, count: int) -> None:
        self.space = veths(stack, count)
        with netns.inside(self.space):
            started = time.process_time()
            self.watch = HookWatch(lambda _: None, by_link=True)
            stack.callback(self.watch.stop)
            group = self.watch.hooks.find("v*")
            self.probe = FlowProbe(compiler, group, WHERE, self.watch.hooks)
            stack.callback(self.probe.close)
            self.start_s = time.process_time() - started
        points = self.probe.points()
        self.fds = [prog_fd_by_id(each) for each in points["ingress"].own_programs()]
        for fd in self.fds:
            stack.callback(os.close, fd)

    def packet_ns(self, packets: int) -> float:
        """CPU time of a packet, if they come by all interfaces in turn."""
        each = packets // len(self.fds)
        return statistics.mean(
            prog_test_run(fd, frame(4), repeat=each).duration_ns for fd in self.fds
        )

    def window_s(self) -> float:
        """CPU time of the windows and looks of a second, without traffic."""
        with netns.inside(self.space):
            started = time.process_time()
            for _ in range(WINDOWS):
                self.probe.export()
            windows = (time.process_time() - started) / WINDOWS
            started = time.process_time()
            self.watch.follow(changed=False)
            self.watch.hooks.look()
            return windows + (time.process_time() - started) / _LOOK_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=4_000_000, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("Several interfaces")
    with Compiler() as compiler, ExitStack() as stack:
        one, many = (Watched(compiler, stack, count) for count in (1, MANY))
        costs: dict[int, list[float]] = {1: [], MANY: []}
        for _ in range(options.rounds):
            for watched in (one, many):
                costs[len(watched.fds)].append(watched.packet_ns(options.packets))
        few, all_of = (statistics.median(each) for each in costs.values())
        text = f"{all_of:.0f} ns, {all_of / few:.2f} of one interface's {few:.0f} ns"
        report.target(f"a packet on one of {MANY} interfaces", text, all_of <= 3 * few)
        windows = [watched.window_s() for watched in (one, many)]
        text = f"{windows[1] * 1e3:.1f} ms, with one {windows[0] * 1e3:.1f} ms"
        report.target("user space in a second without traffic", text, windows[1] <= 3 * windows[0])
        report.row(f"to attach to {MANY} interfaces", f"{many.start_s:.2f} s of CPU time")
    report.end()


if __name__ == "__main__":
    main()
