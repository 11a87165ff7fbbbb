"""Round trips of the flow itself: from the kernel's samples to rows (round_trip.h)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.records import DESTINATION_HOP, HOP, MeasuredBy, ProbeOutcome
from probes.path.slots import ECHO_PORTS, PROTOCOLS_WITH_PORTS
from probes.path.targets import TracedDestination

EXCHANGES = 128
"""Exchanges of one destination."""
EXPIRY_NS = 1_000_000_000
"""A timed packet stays in its exchange for so long after its timeout, until it was reported."""

EXCHANGE = np.dtype([
    ("flow", "u8"), ("source", "u1", (16,)), ("sent_ns", "i8"), ("again_ns", "u8"),
    ("again_clock", "u4"), ("expected", "u4"), ("source_port", ">u2"), ("destination_port", ">u2"),
    ("packet_bytes", "u4"), ("start", "u4"), ("burst_end", "u4"), ("measured_by", "u1"),
    ("tos", "u1"), ("held", "u1"), ("known", "u1"), ("next", "u4"), ("clock", "u4"),
    ("mss", "u4"), ("follow_ns", "u8"), ("follow_end", "u4"), ("window", "u2"),
    ("widest", "u2"),
    ("busy", "u8"), ("seen_ns", "u8"), ("due_ns", "u8"), ("heard_ns", "u8"),
    ("least_ns", "u8"), ("least_before_ns", "u8"), ("least_since_ns", "u8"), ("run", "u4"),
    ("steady", "u1"), ("spin_in", "u1"), ("spin_out", "u1"), ("unused_too", "u1"),
])  # fmt: skip
"""`struct exchange` of round_trip.h: 168 bytes."""

SAMPLE = np.dtype([
    ("number", "u8"), ("sent_ns", "i8"), ("received_ns", "i8"), ("source", "u1", (16,)),
    ("source_port", ">u2"), ("destination_port", ">u2"), ("remote_clock", "u4"),
    ("packet_bytes", "u4"), ("place", "u4"), ("kind", "u1"), ("protocol", "u1"),
    ("measured_by", "u1"), ("tos", "u1"), ("ttl", "u1"), ("unused", "u1", (3,)),
])  # fmt: skip
"""`struct sample` of round_trip.h: 64 bytes."""


class SampleKind(IntEnum):
    """`enum sample_kind` of round_trip.h."""

    TIMED = 0
    UNTIMED = 1
    LOST = 2


_FIELDS = ("sent_ns", "received_ns", "source", "source_port", "destination_port", "remote_clock",
           "packet_bytes", "protocol", "measured_by", "tos", "ttl")  # fmt: skip
_EXCHANGE_FIELDS = ("sent_ns", "source", "source_port", "destination_port", "packet_bytes",
                    "measured_by", "tos")  # fmt: skip
_ALWAYS_ANSWERED = (MeasuredBy.TCP_HANDSHAKE, MeasuredBy.ICMP_ECHO, MeasuredBy.DNS)


class RoundTrips:
    """Reads the ring of samples, and finds timed packets without an answer.

    A TCP segment counts as lost only if it was retransmitted: its acknowledgement may take another
    interface. A SYN, an echo request and a DNS query count as lost after the timeout. Packets in
    flight when tracing ends make no row.
    """

    def __init__(
        self, timeout_ns: int, exchanges: Rows[EXCHANGE], samples: Rows[SAMPLE], sampled: Array
    ) -> None:
        """`exchanges`: dtype EXCHANGE (EXCHANGES a destination,), `samples`: dtype SAMPLE (a power
        of two,), `sampled`: u8 (1,), all the kernel's own memory."""
        self._exchanges = exchanges
        self._samples = samples
        self._sampled = sampled
        self._timeout_ns = timeout_ns
        self._read = int(sampled[0])
        """Samples read so far."""
        self._lost_ns = np.zeros(len(exchanges), "i8")
        """When the packet was sent that each exchange last lost by timeout."""
        self.overrun = 0
        """Samples so far that were overwritten before they were read."""

    def close(self) -> None:
        """Release the kernel's memory."""
        self._exchanges, self._samples = self._exchanges[:0].copy(), self._samples[:0].copy()
        self._sampled = self._sampled.copy()
        self._read = int(self._sampled[0])

    def collect(self, targets: Iterable[TracedDestination], now_ns: int) -> Rows[HOP]:
        """Rows of dtype HOP of the finished round trips to `targets`."""
        destinations = {target.index: target.destination for target in targets}
        timed_out = self._timed_out(list(destinations), now_ns)
        found = np.concatenate([self._new_samples(), timed_out], dtype=SAMPLE)
        indices = found["place"] // EXCHANGES
        rows = np.zeros(len(found), HOP)
        for name in _FIELDS:
            rows[name] = found[name]
        rows["hop"] = DESTINATION_HOP
        lost = found["kind"] == SampleKind.LOST
        rows["outcome"] = np.where(lost, ProbeOutcome.UNANSWERED, ProbeOutcome.ANSWERED)
        for index, destination in destinations.items():
            mine = indices == index
            rows["version"][mine] = destination.version
            rows["destination"][mine] = np.frombuffer(destination.address, "u1")
        echo = ~np.isin(rows["protocol"], PROTOCOLS_WITH_PORTS)
        for version, port in ECHO_PORTS.items():
            rows["destination_port"][echo & (rows["version"] == version)] = port
        rows["responder"][~lost] = rows["destination"][~lost]
        return rows.take(np.flatnonzero(rows["version"]))

    def forget(self, index: int) -> None:
        """Empty the exchanges of a target that no program uses any more."""
        mine = slice(index * EXCHANGES, (index + 1) * EXCHANGES)
        self._exchanges[mine] = np.zeros((), EXCHANGE)
        self._lost_ns[mine] = 0

    def _new_samples(self) -> Rows[SAMPLE]:
        """Samples (n,) of dtype SAMPLE since the last call, without those already reported."""
        size = len(self._samples)
        head = int(self._sampled[0])
        if head == self._read:
            return np.empty(0, SAMPLE)
        numbers = np.arange(max(self._read, head - size), head, dtype="u8") + np.uint64(1)
        places = ((numbers - np.uint64(1)) % np.uint64(size)).astype("i8")
        # A number is set last, and set to 0 first.
        found = self._samples.take(places)
        after = self._samples["number"].take(places)
        whole = (found["number"] == numbers) & (after == numbers)
        unwritten = np.flatnonzero(~whole & (after < numbers))
        # A sample that is being written now is read at the next poll, with all later ones.
        end = int(unwritten[0]) if len(unwritten) else len(numbers)
        self.overrun += max(0, head - size - self._read) + int((~whole[:end]).sum())
        self._read = int(numbers[0]) - 1 + end
        found = found[:end][whole[:end]]
        fresh: Array = found.take(np.flatnonzero(found["sent_ns"] != self._lost_ns[found["place"]]))
        return fresh

    def _timed_out(self, indices: list[int], now_ns: int) -> Rows[SAMPLE]:
        """Samples (n,) of dtype SAMPLE of timed packets that were not answered in time."""
        places = (np.array(indices, "i8")[:, np.newaxis] * EXCHANGES
                  + np.arange(EXCHANGES)).ravel()  # fmt: skip
        sent = self._exchanges["sent_ns"][places]
        late = (sent > 0) & (sent < now_ns - self._timeout_ns) & (sent != self._lost_ns[places])
        places = places[late]
        found = self._exchanges[places]
        # The kernel sets the time to 0 before it changes other fields.
        steady = self._exchanges["sent_ns"][places] == found["sent_ns"]
        method = found["measured_by"]
        lossy = np.isin(method, _ALWAYS_ANSWERED)
        lossy |= (method == MeasuredBy.TCP_ACK) & (found["again_ns"] > 0)
        places, found = places[steady & lossy], found[steady & lossy]
        self._lost_ns[places] = found["sent_ns"]
        samples = np.zeros(len(found), SAMPLE)
        for name in _EXCHANGE_FIELDS:
            samples[name] = found[name]
        samples["place"], samples["kind"] = places, SampleKind.LOST
        samples["protocol"] = found["flow"] >> np.uint64(32)
        return samples
