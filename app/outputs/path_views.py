"""The tables of path tracing: one row a traced packet, and rows of findings about a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.outputs.networks import Describe, RouterFacts, nothing_known
from app.outputs.view import (
    END,
    WINDOW,
    CellValue,
    ColumnType,
    Mask,
    OutputColumn,
    OutputView,
    Part,
    address,
    addresses,
    labelled,
    one_text,
    text,
    time,
    where,
)
from probes.path import records
from probes.path.records import (
    DESTINATION_HOP,
    Altered,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
    QueueSide,
)

_OUTCOMES = {int(each): each.label for each in ProbeOutcome}
_SIDES = {int(each): each.name.lower() for each in QueueSide}
_KINDS = {int(each): each.label for each in PathRowKind}
_COUNTED = (PathRowKind.SUMMARY, PathRowKind.LOSS, PathRowKind.LOSS_OVER)
"""Kinds of rows with outcomes."""
_METHODS = {int(each): each.label for each in MeasuredBy}
_WHERE: Mapping[str, Mask] = {
    "probe": lambda part: part.rows["measured_by"] == MeasuredBy.PROBE,
    "answer": lambda part: part.rows["received_ns"] > 0,
    "quote": lambda part: (
        (part.rows["received_ns"] > 0) & (part.rows["measured_by"] == MeasuredBy.PROBE)
    ),
    "summary": lambda part: part.rows["kind"] == PathRowKind.SUMMARY,
    "branch": lambda part: part.rows["kind"] == PathRowKind.BRANCH,
    "counted": lambda part: np.isin(part.rows["kind"], _COUNTED),
    "side": lambda part: np.isin(part.rows["kind"], (PathRowKind.QUEUE, PathRowKind.LOSS)),
    "responder": lambda part: np.any(part.rows["responder"], axis=1),
}
"""Rows in which columns have values."""


def _if(
    mask: str | Mask,
    name: str,
    meaning: str,
    values: Callable[[Part], Any] | None = None,
    kind: ColumnType = ColumnType.INTEGER,
    **more: Any,
) -> OutputColumn:
    """A column that is empty outside of a mask, or of one of _WHERE; without one, if it is 0."""
    known = _WHERE.get(mask, lambda part: part.rows[name] != 0) if isinstance(mask, str) else mask
    return OutputColumn(name, meaning, values, kind, known=known, **more)


def _flow(known: Mask) -> Iterator[OutputColumn]:
    """Columns of a flow; of an unknown flow only the destination."""
    yield OutputColumn("ip_version", "4 or 6", lambda part: part.versions)
    yield _if(known, "protocol", "IANA protocol number of the application's flow")
    yield address("source", "address, of the flow", known=known)
    yield _if(known, "source_port", "of an ICMP echo: its identifier")
    yield address("destination", "address, of the flow")
    yield _if(known, "destination_port", "of ICMP: type * 256 + code")


def _rtt(name: str, meaning: str) -> OutputColumn:
    return _if(lambda part: _WHERE["summary"](part) & (part.rows[name] >= 0), name, meaning)


def _labels(part: Part) -> list[str]:
    rows = part.rows
    texts = [""] * len(rows)
    for at in np.flatnonzero(rows["label_count"]).tolist():
        stack = rows["labels"][at, : rows["label_count"][at]].tolist()
        texts[at] = " ".join(map(label_text, stack))
    return texts


def label_text(entry: int) -> str:
    """An MPLS label stack entry (RFC 3032): label:class:bottom:ttl."""
    return f"{entry >> 12}:{entry >> 9 & 7}:{entry >> 8 & 1}:{entry & 255}"


def _changes(part: Part) -> list[str]:
    # A few values repeat.
    values, at = np.unique(part.rows["altered"], return_inverse=True)
    texts = [
        " ".join(str(each.name).lower() for each in Altered(value)) for value in values.tolist()
    ]
    return [texts[number] for number in at.tolist()]


_LABELS = text(
    "labels",
    "MPLS label stack of the answer (RFC 4950), outermost first: label:class:bottom:ttl each",
    _labels,
)


def _about_responder(known: Mask, describe: Describe = nothing_known) -> Iterator[OutputColumn]:
    """Columns of facts about the responder."""

    def column(value: Callable[[RouterFacts], CellValue]) -> Callable[[Part], list[CellValue]]:
        def values(part: Part) -> list[CellValue]:
            if describe is nothing_known:
                return [None] * len(part.rows)
            texts = where(known(part), list(addresses(part.rows["responder"], part.versions)))
            facts = {text: describe(text) for text in set(texts) if text is not None}
            return [value(facts[text]) or None if text in facts else None for text in texts]

        return values

    yield text(
        "responder_name", "name by reverse DNS (--names); empty until the name server answers",
        column(lambda facts: facts.name),
    )  # fmt: skip
    yield OutputColumn(
        "responder_asn", "number of its autonomous system, by a database of networks; like the "
        "next two columns empty if unknown", column(lambda facts: facts.asn),
    )  # fmt: skip
    yield text("responder_as_name", "name of that system", column(lambda facts: facts.as_name))
    yield text(
        "responder_country", "code of two letters (ISO 3166-1)",
        column(lambda facts: facts.country),
    )  # fmt: skip


HOPS = OutputView(
    "hops",
    2,
    (
        WINDOW,
        one_text("interface", "interface of the sent packet"),
        time("sent", "UTC, ISO 8601", "sent_ns"),
        OutputColumn("sent_ns", "UTC, nanoseconds since the epoch",
                     lambda part: part.utc("sent_ns").tolist()),
        _if("answer", "received_ns", "UTC, nanoseconds since the epoch; empty without an answer",
                  lambda part: part.utc("received_ns")),
        *_flow(lambda part: part.rows["outcome"] != ProbeOutcome.OVERRUN),
        OutputColumn("hop", "TTL or hop limit of the sent packet; "
                     f"{DESTINATION_HOP}: round trip of the flow itself, to the destination"),
        labelled("measured_by", ", ".join(_METHODS.values()), _METHODS),
        labelled("outcome", ", ".join(_OUTCOMES.values()), _OUTCOMES),
        address("responder",
            "address that answered; like the next eight columns empty without an answer",
            known=_WHERE["answer"]),
        _if("answer", "rtt_ns", "nanoseconds from sent to received",
                  lambda part: part.rows["received_ns"] - part.rows["sent_ns"]),
        _if("answer", "ttl", "TTL or hop limit of the answer when it was received"),
        _if("quote", "icmp_type", "of the answer"),
        _if("quote", "icmp_code", "of the answer"),
        _if("quote", "quoted_ttl", "TTL or hop limit that the answer quotes"),
        _if("quote", "quoted_tos", "TOS or traffic class that the answer quotes"),
        _LABELS,
        _if("quote", "altered", "fields that a middlebox changed: "
                + ", ".join(str(each.name).lower() for each in Altered), _changes, ColumnType.TEXT),
        OutputColumn("tos", "TOS or traffic class that was sent"),
        _if("probe", "whole", "true: a valid packet of its flow; false: every receiver drops it",
            None, ColumnType.TRUTH, text=bool),
        _if("", "remote_clock",
            "TCP timestamp of the packet that ended a round trip of the flow"),
        _if("probe", "sequence",
            "number of the sent packet, counted for each destination; no probe has a multiple of"
            " 65536"),
        OutputColumn("packet_bytes", "length of the packet that caused it"),
        *_about_responder(_WHERE["answer"]),
    ),
    "path",
    records.HOPS_TABLE,
)  # fmt: skip
"""One row for each packet of path tracing. If it was overrun, its flow is empty."""
PATHS = OutputView(
    "paths",
    2,
    (
        WINDOW,
        one_text("interface", "interface of the sent packets"),
        time("at", "UTC, ISO 8601: time of the finding", "at_ns"),
        labelled("kind", f"finding of the row: {', '.join(_KINDS.values())}", _KINDS),
        *_flow(lambda part: np.ones(len(part.rows), bool)),
        OutputColumn("hop", f"TTL or hop limit; {DESTINATION_HOP}: the destination"),
        address("responder", "address of the router at this hop; empty if unknown",
            known=lambda part: np.any(part.rows["responder"], axis=1)),
        address("previous", "address of the router that answered before; of a queue or loss: of "
                "the router one hop before; of a loop: of its last router; empty for none",
            known=lambda part: np.any(part.rows["previous"], axis=1)),
        _if("summary", "sent", "packets since the last summary; empty in rows of other kinds"),
        _if("counted", "answered", "answered packets; of a loss: since it began"),
        _if("counted", "lost", "lost packets; of a loss: since it began"),
        _if("summary", "dropped", "packets dropped by this host; empty in rows of other kinds"),
        _if("counted", "loss_low", "least loss at 95 % confidence, 0 to 1",
            kind=ColumnType.FLOAT, digits=6),
        _if("counted", "loss_high", "most loss at 95 % confidence, 0 to 1",
            kind=ColumnType.FLOAT, digits=6),
        _rtt("last_ns", "round-trip time in nanoseconds: the last; empty without an answer"),
        _rtt("min_ns", "the least"),
        _rtt("median_ns", "the median"),
        _rtt("p95_ns", "the 95th percentile"),
        _rtt("max_ns", "the most"),
        _rtt("jitter_ns", "its variation from packet to packet"),
        _if(lambda part: _WHERE["summary"](part) | (part.rows["amount_ns"] != 0), "amount_ns",
            "nanoseconds; summary: queue at this hop; route: change of the round-trip time; shift, "
            "queue, gap: amount; loop over: duration; flap: mean time between two changes"),
        time("since", "UTC: start of this state", "since_ns",
            lambda part: part.rows["since_ns"] > 0),
        _if("", "amount",
            "longer, shorter, route: hops; alias: hops of the way back; branch: hop where flows "
            "part; marking: sent TOS * 256 + quoted one; altered: bit of the field; loop: its "
            "routers; flap: changes"),
        _if("summary", "alternatives",
            "routers seen at this hop, for all flows of the destination"),
        _if("summary", "cleared", "true: a later hop has no loss, so this hop only answers seldom",
                 None, ColumnType.TRUTH, text=bool),
        _LABELS,
        _if("", "flows",
            "flows of the finding, the row's own among them; empty: only this one"),
        _if("branch", "statistic", "branch: Kolmogorov-Smirnov statistic beside the other branch",
                kind=ColumnType.FLOAT),
        _if("branch", "p_value", "branch: probability of that statistic if the branches are alike",
                kind=ColumnType.FLOAT),
        _if("", "other_hop",
            "route: its last hop that changed; queue, loss: the hop before it that answers; loop: "
            "the hop of its last router; flap: the path's last hop"),
        labelled("side", f"of a queue or loss: {', '.join(_SIDES.values())}", _SIDES,
            _WHERE["side"]),
        _if("", "folded",
            "true: the change belongs to a route, which is told in its place",
            None, ColumnType.TRUTH, text=bool),
        *_about_responder(_WHERE["responder"]),
    ),
    "path",
    records.PATHS_TABLE,
)  # fmt: skip
TRACES = OutputView(
    "traces",
    1,
    (
        WINDOW,
        time("since", "UTC, ISO 8601: begin of the period", "since_ns"),
        END,
        one_text("interface", "interface of the sent packets"),
        OutputColumn("ip_version", "4 or 6", lambda part: part.versions),
        address("destination", "address that is traced"),
        OutputColumn("routers", "known number of routers on the path; 0: unknown"),
        OutputColumn("packets", "packets of applications to it"),
        OutputColumn("probes", "own probes to it"),
        OutputColumn("probe_bytes", "of them, from the IP header on"),
        OutputColumn("answers", "answers to own probes"),
        OutputColumn("answer_bytes", "of them, from the IP header on"),
        OutputColumn("unmatched", "answers that match no probe"),
        OutputColumn("foreign", "probes of other tracers on this host"),
    ),
    "path",
    records.TRACES_TABLE,
)  # fmt: skip


def described(view: OutputView, describe: Describe) -> OutputView:
    """Return a view of path tracing with facts about responders; other views stay unchanged."""
    known = {HOPS.name: _WHERE["answer"], PATHS.name: _WHERE["responder"]}.get(view.name)
    if known is None or describe is nothing_known:
        return view
    added = tuple(_about_responder(known, describe))
    return replace(view, columns=(*view.columns[: -len(added)], *added))
