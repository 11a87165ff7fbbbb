"""What path tracing gives: a row a probe, and rows of what they say of a path."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HOPS_TABLE = "hops"
PATHS_TABLE = "paths"
"""Names of the two tables: `Snapshot.metric` of the probe `path`."""


class ProbeOutcome(IntEnum):
    """What became of a probe."""

    ANSWERED = 0
    """A router says that the hop limit was exceeded in transit."""
    UNREACHABLE = 1
    """A router, or the destination, says that it does not deliver."""
    UNANSWERED = 2
    """Nothing came within the timeout."""
    DROPPED = 3
    """This host did not send it: its queue was full, memory was short, or another program on the
    egress hook changed or took it."""
    OVERRUN = 4
    """Not known: its place was needed by another before it was read. Its flow is not known."""
    IN_FLIGHT = 5
    """Tracing ended before an answer came, and before the timeout."""
    BEYOND_PATH = 6
    """Nothing came, and no router was ever known to be that far away: it was a look whether the
    path has become longer."""

    @property
    def is_loss(self) -> bool:
        """Whether the network may have lost it or its answer."""
        return self is ProbeOutcome.UNANSWERED

    @property
    def label(self) -> str:
        """As an operator reads it: `in flight`."""
        return self.name.lower().replace("_", " ")


class PathRowKind(IntEnum):
    """What a row of PATH tells."""

    SUMMARY = 0
    """What was measured at a hop in the last second or so."""
    RESPONDER = 1
    """Another router answers at this hop (S3.20): `previous` did before."""
    BALANCED = 2
    """This flow's router at this hop is another than that of other flows: `previous` is theirs."""
    BALANCED_PACKETS = 3
    """One flow is answered by several routers in turn: per-packet balancing."""
    LONGER = 4
    """The path has more hops: `hop` is the last one now, `amount` how many more."""
    SHORTER = 5
    SILENT = 6
    """The hop answers no more."""
    ANSWERS = 7
    """The hop answers again."""
    SHIFT = 8
    """The round-trip time has another level: by `amount_ns`."""
    QUEUE = 9
    """A queue builds up at this hop, before which there is none: `amount_ns` of it."""
    QUEUE_OVER = 10
    GAP = 11
    """No probes for a while, as the application sent nothing: `amount_ns` long."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


FLOW_KEY = (
    ("destination", "u1", (16,)),
    ("source", "u1", (16,)),
    ("source_port", ">u2"),
    ("destination_port", ">u2"),
    ("protocol", "u1"),
    ("version", "u1"),
)
"""The flow that a probe went with. Addresses are in network order, IPv4 in the first four bytes.
ICMP echo has its identifier as source port and type * 256 as destination port."""

HOP = np.dtype(
    [
        *FLOW_KEY,
        ("hop", "u1"),
        ("outcome", "u1"),
        ("sent_ns", "i8"),
        ("received_ns", "i8"),
        ("responder", "u1", (16,)),
        ("labels", "u4", (4,)),
        ("sequence", "u4"),
        ("packet_bytes", "u4"),
        ("ttl", "u1"),
        ("icmp_type", "u1"),
        ("icmp_code", "u1"),
        ("quoted_ttl", "u1"),
        ("quoted_tos", "u1"),
        ("label_count", "u1"),
        ("_", "V2"),
    ]
)
"""One probe that has come to its end. `hop` is the TTL or hop limit it was sent with; times are
CLOCK_MONOTONIC (`received_ns` 0 without an answer, `sent_ns` that of reading for an overrun);
`responder` is who answered, `ttl` its answer's when received; `labels` are the MPLS label stack
entries (RFC 3032) of RFC 4950, outermost first, `label_count` of them; `sequence` counts the
destination's probes; `packet_bytes` is the length of the packet that caused it, a large segment's
before it was cut; `quoted_*` are what the router saw."""

PATH = np.dtype(
    [
        *FLOW_KEY,
        ("hop", "u1"),
        ("kind", "u1"),
        ("at_ns", "i8"),
        ("responder", "u1", (16,)),
        ("previous", "u1", (16,)),
        ("sent", "u4"),
        ("answered", "u4"),
        ("lost", "u4"),
        ("dropped", "u4"),
        ("loss_low", "f4"),
        ("loss_high", "f4"),
        ("last_ns", "i8"),
        ("min_ns", "i8"),
        ("median_ns", "i8"),
        ("p95_ns", "i8"),
        ("max_ns", "i8"),
        ("jitter_ns", "i8"),
        ("amount_ns", "i8"),
        ("since_ns", "i8"),
        ("amount", "i4"),
        ("alternatives", "u2"),
        ("cleared", "u1"),
        ("label_count", "u1"),
        ("labels", "u4", (4,)),
    ]
)
"""What is known of one hop of one flow. `at_ns` is when it was found out, `since_ns` since when it
is so (CLOCK_MONOTONIC). A SUMMARY has the counts and round-trip times since the last one (-1 where
there is none), the limits between which its loss lies at 95 % confidence (0 to 1), `amount_ns` of
queue at this hop, how many routers were seen at this hop for all flows of the destination
(`alternatives`), and whether a later hop without loss clears this one (`cleared`): then it only
answers seldom. The other kinds have what they name, and zero elsewhere."""


def no_rows(dtype: np.dtype[Any]) -> Array:
    """None."""
    return np.empty(0, dtype)
