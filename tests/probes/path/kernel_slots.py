"""Slots of probes in flight, written as the kernel writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpf.arrays import Array
from probes.path.records import ProbeOutcome
from probes.path.slots import SLOT, Destination, InFlight, SlotState
from probes.path.targets import TARGET

V4 = Destination(bytes([192, 0, 2, 9]).ljust(16, b"\0"), 4)
V6 = Destination(bytes([0x20, 1, 0xD, 0xB8]).ljust(16, b"\7"), 6)
TIMEOUT = 1000
EXCEEDED, UNREACHABLE = 11, 3
STARTS = (0, 3, (1 << 16) - 5, (1 << 32) - 5, 1 << 40)
"""First sequence numbers, also some that exceed the fields of a packet or a row."""


class Kernel:
    """Writes of egress.c and ingress.c to the tables, step by step."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.slots = np.zeros(size, SLOT)
        self.table = np.zeros(1, TARGET)
        self.table["sequence"] = start
        self.now = 10_000

    def count(self, hop: int) -> int:
        """Give a probe its number."""
        sequence = int(self.table["sequence"][0])
        self.table["sequence"] += 1
        self.table["sent"][0, hop] += 1
        return sequence

    def skip(self) -> int:
        """Take a number without a probe."""
        self.table["sequence"] += 1
        return int(self.table["sequence"][0]) - 1

    def slot(self, sequence: int) -> Any:
        return self.slots[sequence % len(self.slots)]

    def begin(self, sequence: int) -> None:
        slot = self.slot(sequence)
        slot["state"] = SlotState.WRITING
        for name in ("hop", "sent_ns", "word"):
            slot[name] = 0xDD  # neither the old one's nor the new one's

    def write(
        self, sequence: int, hop: int, state: SlotState = SlotState.SENT, **fields: Any
    ) -> None:
        self.begin(sequence)
        slot = self.slot(sequence)
        slot["hop"], slot["sent_ns"], slot["protocol"] = hop, self.now, 17
        for name, value in fields.items():
            slot[name] = value
        slot["state"] = sequence << 8 | state

    def send(self, hop: int = 1, state: SlotState = SlotState.SENT, **fields: Any) -> int:
        sequence = self.count(hop)
        self.write(sequence, hop, state, **fields)
        return sequence

    def answer(self, sequence: int, kind: int = EXCEEDED, **fields: Any) -> bool:
        """Whether it was a probe's."""
        slot = self.slot(sequence)
        if slot["state"] != sequence << 8 | SlotState.SENT:
            return False
        slot["state"] = sequence << 8 | SlotState.ANSWERING
        slot["received_ns"], slot["icmp_type"] = self.now, kind
        for name, value in fields.items():
            slot[name] = value
        slot["state"] = sequence << 8 | SlotState.ANSWERED
        return True


def flight(size: int = 8, start: int = 0, to: Destination = V4) -> tuple[Kernel, InFlight]:
    kernel = Kernel(size, start)
    return kernel, InFlight(to, kernel.slots, kernel.table)


def outcomes(rows: Array) -> list[tuple[int, ProbeOutcome]]:
    return [(int(row["sequence"]), ProbeOutcome(row["outcome"])) for row in rows]
