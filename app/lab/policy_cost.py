"""The cost of policies in nanoseconds a packet, measured without an interface."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from bpf.programs.trial import FRAMES, floor_ns
from bpf.syscall import prog_test_run
from probes.filter.conjunction import WIDTHS, Conjunction, Dimension, NumberSet, PrefixSet
from probes.hooks import Hooks
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.selection import conjunctions_of

USUAL = FRAMES["IPv4 TCP SYN"]
"""A packet that few policies select."""
_TCP = 6
_INTERFACE = Interface("cost", 0, ethernet=True)
_REPEAT = 200_000
_ROUNDS = 2
_DOCUMENTATION = {4: 0xC0000201, 6: 0x20010DB8 << 96 | 1}
"""Addresses for documents, by IP version."""


class PolicyCost(NamedTuple):
    """Nanoseconds a packet that a waiting policy adds to the monitor."""

    every: float
    """For each packet."""
    selected: float
    """More, for a packet of the selections in its conditions."""

    def __str__(self) -> str:
        every, selected = round(self.every), round(self.selected)
        if not selected:
            return f"costs {every} ns a packet"
        parts = f"{every} ns for all, {selected} ns for its selection"
        return f"costs {every + selected} ns a packet: {parts}"


def policy_costs(
    policies: Sequence[Policy], options: MonitorOptions
) -> tuple[float, list[PolicyCost]]:
    """Return the nanoseconds a packet of the monitor alone, and of each policy. The last cost is of
    all policies together, if there are several.

    Raises KernelError without the right to load programs.
    """
    options = replace(
        options, ingress=Hook.XDP, input=Input.REGULAR, receivers=(), drop_others=False,
        offload=False,
    )  # fmt: skip
    hooks = Hooks(attach=lambda point: None)
    with ExitStack() as stack:
        compiler = Compiler()
        stack.callback(compiler.close)
        monitor = MonitorProbe(compiler, _INTERFACE, hooks, options)
        stack.callback(monitor.close)
        (point,) = hooks.in_use()
        fd = point.chain.fd
        alone = {USUAL: _ns(fd, USUAL)}
        costs = []
        for policy in policies:
            frame = selected_frame(policy)
            if frame not in alone:
                alone[frame] = _ns(fd, frame)
            monitor.set_policy(policy, ())
            usual = max(0.0, _ns(fd, USUAL) - alone[USUAL])
            chosen = max(0.0, _ns(fd, frame) - alone[frame])
            monitor.remove_policy(policy.name)
            costs.append(PolicyCost(min(usual, chosen), max(0.0, chosen - usual)))
        if len(policies) > 1:
            for policy in policies:
                monitor.set_policy(policy, ())
            costs.append(PolicyCost(max(0.0, _ns(fd, USUAL) - alone[USUAL]), 0.0))
    return alone[USUAL] - floor_ns(ProgType.XDP), costs


def cost_texts(policies: Sequence[Policy], options: MonitorOptions) -> dict[str, str]:
    """Return the cost of the monitor and of each policy in words, by name; or why it is unknown."""
    try:
        alone, costs = policy_costs(policies, options)
    except (ProbedeckError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return {"cost": f"not measured, as no program can be loaded: {reason}"}
    texts = map(str, costs)
    names = (*(policy.name for policy in policies), *["all of them"] * (len(policies) > 1))
    every = {"monitor": f"costs {alone:.0f} ns a packet without policies"}
    return every | dict(zip(names, texts, strict=True))


def _ns(fd: int, frame: bytes) -> float:
    return min(prog_test_run(fd, frame, repeat=_REPEAT).duration_ns for _ in range(_ROUNDS))


def selected_frame(policy: Policy) -> bytes:
    """A packet of a selection in the policy's conditions; without one, a usual packet."""
    counted = (metric for metric in policy.metrics if not metric.of_owners)
    for text in sorted({metric.selection for metric in counted if metric.selection}):
        for conjunction in conjunctions_of((text,)):
            return frame_of(conjunction)
    return USUAL


def frame_of(conjunction: Conjunction) -> bytes:
    """A packet that is in all sets of a conjunction."""

    def number(place: Dimension, usual: int) -> int:
        part = conjunction.sets[place]
        if part is None:
            return usual
        assert isinstance(part, NumberSet)
        return usual if part.bits >> usual & 1 else (part.bits & -part.bits).bit_length() - 1

    ends = [conjunction.sets[place] for place in (Dimension.SOURCE, Dimension.DESTINATION)]
    version = number(Dimension.VERSION, 4)
    addresses = [_address(part, version) for part in ends]
    if None in addresses:
        version = 10 - version
        addresses = [_address(part, version) for part in ends]
    flags = number(Dimension.FLAGS, 2)
    protocol = number(Dimension.PROTOCOL, _TCP if flags else 17)
    sport, dport = number(Dimension.SOURCE_PORT, 40000), number(Dimension.DESTINATION_PORT, 443)
    transport = struct.pack("!HHIIBBHHH", sport, dport, 1, 1, 5 << 4, flags, 64, 0, 0)
    if protocol != _TCP:
        transport = struct.pack("!HHHH", sport, dport, 20, 0).ljust(20, b"\0")
    packed = b"".join((each or 0).to_bytes(WIDTHS[version] // 8) for each in addresses)
    if version == 4:
        ip = struct.pack("!BBHIBBH", 0x45, 0, 40, 0, 64, protocol, 0)
    else:
        ip = struct.pack("!IHBB", 6 << 28, 20, protocol, 64)
    vlan = number(Dimension.VLAN, 0)
    tag = struct.pack("!HH", 0x8100, vlan) if vlan else b""
    kind = b"\x08\x00" if version == 4 else b"\x86\xdd"
    return (USUAL[:12] + tag + kind + ip + packed + transport).ljust(60, b"\0")


def _address(part: NumberSet | PrefixSet | None, version: int) -> int | None:
    """An address of a set; None for another IP version."""
    if part is None:
        return _DOCUMENTATION[version]
    assert isinstance(part, PrefixSet)
    width = WIDTHS[version]
    steps = [(first, length, step) for (of, first, length), step in part.steps if of == version]
    # The first addresses of prefixes that enter the set, and those behind prefixes that leave it.
    for first, length, step in steps:
        address = first if step > 0 else first + (1 << width - length)
        if sum(s for f, size, s in steps if f <= address < f + (1 << width - size)) > 0:
            return address
    return None
