"""The packet ring: cost of a packet, and captures of a flood that must equal the generator.

    python -I -m bench.ring [--rate 200000] [--seconds 10] [--rounds 9]

Needs root; the packets stay on a veth between two network namespaces that it makes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack, closing

import numpy as np

from app.lab import netns
from app.lab.capture import CaptureFile
from app.recording.captures import saver
from bench.support.report import Report
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
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
from probes.ring.service import Capture, said
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


def cost(report: Report, compiler: Compiler, hook: Hook, side: Side, rounds: int) -> None:
    """Nanoseconds a packet of a hook with the flow probe, by test runs, by turns: with and without
    the ring behind it."""
    where = [(hook, FlowDirection[side.upper()])]
    with ExitStack() as stack:
        fds = []
        for _ in ("without", "with"):
            hooks = Hooks(lambda point: None)
            lo = hooks.find("lo")
            flow = stack.enter_context(closing(FlowProbe(compiler, lo, where, hooks)))
            fds.append(flow.points()[side].chain.fd)
        ingress = hook if side == "ingress" else Hook.TC_INGRESS
        ring = stack.enter_context(closing(RingProbe(compiler, lo, ingress, hooks, RingOptions())))
        ring.keep("bench", [_SELECTED])
        for which, data in _FRAMES.items():
            times = [
                [prog_test_run(fd, data, repeat=_REPEAT).duration_ns for fd in fds]
                for _ in range(rounds)
            ]
            without, kept = np.median(times, axis=0)
            text = f"{kept - without:.0f} ns more, {kept / without:.2f} of {without:.0f} ns"
            report.row(f"{hook.value} {side}: a packet {which}", text)


def numbers_in(file: str) -> Array:
    """Return the numbers that the generator gave the frames of a capture, u8 (n,)."""
    with open(file, "rb") as opened:
        found = [
            (int.from_bytes(each.data[26:30]) - _ADDRESS << 14)
            + int.from_bytes(each.data[34:36]) - _PORT
            for each in CaptureFile(opened, file)
        ]  # fmt: skip
    return np.array(found, "u8")


def flood(
    report: Report, compiler: Compiler, hook: Hook, memory: str, rate: int, seconds: float
) -> None:
    """Flood a veth for longer than a policy captures, and compare its file with the generator."""
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
        with generator_of(compiler, left, right, flows=0) as generator:
            begun = time.monotonic()
            with generator.streaming(rate):
                wait_for(lambda: captures, _PATIENCE_S)
            sent, took = generator.sent(), time.monotonic() - begun
            wait_for(lambda: controller.ring().selections[0].file, _PATIENCE_S)
        numbers = np.sort(numbers_in(controller.ring().selections[0].file))
        controller.write_packets("flood", MOST_SECONDS)
    of_alarm, whole = (each.ledger for each in captures)
    name = f"{hook.value}, {memory}"
    report.row(f"{name}: flood", f"{sent / took:,.0f} packets/s")
    report.row(f"{name}: the alarm's capture", said("", of_alarm))
    gaps = int(numbers[-1] - numbers[0]) + 1 - len(numbers)
    told = f"{len(numbers)} frames, {gaps} missing between the first and the last"
    exact = len(np.unique(numbers)) == of_alarm.written and not gaps
    report.target(f"{name}: the file", told, exact)
    seen = whole.written + whole.missing
    report.target(f"{name}: all", f"{sent} sent, {said('', whole)}", whole.selected == sent == seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200_000, help="packets a second of each flood")
    parser.add_argument("--seconds", type=float, default=10.0, help="that the captures have")
    parser.add_argument("--rounds", type=int, default=9, help="of test runs")
    options = parser.parse_args()
    report = Report(f"The packet ring, and floods of {options.rate:,} packets/s")
    with Compiler() as compiler:
        for hook, side in _HOOKS:
            cost(report, compiler, hook, side, options.rounds)
        for hook, memory in _FLOODS:
            flood(report, compiler, hook, memory, options.rate, options.seconds)
    report.end()


if __name__ == "__main__":
    main()
