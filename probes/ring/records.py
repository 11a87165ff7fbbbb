"""Packets of the ring in numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bpf.arrays import Array, Rows
from bpf.attach.interface import Interface
from probes.flow.records import FLOW, FlowDirection, fill_keys
from probes.ring.options import MOST_KEPT

_TYPE_AT = 12
_VLAN_TYPES = (b"\x81\x00", b"\x88\xa8")
_COUNTS = (MOST_KEPT,)
COUNTS = np.dtype([
    ("last", "u8"), ("now", "u8"), ("kept", "u8", _COUNTS), ("paused", "u8", _COUNTS),
    ("failed", "u8", _COUNTS), ("unused", "u8", (6,)),
])  # fmt: skip
"""`struct kept_cpu` of ring.c."""


def slot_of(size: int) -> np.dtype[Any]:
    """`struct slot` of ring.c, with `size` bytes of a packet."""
    return np.dtype([
        ("number", "u8"), ("time", "u8"), ("key", "u8", (6,)), ("length", "u4"),
        ("captured", "u2"), ("raw", "u1"), ("dropped", "u1"), ("tag", "u2"), ("tag_type", ">u2"),
        ("packets", "u2"), ("selections", "u1"), ("outgoing", "u1"), ("bytes", "u1", (size,)),
        ("ended", "u8"),
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """Packets of a selection, in the order of time."""

    slots: Array
    """Of dtype `slot_of`, (n,)."""
    flows: Rows[FLOW]
    """The flow of each packet, dtype FLOW, (n,)."""

    def __getitem__(self, passing: Array) -> Packets:
        return Packets(self.slots[passing], self.flows[passing])


def packets_of(slots: Array, interface: Interface) -> Packets:
    """Return whole slots, in the order of time, with their flows."""
    slots = slots.take(np.argsort(slots["time"], kind="stable"))
    flows = np.zeros(len(slots), FLOW)
    for direction in FlowDirection:
        chosen = np.flatnonzero(slots["outgoing"] == direction)
        rows = np.zeros(len(chosen), FLOW)
        fill_keys(rows, slots["key"][chosen], direction, interface)
        flows[chosen] = rows
    flows["packets"], flows["bytes"] = slots["packets"], slots["length"]
    flows["first_ns"] = flows["last_ns"] = slots["time"]
    return Packets(slots, flows)


def network_at(slot: Any) -> int:
    """Return how many bytes of a slot are before the IP header."""
    if slot["raw"]:
        return 0
    data, at = slot["bytes"].tobytes(), _TYPE_AT
    while data[at : at + 2] in _VLAN_TYPES:
        at += 4
    return at + 2
