"""Rows of path tracing: one a probe, and findings about paths."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from bpf.arrays import Array

HOP_COUNT = 32
"""Length of arrays by hop; hop 0 stays empty."""
DESTINATION_HOP = 31
"""`hop` of a round trip of the flow itself, from this host to the destination and back. It is no
TTL: probes have at most MAX_HOPS."""
HOPS_TABLE = "hops"
PATHS_TABLE = "paths"
TRACES_TABLE = "traces"
"""Names of the tables: `Snapshot.metric` of the probe `path`."""


class ProbeOutcome(IntEnum):
    ANSWERED = 0
    """A router reports that the hop limit was exceeded in transit, or the destination replies to a
    probe that is an echo request."""
    UNREACHABLE = 1
    """A router or the destination reports that it does not deliver."""
    UNANSWERED = 2
    """No answer came within the timeout."""
    DROPPED = 3
    """This host did not send it: the queue was full, memory was short, or another program on the
    egress hook changed or took it."""
    OVERRUN = 4
    """Unknown: its slot was reused before it was read. Its flow is unknown, too."""
    IN_FLIGHT = 5
    """Tracing ended before an answer came, and before the timeout."""
    BEYOND_PATH = 6
    """No answer came from beyond the known path: the probe only tested whether the path has
    grown."""

    @property
    def is_loss(self) -> bool:
        """Whether the network may have lost the probe or its answer."""
        return self is ProbeOutcome.UNANSWERED

    @property
    def label(self) -> str:
        """As an operator reads it: `in flight`."""
        return self.name.lower().replace("_", " ")


class MeasuredBy(IntEnum):
    """How a round trip was measured: by a probe, or from the flow's own packets."""

    PROBE = 0
    TCP_HANDSHAKE = 1
    """SYN to SYN-ACK."""
    TCP_ACK = 2
    """TCP data to its acknowledgement (RFC 9293, section 3.10.7.4)."""
    TCP_TIMESTAMP = 3
    """A TCP timestamp to its echo (RFC 7323, section 4)."""
    ICMP_ECHO = 4
    """An echo request to its reply."""
    DNS = 5
    """A DNS query to the response with its number."""
    QUIC_SPIN = 6
    """An edge of QUIC's latency spin bit to its reflection (RFC 9000, section 17.4)."""
    REFUSAL = 7
    """A datagram to the destination's message that its port is unreachable."""
    ECHO_BESIDE_THE_FLOW = 8
    """An ICMP echo request with the TTL of a hop whose router answers no probe of the flow, or with
    that of the destination behind such hops."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


class Altered(IntFlag):
    """Fields of a probe that a middlebox changed, by the quote of the router behind it."""

    IDENTIFICATION = 1
    """IPv4's identification."""
    LENGTH = 2
    SOURCE = 4
    """Source address or port: an address translation that quotes do not undo."""
    SEQUENCE = 8
    """TCP's sequence or acknowledgement number."""
    CHECKSUM = 16
    """The transport checksum."""


class PathRowKind(IntEnum):
    """Kind of a finding. The end of one that lasts has the next number: LOOP and LOOP_OVER."""

    SUMMARY = 0
    """Measurements of a hop in the last second or so."""
    RESPONDER = 1
    """Another router answers at this hop (S3.20); `previous` did before."""
    BALANCED = 2
    """Flows share several routers at this hop: `flows` of them go by `responder`."""
    BALANCED_PACKETS = 3
    """Several routers answer one flow in turn: per-packet balancing."""
    LONGER = 4
    """The path has grown: `hop` is its last one now, `amount` how many more."""
    SHORTER = 5
    SILENT = 6
    """The hop stopped answering."""
    ANSWERS = 7
    """The hop answers again."""
    SHIFT = 8
    """The round-trip time changed its level by `amount_ns`."""
    QUEUE = 9
    """A queue of `amount_ns` builds up at this hop, and none before it."""
    QUEUE_OVER = 10
    GAP = 11
    """No probes for `amount_ns`: the application sent nothing."""
    BRANCH = 12
    """The times of flows that go by `responder` at hop `amount`, beside those that go by
    `previous`: `amount_ns` more at this hop, by medians."""
    MARKING = 13
    """From this hop on routers quote another TOS or traffic class: `amount` is the sent one * 256 +
    the quoted one."""
    ALTERED = 14
    """From this hop on routers quote a changed field: `amount` is one bit of Altered."""
    ROUTE = 15
    """The route changed at hops `hop` to `other_hop`, for `flows`: at `hop` by `responder`, before
    by `previous`. The path became `amount` hops longer, the round-trip time to its end
    `amount_ns`, if that is known already."""
    ROUTE_AMOUNTS = 16
    """`amount` and `amount_ns` of the last ROUTE, if they became known later."""
    ALIAS = 17
    """Another address than `previous` answers at this hop, of the same router or of another one:
    later hops and the round-trip time are the same. Its answers come back by a way that is `amount`
    hops longer."""
    LOSS = 18
    """Probes to this hop and to all later ones are lost, none before it."""
    LOSS_OVER = 19
    LOOP = 20
    """Packets go round `amount` routers, from `responder` at this hop to `previous` at
    `other_hop`, and to `responder` again."""
    LOOP_OVER = 21
    """A LOOP of `amount_ns` is over."""
    FLAP = 22
    """This hop changed `amount` times between `responder` (now) and `previous`, every `amount_ns`
    since `since_ns`. A flap that goes on has more rows."""
    FLAP_OVER = 23
    """The same, at its end. `other_hop` is the last hop of the path."""

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
"""The flow of a probe. Addresses are in network order, IPv4 in the first four bytes. ICMP echo has
its identifier as source port and type * 256 as destination port."""

HOP = np.dtype([
    *FLOW_KEY, ("hop", "u1"), ("outcome", "u1"), ("sent_ns", "i8"), ("received_ns", "i8"),
    ("responder", "u1", (16,)), ("labels", "u4", (4,)), ("sequence", "u4"), ("packet_bytes", "u4"),
    ("ttl", "u1"), ("icmp_type", "u1"), ("icmp_code", "u1"), ("quoted_ttl", "u1"),
    ("quoted_tos", "u1"), ("label_count", "u1"), ("measured_by", "u1"), ("whole", "u1"),
    ("remote_clock", "u4"), ("altered", "u2"), ("tos", "u1"), ("_", "V1"),
])  # fmt: skip
"""One finished probe, or one round trip of the flow itself (`measured_by`, at DESTINATION_HOP).
`hop` is its TTL or hop limit; times are CLOCK_MONOTONIC (`received_ns` 0 without an answer,
`sent_ns` the time of reading for an overrun); `responder` is the router that answered, `ttl` the
answer's when received; `labels` are the MPLS label stack entries (RFC 3032) of RFC 4950, outermost
first, `label_count` of them; `sequence` numbers the destination's probes; `packet_bytes` is the
length of the packet that caused the probe, before segmentation; `quoted_*` are the probe's fields
as the router saw them, `tos` is the one that was sent; `altered` are the changes of other fields
(Altered); `whole` is 1 if the probe was a valid packet of its flow, 0 if its guard makes a receiver
drop it; `remote_clock` is the TCP timestamp (RFC 7323) of the packet that ended a round trip of the
flow, 0 without one."""


class QueueSide(IntEnum):
    """The way on which a queue builds up."""

    EITHER = 0
    """Unknown."""
    THERE = 1
    """On the way to the destination."""
    BACK = 2

    @property
    def words(self) -> str:
        return _SIDES[self]


_SIDES = {
    QueueSide.EITHER: "either way",
    QueueSide.THERE: "on the way there",
    QueueSide.BACK: "on the way back",
}

PATH = np.dtype([
    *FLOW_KEY, ("hop", "u1"), ("kind", "u1"), ("at_ns", "i8"), ("responder", "u1", (16,)),
    ("previous", "u1", (16,)), ("sent", "u4"), ("answered", "u4"), ("lost", "u4"),
    ("dropped", "u4"), ("loss_low", "f4"), ("loss_high", "f4"), ("last_ns", "i8"),
    ("min_ns", "i8"), ("median_ns", "i8"), ("p95_ns", "i8"), ("max_ns", "i8"), ("jitter_ns", "i8"),
    ("amount_ns", "i8"), ("since_ns", "i8"), ("amount", "i4"), ("alternatives", "u2"),
    ("cleared", "u1"), ("label_count", "u1"), ("labels", "u4", (4,)),
    ("statistic", "f4"), ("p_value", "f4"), ("flows", "u2"), ("other_hop", "u1"), ("side", "u1"),
    ("folded", "u1"), ("_", "V3"),
])  # fmt: skip
"""State of one hop of one flow, found out at `at_ns` and true since `since_ns` (CLOCK_MONOTONIC). A
SUMMARY has the counts and round-trip times since the last one (-1: none), the 95 % limits of its
loss rate (0 to 1), `amount_ns` of queue at this hop, the number of routers at this hop for all
flows of the destination (`alternatives`), and whether a later hop without loss clears this one
(`cleared`): then it only answers seldom. A BRANCH has the number of its times (`answered`) and its
`flows`, its median and 95th percentile, and `statistic` and `p_value` of the two-sample
Kolmogorov-Smirnov test. Other kinds have the fields that they name, and zero elsewhere. A QUEUE or
LOSS lies between `other_hop` with its router `previous` (0: this host) and this hop, a queue on one
`side`. A row about several flows of the destination has the key of one of them, and their number in
`flows` (0: one). `folded`: only the event of a ROUTE reports the change."""


TRACE = np.dtype([
    ("destination", "u1", (16,)), ("version", "u1"), ("routers", "u1"), ("_", "V6"),
    ("since_ns", "i8"), ("packets", "u8"), ("probes", "u8"), ("probe_bytes", "u8"),
    ("answers", "u8"),
    ("answer_bytes", "u8"), ("unmatched", "u8"), ("foreign", "u8"),
])  # fmt: skip
"""Own traffic of one destination since `since_ns` (CLOCK_MONOTONIC), in about a second; it is no
part of flows. Probes and their answers, with bytes from the IP header on; answers that match no
probe (`unmatched`); probes of other tracers on this host (`foreign`). `packets` are the
application's, `routers` are known ones on the path."""


def no_rows(dtype: np.dtype[Any]) -> Array:
    """An empty array."""
    return np.empty(0, dtype)
