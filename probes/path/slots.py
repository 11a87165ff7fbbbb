"""The probes of one destination: from the kernel's slots to rows, once each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter.hosts import address_text
from probes.path.records import HOP, HOP_COUNT, ProbeOutcome, no_rows

_OVERDUE_NS = 500_000_000
STATE_BITS = np.uint64(8)
STATE_MASK = np.uint64(0xFF)


class SlotState(IntEnum):
    """`enum slot_state` of path.h."""

    WRITING = 0
    SENT = 1
    DROPPED = 2
    ANSWERING = 3
    ANSWERED = 4
    SKIPPED = 5


SLOT = np.dtype([
    ("state", "u8"), ("sent_ns", "i8"), ("source", "u1", (16,)), ("source_port", ">u2"),
    ("destination_port", ">u2"), ("word", "u4"), ("packet_bytes", "u4"), ("length", ">u2"),
    ("hop", "u1"), ("protocol", "u1"), ("tos", "u1"), ("whole", "u1"), ("checksum", "u2"),
    ("acknowledgement", "u4"), ("partial", "u2"), ("unused", "u2", (3,)),
    ("received_ns", "i8"), ("responder", "u1", (16,)), ("ttl", "u1"), ("icmp_type", "u1"),
    ("icmp_code", "u1"), ("quoted_ttl", "u1"), ("quoted_tos", "u1"), ("extension_size", "u1"),
    ("altered", "u2"), ("extension", "u1", (32,)),
])  # fmt: skip
"""`struct slot` of path.h: 128 bytes."""

_SENT_FIELDS = ("source", "sent_ns", "packet_bytes", "hop", "protocol", "tos", "whole")
_ANSWER_FIELDS = ("received_ns", "responder", "ttl", "icmp_type", "icmp_code", "quoted_ttl",
                  "quoted_tos", "altered")  # fmt: skip
PROTOCOLS_WITH_PORTS = (6, 17)
ECHO_PORTS = {4: 8 << 8, 6: 128 << 8}
"""Type and code of an echo request by IP version, in place of the destination port as in FLOW."""
_TIME_EXCEEDED = {4: 11, 6: 3}
_ECHO_REPLY = {4: 0, 6: 129}
_MAX_LABELS = 4
_LABELS_AT = 8
"""Offset in an extension: after its header and the first object's (RFC 4884, section 7)."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Address and IP version of a traced destination."""

    address: bytes
    """16, in network order; IPv4 in the first four."""
    version: int

    @property
    def text(self) -> str:
        return address_text(self.address, self.version)


def overdue_after(timeout_ns: int) -> int:
    """Time after which a probe in flight may be lost: half a second, if the timeout is longer."""
    return min(_OVERDUE_NS, timeout_ns // 2)


class InFlight:
    """Follows the probes of one destination through its slots.

    The kernel fills the slots in a circle, by sequence number, and never waits. Each probe is
    reported once: answered, dropped, timed out, or overrun (its slot was reused before it was
    read).
    """

    def __init__(self, destination: Destination, slots: Rows[SLOT], kernel: Array) -> None:
        """`slots`: dtype SLOT (n,), `kernel`: dtype TARGET (1,), both the kernel's own memory.

        Earlier probes are not reported.
        """
        self._destination = destination
        self._slots = slots
        self._states = slots["state"]
        self._kernel = kernel
        self._reported_by_hop = kernel["sent"][0].astype("i8")
        self._head = int(kernel["sequence"][0])
        """The next sequence number to be read."""
        self._waiting = np.empty(0, "u8")
        """Earlier sequence numbers that are not reported yet, ascending."""
        self.overdue = no_rows(HOP)
        """Rows of dtype HOP of the probes in flight at the last `collect` that may be lost:
        `overdue_after`."""

    @property
    def pending(self) -> int:
        """Probes in flight at the last `collect`."""
        return len(self._waiting)

    def collect(self, now_ns: int, timeout_ns: int, *, final: bool = False) -> Rows[HOP]:
        """Rows of dtype HOP of the finished probes.

        `final`: all probes count as finished, because the kernel has stopped sending.
        """
        # In this order: every probe counted by hop has a number below `head`.
        sent = self._kernel["sent"][0].astype("i8")
        head = int(self._kernel["sequence"][0])
        size = len(self._slots)
        fresh = np.arange(max(self._head, head - size), head, dtype="u8")
        numbers = np.concatenate([self._waiting, fresh])
        self._head = head
        places = (numbers % np.uint64(size)).astype("i8")
        # A state never repeats: if it is unchanged, the fields read in between are whole.
        states = self._states.take(places)
        found = self._slots.take(places)
        steady = self._states.take(places) == states
        kind = states & STATE_MASK
        written = states >> STATE_BITS
        ours = steady & (written == numbers) & (kind != SlotState.WRITING)
        skipped = ours & (kind == SlotState.SKIPPED)
        answered = ours & (kind == SlotState.ANSWERED)
        dropped = ours & (kind == SlotState.DROPPED)
        unanswered = ours & (kind == SlotState.SENT) & (found["sent_ns"] < now_ns - timeout_ns)
        over = ours & ~skipped if final else answered | dropped | unanswered

        outcomes = np.full(len(found), ProbeOutcome.IN_FLIGHT, "u1")
        outcomes[answered] = ProbeOutcome.ANSWERED
        outcomes[dropped] = ProbeOutcome.DROPPED
        outcomes[unanswered] = ProbeOutcome.UNANSWERED
        rows = self._rows(found[over], numbers[over], outcomes[over])
        self._reported_by_hop += _count_hops(rows["hop"])
        waits = ~over & ~skipped & (written <= numbers) & (not final)
        self._waiting = numbers[waits]
        since_ns = now_ns - overdue_after(timeout_ns)
        late = waits & ours & (kind == SlotState.SENT) & (found["sent_ns"] < since_ns)
        self.overdue = self._rows(found[late], numbers[late], outcomes[late])
        # Probes that are being written now are counted at their hop, which is unknown yet.
        unknown = int((waits & ~ours).sum())
        missing = sent - self._reported_by_hop - _count_hops(found["hop"][waits & ours]) - unknown
        if (missing > 0).any():
            rows = np.concatenate([rows, self._overrun(missing.clip(0), now_ns)], dtype=HOP)
        return rows

    def _overrun(self, by_hop: Array, now_ns: int) -> Rows[HOP]:
        """Rows for `by_hop` probes that were sent and are in no slot."""
        hops = np.repeat(np.arange(HOP_COUNT, dtype="u1"), by_hop)
        rows = np.zeros(len(hops), HOP)
        rows["destination"] = np.frombuffer(self._destination.address, "u1")
        rows["version"] = self._destination.version
        rows["hop"] = hops
        rows["outcome"] = ProbeOutcome.OVERRUN
        rows["sent_ns"] = now_ns
        self._reported_by_hop += by_hop
        return rows

    def _rows(self, found: Rows[SLOT], numbers: Array, outcomes: Array) -> Rows[HOP]:
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
        ports = np.isin(found["protocol"], PROTOCOLS_WITH_PORTS)
        rows["source_port"] = found["source_port"]
        rows["destination_port"] = np.where(ports, found["destination_port"], ECHO_PORTS[version])
        answered = outcomes == ProbeOutcome.ANSWERED
        for name in _ANSWER_FIELDS:
            rows[name][answered] = found[name][answered]
        told = (_TIME_EXCEEDED[version], _ECHO_REPLY[version])
        refused = answered & ~np.isin(found["icmp_type"], told)
        rows["outcome"][refused] = ProbeOutcome.UNREACHABLE
        extended = np.flatnonzero(answered & (found["extension_size"] > _LABELS_AT))
        if len(extended):
            labels, counts = labels_of(found["extension"][extended],
                                       found["extension_size"][extended])  # fmt: skip
            rows["labels"][extended] = labels
            rows["label_count"][extended] = counts
        return rows


def labels_of(extensions: Array, sizes: Array) -> tuple[Array, Array]:
    """MPLS label stack entries u4 (n, 4), and how many u1 (n,), of ICMP extensions u1 (n, 32).

    `sizes` (n,) are the bytes at hand. There are none if the first object is no label stack (RFC
    4950: class and type 1) or the version is not 2.
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
    return np.bincount(hops % HOP_COUNT, minlength=HOP_COUNT)
