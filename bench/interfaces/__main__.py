"""Several interfaces: what 200 of them cost, against one with the same packets.

The interfaces are in a network namespace that it makes. Times are CPU times.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from app.lab import netns
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, Line, at_most
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


def sizes(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Each number of interfaces beside one with the same packets."""
    packets = effort.of(4_000_000, 2000)
    lines = [
        Line(f"{words} by interfaces", words, "interfaces", at_most(0.2))
        for words in ("CPU time of a packet", "user space in a second without traffic")
    ]
    one = Watched(effort.compiler, stack, 1)
    for count in effort.of((1, 10, 50, MANY), (1, 10)):
        watched = one if count == 1 else Watched(effort.compiler, stack, count)
        for line, unit, work in (
            (lines[0], "ns", lambda each: each.packet_ns(packets)),
            (lines[1], "ms", lambda each: each.window_s() * 1e3),
        ):
            peer = None if count == 1 else partial(work, one)
            yield Case(
                f"{line.name}, {count} interfaces", unit, partial(work, watched), peer,
                "one interface", goal=at_most(3) if peer else None, line=line, size=count,
            )  # fmt: skip
        yield Case(f"to attach, {count} interfaces", "s", constant(watched.start_s))


GROUPS = (Group("by the number", sizes, 5),)
