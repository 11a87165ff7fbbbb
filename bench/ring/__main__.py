"""The packet ring: cost of a packet, and captures of a flood that must equal the generator.

The packets stay on a veth between two network namespaces that it makes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import numpy as np

from app.lab import netns
from app.lab.capture import CaptureFile
from app.recording.captures import saver
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, exactly
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run
from probes.config.model import Side
from probes.control.controller import Controller
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from probes.hooks import Hooks
from probes.monitor.actions.capture import MOST_SECONDS
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.ring.options import RingOptions
from probes.ring.probe import RingProbe
from probes.ring.service import Capture
from tests.probes.monitor.actions.flood import generator_of
from tests.probes.monitor.bed import frame, tcp
from tests.support.veth import veth_pair
from tests.support.waiting import wait_for

_REPEAT = 200_000
_SELECTED = "udp dport:53"
_FRAMES = {"kept": frame(size=1000), "of another flow": frame(layer=tcp(), size=1000)}
_POLICY = "flood: sum(packets on udp dport:2000, {:g}s) > {:g} -> capture {:g}s on udp dport:2000"
_HOOKS: tuple[tuple[Hook, Side], ...] = (
    (Hook.XDP, "ingress"), (Hook.TC_INGRESS, "ingress"), (Hook.TC_EGRESS, "egress"),
)  # fmt: skip
_FLOODS = ((Hook.XDP, "2GiB"), (Hook.TC_INGRESS, "32MiB"))
_PATIENCE_S = 120.0
_ADDRESS, _PORT = 0x0A5F4000, 1024
"""Of the first frame of the generator: they number its frames."""


def cost(hook: Hook, side: Side, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Nanoseconds a packet of a hook with the flow probe: with and without the ring behind it."""
    where = [(hook, FlowDirection[side.upper()])]
    fds = []
    for _ in ("without", "with"):
        hooks = Hooks(lambda point: None)
        lo = hooks.find("lo")
        flow = stack.enter_context(closing(FlowProbe(effort.compiler, lo, where, hooks)))
        fds.append(flow.points()[side].chain.fd)
    ingress = hook if side == "ingress" else Hook.TC_INGRESS
    made = RingProbe(effort.compiler, lo, ingress, hooks, RingOptions())
    ring = stack.enter_context(closing(made))
    ring.keep("bench", [_SELECTED])
    repeat = effort.of(_REPEAT, 2000)

    def run(fd: int, data: bytes) -> float:
        return prog_test_run(fd, data, repeat=repeat).duration_ns

    for which, data in _FRAMES.items():
        without, kept = (partial(run, fd, data) for fd in fds)
        yield Case(f"packet ring, {hook.value} {side}, a packet {which}, beyond the flow table",
                   "ns", kept, floor=without)  # fmt: skip


def numbers_in(file: str) -> Array:
    """Return the numbers that the generator gave the frames of a capture, u8 (n,)."""
    with open(file, "rb") as opened:
        found = [
            (int.from_bytes(each.data[26:30]) - _ADDRESS << 14)
            + int.from_bytes(each.data[34:36]) - _PORT
            for each in CaptureFile(opened, file)
        ]  # fmt: skip
    return np.array(found, "u8")


def flood(hook: Hook, memory: str, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Flood a veth for longer than a policy captures, and compare its file with the generator."""
    rate, seconds = effort.of(200_000, 2000), effort.of(10.0, 0.5)
    with (
        veth_pair() as (left, right),
        netns.inside(right.ns),
        Controller() as controller,
        tempfile.TemporaryDirectory() as folder,
    ):
        controller.memory_limit, controller.packets.options = 4 << 30, RingOptions(memory)
        write = saver(controller.history, folder)
        controller.paths.configure("right", controller.path_options)
        controller.watch_metrics("right", MonitorOptions(bits=8, interval=1.0, ingress=hook))
        limits = 3 * seconds, rate * seconds, seconds
        controller.set_policy(Policy.parse_short(_POLICY.format(*limits)))
        captures: list[Capture] = []

        def save(capture: Capture) -> str:
            captures.append(capture)
            return write(capture) if len(captures) == 1 else ""

        controller.packets.save = save
        with generator_of(effort.compiler, left, right, flows=0) as generator:
            begun = time.monotonic()
            with generator.streaming(rate):
                wait_for(lambda: captures, _PATIENCE_S)
            sent, took = generator.sent(), time.monotonic() - begun
            wait_for(lambda: controller.ring().selections[0].file, _PATIENCE_S)
        numbers = np.sort(numbers_in(controller.ring().selections[0].file))
        controller.write_packets("flood", MOST_SECONDS)
    of_alarm, whole = (each.ledger for each in captures)
    name = f"packet ring of {memory}, {hook.value}, a flood of {rate} packets/s"
    yield Case(f"{name}: rate", "packets/s", constant(sent / took))
    gaps = int(numbers[-1] - numbers[0]) + 1 - len(numbers)
    yield Case(f"{name}: frames missing in the file", "frames", constant(gaps), goal=exactly(0))
    unequal = abs(len(np.unique(numbers)) - of_alarm.written)
    yield Case(f"{name}: frames of the file that the ledger does not have", "frames",
               constant(unequal), goal=exactly(0))  # fmt: skip
    unknown = abs(whole.selected - sent) + abs(whole.written + whole.missing - sent)
    yield Case(f"{name}: sent frames that the ledger does not have", "frames", constant(unknown),
               goal=exactly(0))  # fmt: skip


GROUPS = (
    *(Group(f"cost, {h.value} {side}", partial(cost, h, side)) for h, side in _HOOKS),
    *(Group(f"flood, {h.value}", partial(flood, h, m), 1, warm=False) for h, m in _FLOODS),
)
