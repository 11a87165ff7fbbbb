"""The tables of path tracing: a row a probe, and rows of what they say of a path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

from app.outputs.view import OutputView, Row, addresses, is_table, iso_all, parts, where
from probes.flow.records import Array
from probes.path import records
from probes.path.records import PathRowKind, ProbeOutcome
from probes.snapshot import Event, Snapshot

_OUTCOMES = {int(outcome): outcome.label for outcome in ProbeOutcome}
_KINDS = {int(kind): kind.label for kind in PathRowKind}
_OF_ANSWERS = ("ttl", "icmp_type", "icmp_code", "quoted_ttl", "quoted_tos")
_MEASURED = ("sent", "answered", "lost", "dropped")
_TIMES = ("last_ns", "min_ns", "median_ns", "p95_ns", "max_ns", "jitter_ns")


def _flow(rows: Array, versions: list[int], known: Array) -> tuple[list[Any], ...]:
    """Version, protocol, source and destination; a flow that is not known has only the last."""
    return (
        versions,
        where(known, rows["protocol"]),
        where(known, list(addresses(rows["source"], versions))),
        where(known, rows["source_port"]),
        list(addresses(rows["destination"], versions)),
        where(known, rows["destination_port"]),
    )


def _router(raw: Array, versions: list[int]) -> list[Any]:
    """Addresses, None for those that are all zero."""
    known: Array = np.any(raw, axis=1)
    return where(known, list(addresses(raw, versions)))


def _labels(rows: Array) -> list[str]:
    """MPLS label stacks, outermost first: `label:class:bottom:ttl`."""
    texts = [""] * len(rows)
    for at in np.flatnonzero(rows["label_count"]).tolist():
        stack = rows["labels"][at, : rows["label_count"][at]].tolist()
        texts[at] = " ".join(f"{e >> 12}:{e >> 9 & 7}:{e >> 8 & 1}:{e & 255}" for e in stack)
    return texts


def _hop_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not is_table(item, "path", records.HOPS_TABLE):
        return
    to_utc = item.end_utc_ns - item.end_ns
    for rows in parts(item.rows):
        versions = rows["version"].tolist()
        outcomes = rows["outcome"]
        sent, received = rows["sent_ns"], rows["received_ns"]
        answered = received > 0
        yield from zip(
            repeat(item.window),
            repeat(item.interface),
            iso_all(sent + to_utc),
            (sent + to_utc).tolist(),
            where(answered, received + to_utc),
            *_flow(rows, versions, outcomes != ProbeOutcome.OVERRUN),
            rows["hop"].tolist(),
            map(_OUTCOMES.__getitem__, outcomes.tolist()),
            where(answered, list(addresses(rows["responder"], versions))),
            where(answered, received - sent),
            *(where(answered, rows[name]) for name in _OF_ANSWERS),
            _labels(rows),
            rows["sequence"].tolist(),
            rows["packet_bytes"].tolist(),
            strict=False,  # `repeat` has no end
        )


def _path_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not is_table(item, "path", records.PATHS_TABLE):
        return
    to_utc = item.end_utc_ns - item.end_ns
    for rows in parts(item.rows):
        versions = rows["version"].tolist()
        summary = rows["kind"] == PathRowKind.SUMMARY
        yield from zip(
            repeat(item.window),
            repeat(item.interface),
            iso_all(rows["at_ns"] + to_utc),
            map(_KINDS.__getitem__, rows["kind"].tolist()),
            *_flow(rows, versions, np.ones(len(rows), bool)),
            rows["hop"].tolist(),
            _router(rows["responder"], versions),
            _router(rows["previous"], versions),
            *(where(summary, rows[name]) for name in _MEASURED),
            *(
                where(summary, rows[name].astype("f8").round(6))
                for name in ("loss_low", "loss_high")
            ),
            *(where(summary & (rows[name] >= 0), rows[name]) for name in _TIMES),
            where(summary | (rows["amount_ns"] != 0), rows["amount_ns"]),
            where(rows["since_ns"] > 0, np.array(iso_all(rows["since_ns"] + to_utc))),
            where(rows["amount"] != 0, rows["amount"]),
            where(summary, rows["alternatives"]),
            where(summary, rows["cleared"].astype(bool)),
            _labels(rows),
            strict=False,  # `repeat` has no end
        )


_LABELS = "MPLS label stack of the answer (RFC 4950), outermost first: label:class:bottom:ttl each"
_FLOW_COLUMNS = (
    ("ip_version", "4 or 6"),
    ("protocol", "IANA protocol number of the application's flow"),
    ("source", "address, of the flow"),
    ("source_port", "of an ICMP echo: its identifier"),
    ("destination", "address, of the flow"),
    ("destination_port", "of ICMP: type * 256 + code"),
)
HOPS = OutputView(
    "hops",
    1,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("interface", "where it was sent"),
        ("sent", "UTC, ISO 8601"),
        ("sent_ns", "UTC, nanoseconds since the epoch"),
        ("received_ns", "UTC, nanoseconds since the epoch; empty without an answer"),
        *_FLOW_COLUMNS,
        ("hop", "TTL or hop limit that it was sent with"),
        ("outcome", "answered, unreachable, unanswered, dropped, overrun or in flight"),
        ("responder", "address of who answered; this and what follows empty without an answer"),
        ("rtt_ns", "nanoseconds from sent to received"),
        ("ttl", "TTL or hop limit of the answer when it was received"),
        ("icmp_type", "of the answer"),
        ("icmp_code", "of the answer"),
        ("quoted_ttl", "TTL or hop limit that the answer quotes"),
        ("quoted_tos", "TOS or traffic class that the answer quotes"),
        ("labels", _LABELS),
        ("sequence", "number of the probe, counted for each destination"),
        ("packet_bytes", "length of the packet that caused it"),
    ),
    _hop_rows,
)
"""One row a probe that came to its end. Of one that was overrun the flow is not known: empty."""
PATHS = OutputView(
    "paths",
    1,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("interface", "where probes were sent"),
        ("at", "UTC, ISO 8601: when it was found out"),
        ("kind", f"what the row tells: {', '.join(_KINDS.values())}"),
        *_FLOW_COLUMNS,
        ("hop", "TTL or hop limit"),
        ("responder", "address of the router at this hop; empty where none is known"),
        ("previous", "address of the router before it, or of other flows; empty for none"),
        ("sent", "probes since the last summary; this and what follows empty in other kinds"),
        ("answered", "of those"),
        ("lost", "of those"),
        ("dropped", "of those, by this host"),
        ("loss_low", "least loss at 95 % confidence, 0 to 1"),
        ("loss_high", "most loss at 95 % confidence, 0 to 1"),
        ("last_ns", "round-trip time in nanoseconds: the last; empty without an answer"),
        ("min_ns", "the least"),
        ("median_ns", "the median"),
        ("p95_ns", "the 95th percentile"),
        ("max_ns", "the most"),
        ("jitter_ns", "its variation from probe to probe"),
        ("amount_ns", "summary: queue at this hop; shift, queue, gap: how much, in nanoseconds"),
        ("since", "UTC: since when it is so"),
        ("amount", "longer, shorter: hops"),
        ("alternatives", "routers seen at this hop, for all flows of the destination"),
        ("cleared", "true: a later hop without loss shows that this one only answers seldom"),
        ("labels", _LABELS),
    ),
    _path_rows,
)
