"""Facts about a lab for comparison with measurements: hops, delays and packet counts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from app.lab import netns, topology
from app.lab.network import Lab
from app.lab.plan import CLIENT, SERVER, LabPlan
from bpf.errors import UsageError
from tests.support.sight import node


def hops(plan: LabPlan, detour: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return the nodes at hop 1, 2, ... to the server. The hop of a twin has two nodes."""
    found = []
    nodes: tuple[str, ...] = (CLIENT,)
    while nodes != (SERVER,):
        links = [link for name in nodes for link in plan.forward(name, detour)]
        nodes = tuple(dict.fromkeys(link.right for link in links))
        found.append(nodes)
    return tuple(found)


def delay(plan: LabPlan, hop: int) -> float:
    """Return the sum of the delays, in seconds, to `hop` (1: the first router) and back.

    With a twin, the path leads through the original router.
    """
    there = 0.0
    name = CLIENT
    for _ in range(hop):
        link = plan.forward(name)[0]
        there, name = there + link.delay, link.right
    back = 0.0
    while name != CLIENT:
        link = plan.backward(name)
        back, name = back + link.delay, link.left
    return there + back


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Counters of an interface. A large segment, which is cut later, counts as one packet."""

    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


def interface_counters(lab: Lab, name: str, interface: str) -> InterfaceCounters:
    """Return the counters since the lab was made. Raises UsageError for an unknown interface."""
    with node(lab, name):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    for line in lines[2:]:
        found, _, numbers = line.partition(":")
        if found.strip() == interface:
            counts = [int(number) for number in numbers.split()]
            return InterfaceCounters(*counts[:2], *counts[8:10])
    raise UsageError(f"{name} has no interface {interface!r}")


def silence(lab: Lab, name: str, on: bool) -> None:
    """Stop or restore the ICMP errors of a node."""
    namespace = lab.open_namespace(name)
    try:
        netns.write_sysctls(namespace, topology.icmp_limits(lab.plan, name, silent=on))
    finally:
        os.close(namespace)
