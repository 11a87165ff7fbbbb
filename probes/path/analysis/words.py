"""Rows of PATH in an operator's words."""

from __future__ import annotations

from typing import Any

from probes.filter.network import address_text, protocol_name
from probes.path.analysis.branches import is_different
from probes.path.records import DESTINATION_HOP, Altered, Array, PathRowKind

_WARNINGS = frozenset(
    {
        PathRowKind.RESPONDER,
        PathRowKind.LONGER,
        PathRowKind.SHORTER,
        PathRowKind.SILENT,
        PathRowKind.SHIFT,
        PathRowKind.QUEUE,
    }
)

_ECN = ("Not-ECT", "ECT(1)", "ECT(0)", "CE")
"""Code points of RFC 3168, section 5."""
_ALTERED = {
    Altered.IDENTIFICATION: "a middlebox changes the IPv4 identification",
    Altered.LENGTH: "a middlebox changes the packet's length",
    Altered.SOURCE: "a middlebox changes the source address or port (NAT)",
    Altered.SEQUENCE: "a middlebox changes TCP's sequence numbers",
    Altered.CHECKSUM: "a middlebox changes the checksum (NAT)",
}


def tell(rows: Array) -> list[tuple[str, str]]:
    """Severities and texts of all rows (n,) of dtype PATH, in order, except for SUMMARY and for a
    BRANCH of the same times. A text that several flows share appears once."""
    alike = (rows["kind"] == PathRowKind.BRANCH) & ~is_different(rows)
    changes = rows[(rows["kind"] != PathRowKind.SUMMARY) & ~alike]
    return list(dict.fromkeys(describe(row) for row in changes))


def describe(row: Any) -> tuple[str, str]:
    """Severity (`info`, `warning`) and text of one row of dtype PATH; not for a SUMMARY."""
    kind = PathRowKind(int(row["kind"]))
    destination = _address(row, "destination")
    place = f"{destination} hop {row['hop']}"
    if kind is PathRowKind.GAP:
        place = destination
    elif kind is PathRowKind.BRANCH:
        place = f"{destination} from hop {row['amount']} on"
    severity = "warning" if kind in _WARNINGS else "info"
    return severity, f"{place}: {_what(kind, row)}"


def _what(kind: PathRowKind, row: Any) -> str:
    responder, previous = _address(row, "responder"), _address(row, "previous")
    amount, count = _span(int(row["amount_ns"])), int(row["amount"])
    ago = _span(int(row["at_ns"]) - int(row["since_ns"]))
    match kind:
        case PathRowKind.RESPONDER:
            return f"answered by {responder}, was {previous}"
        case PathRowKind.BALANCED:
            return f"{_flow(row)} goes by {responder}, other flows by {previous}"
        case PathRowKind.BALANCED_PACKETS:
            return f"packets of {_flow(row)} go by {responder} and by {previous} in turn"
        case PathRowKind.LONGER:
            return f"the path is longer, this is its last hop now ({count} more)"
        case PathRowKind.SHORTER:
            return f"the path is shorter, this is its last hop now ({count} fewer)"
        case PathRowKind.SILENT if count > 1:
            return f"no answer from here on ({count} hops) since {ago} ago"
        case PathRowKind.SILENT:
            return f"{responder} answers no more since {ago} ago"
        case PathRowKind.ANSWERS:
            return f"{responder} answers again after {amount}"
        case PathRowKind.SHIFT:
            longer = "longer" if row["amount_ns"] > 0 else "shorter"
            return f"round-trip time {longer} by {amount} since {ago} ago"
        case PathRowKind.QUEUE:
            return f"queue of {amount} since {ago} ago"
        case PathRowKind.QUEUE_OVER:
            return f"queue is over, was up to {amount}"
        case PathRowKind.GAP:
            return f"no probes of {_flow(row)} for {amount}: nothing was sent"
        case PathRowKind.BRANCH:
            return _branch(row, responder, previous)
        case PathRowKind.MARKING:
            return _marking(count)
        case PathRowKind.ALTERED:
            return f"{_ALTERED[Altered(count)]}, right before this hop"
        case PathRowKind.SUMMARY:
            raise ValueError("a summary is no event")


def _branch(row: Any, responder: str, previous: str) -> str:
    """The comparison of two branches; `amount` is the hop where they part."""
    where = "the destination" if row["hop"] == DESTINATION_HOP else f"hop {row['hop']}"
    numbers = f"KS {row['statistic']:.2f}, p {row['p_value']:.2g}, {row['answered']} times"
    if not is_different(row):
        return f"{where} is as far by {responder} as by {previous} ({numbers})"
    more = "slower" if row["amount_ns"] > 0 else "faster"
    amount = _span(int(row["amount_ns"]))
    return f"{where} is {amount} {more} by {responder} than by {previous} ({numbers})"


def _marking(change: int) -> str:
    """A changed TOS or traffic class: DSCP (RFC 2474) and ECN (RFC 3168)."""
    sent, quoted = change >> 8, change & 0xFF
    said = []
    if sent >> 2 != quoted >> 2:
        said.append(f"DSCP {sent >> 2} becomes {quoted >> 2}")
    if sent & 3 != quoted & 3:
        said.append(f"ECN {_ECN[sent & 3]} becomes {_ECN[quoted & 3]}")
    return f"{' and '.join(said)} right before this hop"


def _address(row: Any, name: str) -> str:
    return address_text(row[name].tobytes(), int(row["version"]))


def _flow(row: Any) -> str:
    source, destination = int(row["source_port"]), int(row["destination_port"])
    name = protocol_name(int(row["protocol"]))
    if name.startswith("icmp"):
        return f"{name} {source}"
    return f"{name} {source}>{destination}"


def _span(nanoseconds: int) -> str:
    """`850 us`, `160 ms`, `3.2 s`; without a sign."""
    size = abs(nanoseconds)
    for scale, unit in ((1e3, "us"), (1e6, "ms")):
        if size < 999.5 * scale:
            value = size / scale
            return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"
    return f"{size / 1e9:.1f} s"
