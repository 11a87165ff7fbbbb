"""Rows of PATH in an operator's words."""

from __future__ import annotations

from typing import Any

from probes.filter.network import address_text, protocol_name
from probes.path.records import Array, PathRowKind

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


def tell(rows: Array) -> list[tuple[str, str]]:
    """Severities and texts of all rows (n,) of dtype PATH except SUMMARY, in order. A text that
    several flows share appears once."""
    changes = rows[rows["kind"] != PathRowKind.SUMMARY]
    return list(dict.fromkeys(describe(row) for row in changes))


def describe(row: Any) -> tuple[str, str]:
    """Severity (`info`, `warning`) and text of one row of dtype PATH; not for a SUMMARY."""
    kind = PathRowKind(int(row["kind"]))
    destination = _address(row, "destination")
    place = f"{destination} hop {row['hop']}"
    if kind is PathRowKind.GAP:
        place = destination
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
        case PathRowKind.SUMMARY:
            raise ValueError("a summary is no event")


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
