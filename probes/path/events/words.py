"""Findings about paths in an operator's words."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Row, Rows
from bpf.quantities import duration, percent
from probes.filter.hosts import address_text, protocol_name
from probes.path.analysis.branches import is_different
from probes.path.records import DESTINATION_HOP, PATH, Altered, PathRowKind, QueueSide

_WARNINGS = frozenset(
    {
        PathRowKind.SILENT,
        PathRowKind.QUEUE,
        PathRowKind.LOSS,
        PathRowKind.LOOP,
        PathRowKind.FLAP,
    }
)
"""A changed route is no warning. If the new route loses or delays packets, another event warns."""

_WHOLE = frozenset(
    {
        PathRowKind.GAP,
        PathRowKind.ROUTE,
        PathRowKind.ROUTE_AMOUNTS,
        PathRowKind.LOOP,
        PathRowKind.LOOP_OVER,
        PathRowKind.FLAP,
        PathRowKind.FLAP_OVER,
    }
)
"""Kinds of rows about a whole path."""
_ECN = ("Not-ECT", "ECT(1)", "ECT(0)", "CE")
"""Code points of RFC 3168, section 5."""
_ALTERED = {
    Altered.IDENTIFICATION: "a middlebox changes the IPv4 identification",
    Altered.LENGTH: "a middlebox changes the packet's length",
    Altered.SOURCE: "a middlebox changes the source address or port (NAT)",
    Altered.SEQUENCE: "a middlebox changes TCP's sequence numbers",
    Altered.CHECKSUM: "a middlebox changes the checksum (NAT)",
}


def describe(row: Row[PATH], flows: str = "") -> tuple[str, str]:
    """Severity (`info`, `warning`) and text of one row of dtype PATH; not for a SUMMARY. `flows`
    names its flows, by default the row's own."""
    kind = PathRowKind(int(row["kind"]))
    slower = kind is PathRowKind.SHIFT and row["amount_ns"] > 0
    severity = "warning" if kind in _WARNINGS or slower else "info"
    return severity, f"{place_text(row)}: {_what(kind, row, flows or flows_text(row))}"


def going_on(rows: Rows[PATH], kind: PathRowKind) -> Row[PATH] | None:
    """Return the last row (dtype PATH) of a kind that lasts, such as LOOP; None if it is over."""
    rows = rows[np.isin(rows["kind"], (kind, kind + 1))]
    last = rows[rows["at_ns"].argmax()] if len(rows) else None
    return last if last is not None and last["kind"] == kind else None


def place_text(row: Row[PATH]) -> str:
    """The destination of a row, and its hop if there is one."""
    destination = address_of(row, "destination")
    if row["kind"] == PathRowKind.BRANCH:
        return f"{destination} from hop {row['amount']} on"
    if row["kind"] in _WHOLE or row["hop"] in (0, DESTINATION_HOP):
        return destination
    return f"{destination} hop {row['hop']}"


def flows_text(row: Row[PATH]) -> str:
    """The flow of a row, or the number of its flows: `udp 40000>9`, `4 flows`."""
    if row["flows"] > 1:
        return f"{row['flows']} flows"
    source, destination = int(row["source_port"]), int(row["destination_port"])
    name = protocol_name(int(row["protocol"]))
    if name.startswith("icmp"):
        return f"{name} {source}"
    return f"{name} {source}>{destination}"


def _what(kind: PathRowKind, row: Row[PATH], flows: str) -> str:
    responder, previous = address_of(row, "responder"), address_of(row, "previous")
    amount = _span(int(row["amount_ns"]))
    ago = _span(int(row["at_ns"]) - int(row["since_ns"]))
    match kind:
        case PathRowKind.RESPONDER:
            return f"answered by {responder}, was {previous}"
        case PathRowKind.BALANCED:
            return f"{flows} of several go by {responder}"
        case PathRowKind.BALANCED_PACKETS:
            return f"packets of {flows} go by {responder} and by {previous} in turn"
        case PathRowKind.LONGER | PathRowKind.SHORTER:
            count, more = int(row["amount"]), kind is PathRowKind.LONGER
            length = _hops(count if more else -count)
            return f"the path of {flows} is {length}: this is its last hop now"
        case PathRowKind.SILENT if row["amount"] > 1:
            return f"no answer from here on ({row['amount']} hops) since {ago} ago, for {flows}"
        case PathRowKind.SILENT:
            return f"{responder} answers no more since {ago} ago, for {flows}"
        case PathRowKind.ANSWERS:
            return f"{responder} answers again after {amount}, for {flows}"
        case PathRowKind.SHIFT:
            longer = "longer" if row["amount_ns"] > 0 else "shorter"
            return f"round-trip time {longer} by {amount} since {ago} ago, for {flows}"
        case PathRowKind.QUEUE:
            side = QueueSide(int(row["side"])).words
            return f"queue of {amount} {_between(row)}, {side}, since {ago} ago, for {flows}"
        case PathRowKind.QUEUE_OVER:
            return f"queue is over, was up to {amount}, for {flows}"
        case PathRowKind.GAP:
            return f"no probes of {flows} for {amount}: nothing was sent"
        case PathRowKind.ROUTE:
            change = f"route changed at {_range(row)} for {flows}: by {responder}, was {previous}"
            return "; ".join((change, *_amounts(row)))
        case PathRowKind.ROUTE_AMOUNTS:
            return f"{_amounts(row)[0]} since the route changed at {_range(row)}, for {flows}"
        case PathRowKind.ALIAS:
            back = f", by a way back that is {_hops(int(row['amount']))}" if row["amount"] else ""
            return (
                f"answered by {responder}, was {previous}, for {flows}: another router, or another "
                f"address of the same one{back}; later hops and the round-trip time are the same"
            )
        case PathRowKind.LOSS:
            side = QueueSide(int(row["side"])).words
            return f"loss of {_loss(row)} {_between(row)}, {side}, since {ago} ago, for {flows}"
        case PathRowKind.LOSS_OVER:
            return f"loss is over, was {_loss(row)}, for {flows}"
        case PathRowKind.LOOP:
            return f"{loop_text(row)}: packets of {flows} do not arrive"
        case PathRowKind.LOOP_OVER:
            return f"{loop_text(row)} is over after {amount}, for {flows}"
        case PathRowKind.FLAP | PathRowKind.FLAP_OVER:
            took = _span(int(row["amount_ns"]) * (int(row["amount"]) - 1))
            text = f"{flap_text(row)}, for {flows}: {row['amount']} changes in {took}"
            last = f", by {responder} at last; the path has {row['other_hop']} hops now"
            return text if kind is PathRowKind.FLAP else text + last
        case PathRowKind.BRANCH:
            return _branch(row, responder, previous)
        case PathRowKind.MARKING:
            return _marking(int(row["amount"]))
        case PathRowKind.ALTERED:
            return f"{_ALTERED[Altered(int(row['amount']))]}, right before this hop"
        case PathRowKind.SUMMARY:
            raise ValueError("a summary is no event")


def loop_text(row: Row[PATH]) -> str:
    """`routing loop between 10.94.3.2 (hop 3) and 10.94.4.2 (hop 4)`, or `routing loop at 10.94.3.2
    (hop 3), which answers again 2 hops later`, if the last router of the loop never answers."""
    many = f" of {row['amount']} routers" if row["amount"] > 2 else ""
    ends = f"{address_of(row, 'responder')} (hop {row['hop']})"
    if not row["previous"].any():
        return f"routing loop at {ends}, which answers again {row['amount']} hops later"
    return (
        f"routing loop{many} between {ends} and {address_of(row, 'previous')} "
        f"(hop {row['other_hop']})"
    )


def flap_text(row: Row[PATH]) -> str:
    """`hop 3 flaps between 10.94.3.2 and 10.94.13.2, every 2.0 s`."""
    routers = " and ".join(sorted(address_of(row, name) for name in ("responder", "previous")))
    verb = "flaps" if row["kind"] == PathRowKind.FLAP else "flapped"
    return f"hop {row['hop']} {verb} between {routers}, every {_span(int(row['amount_ns']))}"


def _between(row: Row[PATH]) -> str:
    """The two ends of the link before a hop."""
    before = "this host"
    if row["other_hop"]:
        before = f"{address_of(row, 'previous')} (hop {row['other_hop']})"
    here = f"{address_of(row, 'responder')} (hop {row['hop']})"
    return f"between {before} and {'the destination' if row['hop'] == DESTINATION_HOP else here}"


def _range(row: Row[PATH]) -> str:
    first, last = int(row["hop"]), int(row["other_hop"])
    return f"hop {first}" if first == last else f"hops {first}-{last}"


def _amounts(row: Row[PATH]) -> list[str]:
    """The changes of length and round-trip time, joined; empty without a change."""
    found = []
    if row["amount"]:
        found.append(_hops(int(row["amount"])))
    if row["amount_ns"]:
        sign = "+" if row["amount_ns"] > 0 else "-"
        found.append(f"{sign}{_span(int(row['amount_ns']))}")
    return [", ".join(found)] if found else []


def _hops(more: int) -> str:
    """`one hop longer`, `2 hops shorter`."""
    count = "one hop" if abs(more) == 1 else f"{abs(more)} hops"
    return f"{count} {'longer' if more > 0 else 'shorter'}"


def _loss(row: Row[PATH]) -> str:
    """`5.1 % (3.4 % to 7.6 %)`."""
    share = row["lost"] / max(1, int(row["lost"]) + int(row["answered"]))
    return f"{percent(share)} ({percent(row['loss_low'])} to {percent(row['loss_high'])})"


def _branch(row: Row[PATH], responder: str, previous: str) -> str:
    """The comparison of two branches; `amount` is the hop where they part."""
    where = "the destination" if row["hop"] == DESTINATION_HOP else f"hop {row['hop']}"
    chance = float(row["p_value"])
    p_value = "p < 1e-9" if chance < 1e-9 else f"p {chance:.2g}"
    numbers = f"KS {row['statistic']:.2f}, {p_value}, {row['answered']} times"
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


def address_of(row: Row[PATH], name: str) -> str:
    """The address in a field of a row."""
    return address_text(row[name].tobytes(), int(row["version"]))


def _span(nanoseconds: int) -> str:
    """`850 us`, `160 ms`, `3.2 s`; without a sign."""
    return duration(abs(nanoseconds) / 1e9)
