"""The hop of a queue, also of one that stood before tracing, and why packets do not arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.explain.material import Material
from bpf.arrays import Array, Rows
from bpf.sockets.diag import TCP
from probes.filter.hosts import address_text
from probes.path.analysis.round_trips.queues import amounts
from probes.path.analysis.statistics import HOP_STATISTICS, hop_statistics
from probes.path.probing_plan import initial_ttl
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOP_COUNT,
    MeasuredBy,
    ProbeOutcome,
)
from probes.sockets.records import SOCKET

RECENT_NS = 5_000_000_000
_LEAST_NS = 2_000_000
"""Routers are slow to answer by a millisecond or two now and then."""
_SHARE = 0.2
"""A queue at a hop is at least this part of the connection's whole delay above its floor."""
_FEW = 3
"""Answers of a hop, before its times count."""
_REPORTS = {
    (1, 0x300): "network unreachable", (1, 0x301): "host unreachable",
    (1, 0x303): "port unreachable", (1, 0x309): "prohibited by a filter",
    (1, 0x30A): "prohibited by a filter", (1, 0x30D): "prohibited by a filter",
    (58, 0x100): "no route", (58, 0x101): "prohibited by a filter",
    (58, 0x103): "address unreachable", (58, 0x104): "port unreachable",
}  # fmt: skip
"""Meanings of ICMP errors by protocol, and type * 256 + code (RFC 792, RFC 1812, RFC 4443)."""
_LARGE = "the far end answers small packets: perhaps larger ones do not arrive"


@dataclass(frozen=True, slots=True, eq=False)
class HopTimes:
    """Probes by hop, each array (HOP_COUNT,); the last known hop is the destination."""

    last: int
    """The destination's hop, or the last one that answered; 0: no hop answered."""
    arrived: bool
    """Whether the destination answered."""
    recent: Rows[HOP_STATISTICS]
    """dtype HOP_STATISTICS, of the last seconds."""
    all: Rows[HOP_STATISTICS]
    """dtype HOP_STATISTICS, of all probes."""
    responders: Array
    """The last router of each hop, u1 (HOP_COUNT, 16); zeros: none answered."""
    beside: Array
    """Whether the hop was measured beside the flow, by ICMP echo requests."""
    trips: Rows[HOP]
    """dtype HOP (n,): round trips of the flow to the far end, which does not think in between."""


def times_of(material: Material, seconds: int = 0) -> HopTimes:
    """Return the times of all hops, by the probes of this conversation's own packets if it has
    some, else of all packets to the far end; of the last `seconds` only unless that is 0.

    Behind an address translation no router answers probes of UDP. If requests beside the flow are
    answered at such a hop, they count in place of the probes.
    """
    hops = material.hops
    newest_ns = hops["sent_ns"].max(initial=0)
    if seconds:
        hops = hops[hops["sent_ns"] > newest_ns - seconds * 1_000_000_000]
    since_ns = newest_ns - RECENT_NS
    at_end, is_beside = (
        hops["hop"] == DESTINATION_HOP,
        hops["measured_by"] == MeasuredBy.ECHO_BESIDE_THE_FLOW,
    )
    flow, answered = material.conversation, hops["received_ns"] > 0
    mine = hops["protocol"] == flow["protocol"]
    mine &= hops["source_port"] == flow["near_port"]
    mine &= hops["destination_port"] == flow["far_port"]
    is_probe = (hops["measured_by"] == MeasuredBy.PROBE) & ~at_end
    fresh = mine & is_probe & (hops["sent_ns"] > since_ns)
    # A flow that only repeats packets causes few probes.
    is_probe &= mine | (not fresh.any() or bool(seconds))
    beside = np.isin(np.arange(HOP_COUNT), hops["hop"][is_beside & answered])
    beside[hops["hop"][is_probe & answered]] = False
    probes = hops[~at_end & np.where(beside[hops["hop"]], is_beside, is_probe)]
    # A server may have to ask others before it answers a DNS query.
    is_trip = at_end & answered & (hops["outcome"] == ProbeOutcome.ANSWERED)
    is_trip &= hops["measured_by"] != MeasuredBy.DNS
    own = is_trip & ~is_beside
    trips = hops[next((each for each in (mine & own, own) if each.any()), is_trip)]
    replies = probes[(probes["outcome"] <= ProbeOutcome.UNREACHABLE) & (probes["received_ns"] > 0)]
    replies = replies[np.argsort(replies["received_ns"], kind="stable")]
    responders = np.zeros((HOP_COUNT, 16), "u1")
    responders[replies["hop"]] = replies["responder"]
    ends = np.flatnonzero((responders == material.conversation["far"]).all(axis=1))
    arrived = len(ends) > 0
    last = int(ends[0]) if arrived else int(replies["hop"].max(initial=0))
    # Without routers, none took one away from the TTL of the answers.
    ttls = set(trips["ttl"].tolist()) - {0}
    direct = bool(not last and ttls and all(initial_ttl(each) == each for each in ttls))
    # The flow's own round trips, if the destination answers no probes.
    if not arrived and (last or direct) and last + 1 < DESTINATION_HOP and len(trips):
        last, arrived = last + 1, True
        beside[last] = not own.any()
        end = trips.copy()
        end["hop"] = last
        responders[last] = end["responder"][end["received_ns"].argmax()]
        probes = np.concatenate([probes[probes["hop"] != last], end])
    recent, every = (
        hop_statistics(rows, rows["hop"], HOP_COUNT)
        for rows in (probes[probes["sent_ns"] > since_ns], probes)
    )
    return HopTimes(last, arrived, recent, every, responders, beside, trips)


def queues_of(material: Material, times: HopTimes, *, held: bool) -> Array:
    """Return the delay by a queue at each hop, ns, f8 (HOP_COUNT,).

    A hop's delay is compared with its least one, or with the least round-trip time of the whole
    connection if that is less: a hop on the way is not farther than the end. So a queue is found
    that was there before tracing began. `held`: the far end reads slowly, or thinks before it
    answers, so the flow's own round trips may be longer than the path's.
    """
    found = np.zeros(HOP_COUNT)
    if not times.last:
        return found
    last: Any = material.sockets[-1] if len(material.sockets) else np.zeros((), SOCKET)
    # Sockets of UDP know no time.
    timed = last["rtt_us"] > 0
    queue_ns = float(last["queue_us"]) * 1e3 if timed else 0.0
    floor_ns = float(last["rtt_us"]) * 1e3 - queue_ns if timed else np.nan
    hops = slice(1, times.last + 1)
    median_ns, least_ns = times.recent["median_ns"][hops], times.all["min_ns"][hops]
    excess = np.where(median_ns >= 0, median_ns - np.fmin(least_ns, floor_ns), np.nan)
    excess[times.all["answered"][hops] < _FEW] = np.nan
    if held:
        excess[-1] = np.nan
    limit = np.full((1, times.last), max(_LEAST_NS, _SHARE * queue_ns))
    found[hops] = amounts(excess[None, :], limit)[0]
    return found


def fault_of(material: Material, times: HopTimes) -> str:
    """Return why packets of a conversation without answers do not arrive; empty if unknown."""
    version = int(material.conversation["version"])
    rows = material.hops[material.hops["outcome"] == ProbeOutcome.UNREACHABLE]
    if len(rows):
        row = rows[rows["received_ns"].argmax()]
        kind = int(row["icmp_type"]) << 8 | int(row["icmp_code"])
        return _report(row["responder"], version, kind, int(row["hop"]))
    errors = material.errors
    own = errors[(errors["source"] == material.conversation["far"]).all(axis=1)]
    # Errors of routers may be about other flows, too.
    others = errors if len(np.unique(errors["source"], axis=0)) == 1 else errors[:0]
    found = own if len(own) else others
    report = ""
    if len(found):
        row = found[found["last_ns"].argmax()]
        report = _report(row["source"], version, int(row["destination_port"]), 0)
    if len(own) or material.conversation["protocol"] != TCP:
        return report if len(own) else ""
    if times.arrived:
        begun = len(material.sockets) and material.sockets["sent"].any()
        return _LARGE if begun else "the host answers probes, the port does not"
    silent = np.isin(material.hops["outcome"], (ProbeOutcome.UNANSWERED, ProbeOutcome.BEYOND_PATH))
    silent &= material.hops["hop"] == times.last + 1
    # Perhaps the next hop was only not asked.
    known = times.last and silent.any()
    behind = f"the path behind hop {times.last} does not answer" if known else ""
    perhaps = f"{report}, perhaps about this flow" if report else ""
    return "; ".join(filter(None, (behind, perhaps)))


def _report(responder: Array, version: int, kind: int, hop: int) -> str:
    meaning = _REPORTS.get((1 if version == 4 else 58, kind), "unreachable")
    at = f" at hop {hop}" if hop and hop != DESTINATION_HOP else ""
    return f"{address_text(responder.tobytes(), version)}{at} reports: {meaning}"
