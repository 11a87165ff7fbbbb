"""The tables of path tracing: one row a traced packet, and rows of findings about a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from app.outputs.routers import Describe, RouterFacts, nothing_known
from app.outputs.view import (
    END,
    WINDOW,
    CellValue,
    ColumnType,
    OutputColumn,
    OutputView,
    Part,
    address,
    addresses,
    one_text,
    text,
    time,
    where,
)
from probes.flow.records import Array
from probes.path import records
from probes.path.records import (
    DESTINATION_HOP,
    Altered,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
    QueueSide,
)
from probes.tables.utc import iso_all

_OUTCOMES = {int(each): each.label for each in ProbeOutcome}
_SIDES = {int(each): each.name.lower() for each in QueueSide}
_KINDS = {int(each): each.label for each in PathRowKind}
_COUNTED = (PathRowKind.SUMMARY, PathRowKind.LOSS, PathRowKind.LOSS_OVER)
"""Kinds of rows with outcomes."""
_METHODS = {int(each): each.label for each in MeasuredBy}
Mask = Callable[[Part], Array]


def _if(
    mask: Mask,
    name: str,
    meaning: str,
    values: Callable[[Part], Any] | None = None,
    kind: ColumnType = ColumnType.INTEGER,
) -> OutputColumn:
    """A column that is empty outside of `mask`; by default the array's column of the same name."""

    def column(part: Part) -> list[CellValue]:
        return where(mask(part), part.rows[name] if values is None else values(part))

    return OutputColumn(name, meaning, column, kind)


def _address_if(mask: Mask, name: str, meaning: str) -> OutputColumn:
    def texts(part: Part) -> list[str]:
        return list(addresses(part.rows[name], part.versions))

    return _if(mask, name, meaning, texts, ColumnType.TEXT)


def _router(name: str, meaning: str) -> OutputColumn:
    """Addresses; empty if all bytes are zero."""
    return _address_if(lambda part: np.any(part.rows[name], axis=1), name, meaning)


def _flow(known: Mask) -> Iterator[OutputColumn]:
    """Columns of a flow; of an unknown flow only the destination."""
    yield OutputColumn("ip_version", "4 or 6", lambda part: part.versions)
    yield _if(known, "protocol", "IANA protocol number of the application's flow")
    yield _address_if(known, "source", "address, of the flow")
    yield _if(known, "source_port", "of an ICMP echo: its identifier")
    yield address("destination", "address, of the flow")
    yield _if(known, "destination_port", "of ICMP: type * 256 + code")


def _labelled(name: str, meaning: str, labels: Mapping[int, str]) -> OutputColumn:
    return text(name, meaning, lambda part: map(labels.__getitem__, part.rows[name].tolist()))


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


def _is_probe(part: Part) -> Array:
    is_probe: Array = part.rows["measured_by"] == MeasuredBy.PROBE
    return is_probe


def _has_answer(part: Part) -> Array:
    has: Array = part.rows["received_ns"] > 0
    return has


def _is_summary(part: Part) -> Array:
    is_summary: Array = part.rows["kind"] == PathRowKind.SUMMARY
    return is_summary


def _has_counts(part: Part) -> Array:
    return np.isin(part.rows["kind"], _COUNTED)


def _has_side(part: Part) -> Array:
    return np.isin(part.rows["kind"], (PathRowKind.QUEUE, PathRowKind.LOSS))


def _share(name: str, meaning: str) -> OutputColumn:
    def shares(part: Part) -> Array:
        values: Array = part.rows[name].astype("f8").round(6)
        return values

    return _if(_has_counts, name, meaning, shares, ColumnType.FLOAT)


def _rtt(name: str, meaning: str) -> OutputColumn:
    return _if(lambda part: _is_summary(part) & (part.rows[name] >= 0), name, meaning)


def _has_quote(part: Part) -> Array:
    return _has_answer(part) & _is_probe(part)


def _is_branch(part: Part) -> Array:
    is_branch: Array = part.rows["kind"] == PathRowKind.BRANCH
    return is_branch


_branch = partial(_if, _is_branch)
_answered = partial(_if, _has_answer)
_quoted = partial(_if, _has_quote)
_summary = partial(_if, _is_summary)
_counted = partial(_if, _has_counts)
_LABELS = text(
    "labels",
    "MPLS label stack of the answer (RFC 4950), outermost first: label:class:bottom:ttl each",
    _labels,
)


def _has_responder(part: Part) -> Array:
    has: Array = np.any(part.rows["responder"], axis=1)
    return has


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
        _answered("received_ns", "UTC, nanoseconds since the epoch; empty without an answer",
                  lambda part: part.utc("received_ns")),
        *_flow(lambda part: part.rows["outcome"] != ProbeOutcome.OVERRUN),
        OutputColumn("hop", "TTL or hop limit of the sent packet; "
                     f"{DESTINATION_HOP}: round trip of the flow itself, to the destination"),
        _labelled("measured_by", ", ".join(_METHODS.values()), _METHODS),
        _labelled("outcome", ", ".join(_OUTCOMES.values()), _OUTCOMES),
        _address_if(_has_answer, "responder",
                    "address that answered; like the next eight columns empty without an answer"),
        _answered("rtt_ns", "nanoseconds from sent to received",
                  lambda part: part.rows["received_ns"] - part.rows["sent_ns"]),
        _answered("ttl", "TTL or hop limit of the answer when it was received"),
        _quoted("icmp_type", "of the answer"),
        _quoted("icmp_code", "of the answer"),
        _quoted("quoted_ttl", "TTL or hop limit that the answer quotes"),
        _quoted("quoted_tos", "TOS or traffic class that the answer quotes"),
        _LABELS,
        _quoted("altered", "fields that a middlebox changed: "
                + ", ".join(str(each.name).lower() for each in Altered), _changes, ColumnType.TEXT),
        OutputColumn("tos", "TOS or traffic class that was sent"),
        _if(_is_probe, "whole", "true: a valid packet of its flow; false: every receiver drops it",
            lambda part: part.rows["whole"].astype(bool), ColumnType.TRUTH),
        _if(lambda part: part.rows["remote_clock"] != 0, "remote_clock",
            "TCP timestamp of the packet that ended a round trip of the flow"),
        _if(_is_probe, "sequence",
            "number of the sent packet, counted for each destination; no probe has a multiple of"
            " 65536"),
        OutputColumn("packet_bytes", "length of the packet that caused it"),
        *_about_responder(_has_answer),
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
        _labelled("kind", f"finding of the row: {', '.join(_KINDS.values())}", _KINDS),
        *_flow(lambda part: np.ones(len(part.rows), bool)),
        OutputColumn("hop", f"TTL or hop limit; {DESTINATION_HOP}: the destination"),
        _router("responder", "address of the router at this hop; empty if unknown"),
        _router("previous", "address of the router that answered before; of a queue or loss: of "
                "the router one hop before; of a loop: of its last router; empty for none"),
        _summary("sent", "packets since the last summary; empty in rows of other kinds"),
        _counted("answered", "answered packets; of a loss: since it began"),
        _counted("lost", "lost packets; of a loss: since it began"),
        _summary("dropped", "packets dropped by this host; empty in rows of other kinds"),
        _share("loss_low", "least loss at 95 % confidence, 0 to 1"),
        _share("loss_high", "most loss at 95 % confidence, 0 to 1"),
        _rtt("last_ns", "round-trip time in nanoseconds: the last; empty without an answer"),
        _rtt("min_ns", "the least"),
        _rtt("median_ns", "the median"),
        _rtt("p95_ns", "the 95th percentile"),
        _rtt("max_ns", "the most"),
        _rtt("jitter_ns", "its variation from packet to packet"),
        _if(lambda part: _is_summary(part) | (part.rows["amount_ns"] != 0), "amount_ns",
            "nanoseconds; summary: queue at this hop; route: change of the round-trip time; shift, "
            "queue, gap: amount; loop over: duration; flap: mean time between two changes"),
        _if(lambda part: part.rows["since_ns"] > 0, "since", "UTC: start of this state",
            lambda part: np.array(iso_all(part.utc("since_ns"))), ColumnType.TIME),
        _if(lambda part: part.rows["amount"] != 0, "amount",
            "longer, shorter, route: hops; alias: hops of the way back; branch: hop where flows "
            "part; marking: sent TOS * 256 + quoted one; altered: bit of the field; loop: its "
            "routers; flap: changes"),
        _summary("alternatives", "routers seen at this hop, for all flows of the destination"),
        _summary("cleared", "true: a later hop has no loss, so this hop only answers seldom",
                 lambda part: part.rows["cleared"].astype(bool), ColumnType.TRUTH),
        _LABELS,
        _if(lambda part: part.rows["flows"] > 0, "flows",
            "flows of the finding, the row's own among them; empty: only this one"),
        _branch("statistic", "branch: Kolmogorov-Smirnov statistic beside the other branch",
                kind=ColumnType.FLOAT),
        _branch("p_value", "branch: probability of that statistic if the branches are alike",
                kind=ColumnType.FLOAT),
        _if(lambda part: part.rows["other_hop"] > 0, "other_hop",
            "route: its last hop that changed; queue, loss: the hop before it that answers; loop: "
            "the hop of its last router; flap: the path's last hop"),
        _if(_has_side, "side", f"of a queue or loss: {', '.join(_SIDES.values())}",
            lambda part: np.array([_SIDES[each] for each in part.rows["side"].tolist()]),
            ColumnType.TEXT),
        _if(lambda part: part.rows["folded"] > 0, "folded",
            "true: the change belongs to a route, which is told in its place",
            lambda part: part.rows["folded"].astype(bool), ColumnType.TRUTH),
        *_about_responder(_has_responder),
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
    known = {HOPS.name: _has_answer, PATHS.name: _has_responder}.get(view.name)
    if known is None or describe is nothing_known:
        return view
    added = tuple(_about_responder(known, describe))
    return replace(view, columns=(*view.columns[: -len(added)], *added))
