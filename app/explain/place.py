"""The hop of a queue, also of one that stood before tracing began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.explain.material import Material
from probes.flow.records import Array
from probes.path.analysis.round_trips.queues import amounts
from probes.path.events.words import going_on
from probes.path.records import (
    DESTINATION_HOP,
    HOP_COUNT,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
)

RECENT_NS = 5_000_000_000
_LEAST_NS = 2_000_000
"""Routers are slow to answer by a millisecond or two now and then."""
_SHARE = 0.2
"""A queue at a hop is at least this part of the connection's whole delay above its floor."""
_FEW = 3
"""Answers of a hop, before its times count."""


@dataclass(frozen=True, slots=True, eq=False)
class HopTimes:
    """Probes by hop, each array (HOP_COUNT,); the last known hop is the destination."""

    last: int
    """The destination's hop, or the last one that answered; 0: no hop answered."""
    arrived: bool
    """Whether the destination answered."""
    median_ns: Array
    """Of the last seconds, f8; NaN without answers."""
    least_ns: Array
    """Of all probes, f8; NaN without answers."""
    answered: Array
    lost: Array
    responders: list[bytes]
    """The last router of each hop; empty: none answered."""


def times_of(material: Material) -> HopTimes:
    """Return the times of all hops, by the probes of this conversation's own packets if it has
    some at each hop, else of all packets to the far end."""
    hops = material.hops
    own = hops[_of_flow(hops, material.conversation)]
    probes = own if len(own) else hops
    answered = probes["outcome"] <= ProbeOutcome.UNREACHABLE
    lost = probes["outcome"] == ProbeOutcome.UNANSWERED
    rtt = (probes["received_ns"] - probes["sent_ns"]).astype("f8")
    recent = probes["sent_ns"] > probes["sent_ns"].max(initial=0) - RECENT_NS
    median, least = np.full(HOP_COUNT, np.nan), np.full(HOP_COUNT, np.nan)
    counts = np.zeros((2, HOP_COUNT), "i8")
    responders = [b""] * HOP_COUNT
    arrived_at = 0
    of_path = (probes["measured_by"] == MeasuredBy.PROBE) & (probes["hop"] != DESTINATION_HOP)
    for hop in range(1, HOP_COUNT):
        here = of_path & (probes["hop"] == hop)
        answers = here & answered & (probes["received_ns"] > 0)
        counts[:, hop] = answers.sum(), (here & lost).sum()
        if not answers.any():
            continue
        least[hop] = rtt[answers].min()
        if (answers & recent).any():
            median[hop] = np.median(rtt[answers & recent])
        newest = probes[answers][probes["received_ns"][answers].argmax()]
        responders[hop] = newest["responder"].tobytes()
        if not arrived_at and responders[hop] == material.conversation["far"].tobytes():
            arrived_at = hop
    known = np.flatnonzero(counts[0])
    last = arrived_at or (int(known[-1]) if len(known) else 0)
    # The flow's own round trips, if the destination answers no probes.
    trips = answered & (probes["hop"] == DESTINATION_HOP) & (probes["received_ns"] > 0)
    if not arrived_at and last and last + 1 < DESTINATION_HOP and trips.any():
        last += 1
        least[last] = rtt[trips].min()
        if (trips & recent).any():
            median[last] = np.median(rtt[trips & recent])
        counts[0, last] = trips.sum()
        responders[last] = material.conversation["far"].tobytes()
        arrived_at = last
    return HopTimes(last, bool(arrived_at), median, least, counts[0], counts[1], responders)


def queues_of(material: Material, times: HopTimes) -> Array:
    """Return the delay by a queue at each hop, ns, f8 (HOP_COUNT,).

    A queue that the path probe has found counts. Otherwise a hop's delay is compared with its least
    one, or with the least round-trip time of the whole connection if that is less: a hop on the way
    is not farther than the end. So a queue is found that was there before tracing began.
    """
    found = np.zeros(HOP_COUNT)
    for row in _reported(material):
        found[_place(int(row["hop"]), times)] = row["amount_ns"]
    if found.any() or not times.last:
        return found
    last = material.sockets[-1] if len(material.sockets) else None
    queue_ns = float(last["queue_us"]) * 1e3 if last is not None else 0.0
    floor_ns = float(last["rtt_us"]) * 1e3 - queue_ns if last is not None else np.nan
    hops = slice(1, times.last + 1)
    excess = times.median_ns[hops] - np.fmin(times.least_ns[hops], floor_ns)
    excess[times.answered[hops] < _FEW] = np.nan
    limit = np.full((1, times.last), max(_LEAST_NS, _SHARE * queue_ns))
    found[hops] = amounts(excess[None, :], limit)[0]
    return found


def loss_of(material: Material) -> Any:
    """Return the last LOSS of the path that is not over, a row of dtype PATH; None without one."""
    return going_on(material.findings, PathRowKind.LOSS)


def _reported(material: Material) -> list[Any]:
    """The last summaries of hops with a queue, of the conversation's flow if there are some."""
    rows = material.findings
    rows = rows[rows["kind"] == PathRowKind.SUMMARY]
    own = rows[_of_flow(rows, material.conversation)]
    rows = own if len(own) else rows
    rows = rows[rows["at_ns"] > rows["at_ns"].max(initial=0) - RECENT_NS]
    newest = {int(row["hop"]): row for row in rows[np.argsort(rows["at_ns"])]}
    return [row for row in newest.values() if row["amount_ns"] > 0]


def _place(hop: int, times: HopTimes) -> int:
    return times.last if hop == DESTINATION_HOP else hop


def _of_flow(rows: Array, conversation: Any) -> Array:
    """Whether rows (n,) of dtype HOP or PATH are of the conversation's outgoing flow."""
    mine: Array = (
        (rows["protocol"] == conversation["protocol"])
        & (rows["source_port"] == conversation["near_port"])
        & (rows["destination_port"] == conversation["far_port"])
    )
    return mine
