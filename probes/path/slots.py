"""The probes of one destination: from the kernel's slots to rows, once each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from probes.path.records import HOP, Array, Outcome, no_rows

HOPS = 32
STATE_BITS = np.uint64(8)
STATE_MASK = np.uint64(0xFF)


class State(IntEnum):
    """`enum slot_state` of path.h."""

    WRITING = 0
    SENT = 1
    DROPPED = 2
    ANSWERING = 3
    ANSWERED = 4


SLOT = np.dtype(
    [
        ("state", "u8"),
        ("sent_ns", "i8"),
        ("source", "u1", (16,)),
        ("source_port", ">u2"),
        ("destination_port", ">u2"),
        ("word", "u4"),
        ("packet_bytes", "u4"),
        ("length", ">u2"),
        ("hop", "u1"),
        ("protocol", "u1"),
        ("tos", "u1"),
        ("unused", "u1", (15,)),
        ("received_ns", "i8"),
        ("responder", "u1", (16,)),
        ("ttl", "u1"),
        ("icmp_type", "u1"),
        ("icmp_code", "u1"),
        ("quoted_ttl", "u1"),
        ("quoted_tos", "u1"),
        ("extension_size", "u1"),
        ("unused_too", "u1", (2,)),
        ("extension", "u1", (32,)),
    ]
)
"""`struct slot` of path.h: 128 bytes."""

_SENT_FIELDS = ("source", "sent_ns", "packet_bytes", "hop", "protocol")
_ANSWER_FIELDS = ("received_ns", "responder", "ttl", "icmp_type", "icmp_code", "quoted_ttl",
                  "quoted_tos")  # fmt: skip
_WITH_PORTS = (6, 17)
_ECHO = {4: 8 << 8, 6: 128 << 8}
"""Type and code of an echo request, by IP version: in place of the destination port, as in FLOW."""
_TIME_EXCEEDED = {4: 11, 6: 3}
_MAX_LABELS = 4
_LABELS_AT = 8
"""In an extension: after its header and the first object's (RFC 4884, section 7)."""


@dataclass(frozen=True, slots=True)
class Destination:
    """What all probes of a destination have in common."""

    address: bytes
    """16, in network order; IPv4 in the first four."""
    version: int


class Flight:
    """Follows the probes of one destination through its slots.

    The kernel writes slots round about, by sequence number, and never waits. A probe is told once:
    when it is answered, dropped, older than the timeout, or when its slot was needed again before
    any of that was read.
    """

    def __init__(self, destination: Destination, slots: Array, sent: Array, sequence: int) -> None:
        """`slots`: dtype SLOT (n,), `sent`: u8 (32,) by hop, both the kernel's own memory;
        `sequence` is of the first probe that is to be told."""
        self._destination = destination
        self._slots = slots
        self._states = slots["state"]
        self._sent = sent
        self._told_by_hop = sent.copy()
        """Probes by hop that became rows; those of before are none of ours."""
        self._told = np.ones(len(slots), bool)
        """By slot, whether the probe of the sequence number below `_head` was told."""
        self._first = self._head = sequence
        """All below `_first` are told, none from `_head` on was seen."""
        self.pending = 0
        """Probes in flight at the last `collect`."""

    def collect(self, head: int, now_ns: int, timeout_ns: int, *, final: bool = False) -> Array:
        """Rows of dtype HOP of the probes below sequence number `head` that have come to their end.

        With `final` that is all of them.
        """
        overrun = self._advance(head)
        numbers = np.arange(self._first, head)
        places = numbers % len(self._slots)
        waiting = ~self._told[places]
        numbers, places = numbers[waiting].astype("u8"), places[waiting]
        found = self._slots.take(places)
        states = found["state"]
        steady = self._states.take(places) == states
        written = states >> STATE_BITS
        # The kernel may have come round again meanwhile.
        lost = written > numbers
        ours = steady & (written == numbers)
        kind = states & STATE_MASK
        answered = ours & (kind == State.ANSWERED)
        dropped = ours & (kind == State.DROPPED)
        flying = ours & (kind == State.SENT)
        late = flying & (found["sent_ns"] < now_ns - timeout_ns)
        unanswered = flying & late
        over = answered | dropped | unanswered
        if final:
            over |= flying

        outcomes = np.full(len(found), Outcome.IN_FLIGHT, "u1")
        outcomes[answered] = Outcome.ANSWERED
        outcomes[dropped] = Outcome.DROPPED
        outcomes[unanswered] = Outcome.UNANSWERED
        self._told[places[over | lost]] = True
        rows = self._rows(found[over], numbers[over], outcomes[over])
        self._told_by_hop += _count_hops(rows["hop"])
        still = ~(over | lost)
        self.pending = int(still.sum())
        self._first = int(numbers[still][0]) if self.pending else head
        overrun += int(lost.sum())
        if overrun:
            in_flight = _count_hops(found["hop"][still & ours])
            rows = np.concatenate([rows, self._overrun(overrun, in_flight, now_ns)], dtype=HOP)
        return rows

    def _advance(self, head: int) -> int:
        """Take in the sequence numbers up to `head`; how many others they have overwritten."""
        size = len(self._slots)
        oldest = max(self._first, head - size)
        passed = np.arange(self._first, min(oldest, self._head)) % size
        overrun = int((~self._told[passed]).sum()) + max(0, oldest - max(self._head, self._first))
        self._first = oldest
        fresh = np.arange(max(self._head, oldest), head) % size
        self._told[fresh] = False
        self._head = head
        return overrun

    def _overrun(self, count: int, in_flight: Array, now_ns: int) -> Array:
        """Rows for probes that were not read: what was sent at each hop, and is nowhere else."""
        missing = (self._sent - self._told_by_hop - in_flight).astype("i8").clip(0)
        # The counts go on while they are read: what is too many now comes with the next time.
        hops = np.repeat(np.arange(HOPS, dtype="u1"), missing)[:count]
        rows = np.zeros(len(hops), HOP)
        rows["destination"] = np.frombuffer(self._destination.address, "u1")
        rows["version"] = self._destination.version
        rows["hop"] = hops
        rows["outcome"] = Outcome.OVERRUN
        rows["sent_ns"] = now_ns
        self._told_by_hop += _count_hops(hops)
        return rows

    def _rows(self, found: Array, numbers: Array, outcomes: Array) -> Array:
        rows = np.zeros(len(found), HOP)
        if not len(rows):
            return rows
        version = self._destination.version
        rows["destination"] = np.frombuffer(self._destination.address, "u1")
        rows["version"] = version
        rows["sequence"] = numbers
        rows["outcome"] = outcomes
        for name in _SENT_FIELDS:
            rows[name] = found[name]
        ports = np.isin(found["protocol"], _WITH_PORTS)
        rows["source_port"] = found["source_port"]
        rows["destination_port"] = np.where(ports, found["destination_port"], _ECHO[version])
        answered = outcomes == Outcome.ANSWERED
        for name in _ANSWER_FIELDS:
            rows[name][answered] = found[name][answered]
        refused = answered & (found["icmp_type"] != _TIME_EXCEEDED[version])
        rows["outcome"][refused] = Outcome.UNREACHABLE
        extended = np.flatnonzero(answered & (found["extension_size"] > _LABELS_AT))
        if len(extended):
            labels, counts = labels_of(found["extension"][extended],
                                       found["extension_size"][extended])  # fmt: skip
            rows["labels"][extended] = labels
            rows["label_count"][extended] = counts
        return rows


def labels_of(extensions: Array, sizes: Array) -> tuple[Array, Array]:
    """MPLS label stack entries u4 (n, 4), and how many u1 (n,), of ICMP extensions u1 (n, 32).

    `sizes` (n,) are the bytes at hand. Where the first object is no label stack (RFC 4950: class
    and type 1), or the version is not 2, there are none.
    """
    length = extensions[:, 4].astype("i4") << 8 | extensions[:, 5]
    usable = (extensions[:, 0] >> 4 == 2) & (extensions[:, 6] == 1) & (extensions[:, 7] == 1)
    counts = (np.minimum(length - 4, sizes.astype("i4") - _LABELS_AT) // 4).clip(0, _MAX_LABELS)
    counts = np.where(usable, counts, 0)
    entries = np.ascontiguousarray(extensions[:, _LABELS_AT : _LABELS_AT + 4 * _MAX_LABELS])
    labels = entries.view(">u4").astype("u4")
    labels[np.arange(_MAX_LABELS) >= counts[:, None]] = 0
    return labels, counts.astype("u1")


def _count_hops(hops: Array) -> Array:
    return np.bincount(hops, minlength=HOPS).astype("u8")


def nothing() -> Array:
    """No rows of dtype HOP."""
    return no_rows(HOP)
