"""Columns of screen 2: paths, the hops of one, and their changes between two moments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.console.tables.spec import TableSpec
from widgets.format import MISSING, milliseconds, percent, signed
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.paths.lines import HopChange, HopLine, PathLine

_TIME_LINE = (
    "A bar is two seconds; every row has the scale at the end of the title. "
    "\N{MULTIPLICATION SIGN}: every probe was lost. A hanging bar: some probes were lost. "
    "◆: the route changed."
)


def in_ms(seconds: float) -> float | None:
    """Return milliseconds with six decimals; None if `seconds` is not finite."""
    return round(seconds * 1e9) / 1e6 if math.isfinite(seconds) else None


DESTINATIONS: TableSpec[PathLine] = TableSpec(
    "destinations",
    (
        Column("path", "Destination or flow", 24,
            help="A traced destination, and below it the flows to it.",
            cell=lambda path: path.title, tone=lambda path: path.name_tone,
            value=lambda path: path.title.strip()),
        Column("node", "Node", 8, hidden=True,
            help="The host of the fleet that traces it, where several hosts are chosen.",
            cell=lambda path: path.host, tone=lambda path: path.tone),
        Column("hops", "Routers", 7, "right", priority=2, larger_first=True,
            help="Known number of routers on the path.",
            cell=lambda path: str(path.summary.length or "?"), tone=lambda path: path.tone,
            value=lambda path: path.summary.length or None),
        Column("rtt", "RTT ms", 7, "right", unit="ms", larger_first=True,
            help="Round trips of the flow itself to the destination and back: mean of the last 5"
            " s, or of the last minute.",
            cell=lambda path: milliseconds(path.summary.rtt), tone=lambda path: path.tone,
            value=lambda path: in_ms(path.summary.rtt)),
        Column("loss", "Loss", 6, "right", larger_first=True,
            help="Packets of the flow that the destination did not answer in time or that were"
            " sent again, of those that were timed in the last minute.",
            cell=lambda path: percent(path.summary.loss),
            tone=lambda path: Tone.BAD if path.summary.loss > 0 else path.tone,
            value=lambda path: path.summary.loss),
        Column("samples", "Samples", 7, "right", priority=3, larger_first=True,
            help="Number of those round trips in the last minute.",
            cell=lambda path: str(path.summary.samples or MISSING), tone=lambda path: path.tone,
            value=lambda path: path.summary.samples),
        Column("method", "Measured by", 18, priority=4,
            help="Parts of the flow that tell its round trip: TCP handshake, acknowledgements and"
            " timestamps, ICMP echo, DNS, the spin bit of QUIC; probe: the destination answers"
            " probes.",
            cell=lambda path: path.methods, tone=Tone.MUTED),
        Column("state", "State", 22, priority=1, grows=True,
            help="The most urgent fact: a queue, a changed route, no packets.",
            cell=lambda path: path.state[0], tone=lambda path: path.state[1]),
    ),
)  # fmt: skip

HOPS: TableSpec[HopLine] = TableSpec(
    "hops",
    (
        Column("hop", "Hop", 3, "right",
            help="Number of the router on the path: TTL or hop limit of its probes. The last line"
            " is the destination.",
            cell=lambda one: str(one.hop.ttl or "?"), tone=Tone.MUTED,
            value=lambda one: one.hop.ttl or None, rank=lambda one: one.hop.number),
        Column("host", "Host", 12,
            help="Router that answers; +1: one other router answers too. In the last line the"
            " destination.",
            cell=lambda one: one.host, tone=lambda one: one.host_tone,
            value=lambda one: None if one.is_silent and not one.hop.is_end else one.host),
        Column("loss", "Loss", 6, "right", larger_first=True,
            help="Lost probes in the last minute. Routers limit their answers: a loss that later"
            " hops do not have is no loss of packets. For the destination, packets of the flow"
            " without an answer.",
            cell=lambda one: percent(one.hop.numbers.loss),
            tone=lambda one: Tone.BAD if one.hop.numbers.loss > 0 and not one.hop.forgiven
            else Tone.MUTED,
            value=lambda one: one.hop.numbers.loss),
        Column("adds", "Adds ms", 7, "right", unit="ms", larger_first=True,
            help="Delay that the way from the nearest earlier hop that answers adds to the median"
            " round trip, in milliseconds. A hop is taken to be no farther than any later one, the"
            " destination included: slow answers of a router add nothing. The picture has the same"
            " numbers.",
            cell=lambda one: milliseconds(one.hop.adds), tone=lambda one: one.adds_tone,
            value=lambda one: in_ms(one.hop.adds)),
        Column("share", "", 8, priority=3, drawn=True,
            help="Bar of that delay; a full bar is the whole round trip.",
            cell=lambda one: one.bar),
        Column("last", "Last ms", 7, "right", priority=4, unit="ms", larger_first=True,
            help="Last round-trip time, in milliseconds.",
            cell=lambda one: MISSING if one.is_silent else milliseconds(one.hop.last),
            value=lambda one: in_ms(one.hop.last)),
        Column("median", "Median", 6, "right", priority=1, unit="ms", larger_first=True,
            help="Median of the last minute, in milliseconds: of probes, which go out with packets"
            " of the flows; for the destination, of the flows' own packets.",
            cell=lambda one: milliseconds(one.hop.numbers.median), tone=lambda one: one.time_tone,
            value=lambda one: in_ms(one.hop.numbers.median)),
        Column("p95", "p95", 6, "right", priority=2, unit="ms", larger_first=True,
            help="95th percentile of the last minute: 19 of 20 round-trip times were shorter.",
            cell=lambda one: milliseconds(one.hop.numbers.p95), tone=lambda one: one.time_tone,
            value=lambda one: in_ms(one.hop.numbers.p95)),
        Column("min", "Min", 6, "right", unit="ms", larger_first=True, hidden=True,
            help="Least round-trip time of the last minute: without queues.",
            cell=lambda one: milliseconds(one.hop.numbers.least), tone=Tone.MUTED,
            value=lambda one: in_ms(one.hop.numbers.least)),
        Column("jitter", "Jitter", 6, "right", priority=5, unit="ms", larger_first=True,
            help="Mean difference between consecutive round-trip times (RFC 3550).",
            cell=lambda one: milliseconds(one.hop.numbers.jitter), tone=Tone.MUTED,
            value=lambda one: in_ms(one.hop.numbers.jitter)),
        Column("count", "Recv/sent", 11, "right", priority=6, unit="received",
            larger_first=True, help="Answers and sent probes of the last minute; for the"
            " destination, packets of the flow that were timed.",
            cell=lambda one: MISSING if one.is_unknown_end
            else f"{one.hop.numbers.answered}/{one.hop.numbers.sent}", tone=Tone.MUTED,
            value=lambda one: one.hop.numbers.answered),
        Column("address", "Address", 15, hidden=True,
            help="Address of the router or the destination, also if Host shows its name.",
            cell=lambda one: one.address, tone=Tone.MUTED, value=lambda one: one.address or None),
        Column("sent", "Sent", 6, "right", hidden=True, larger_first=True,
            help="Sent probes of the last minute.",
            cell=lambda one: str(one.hop.numbers.sent), tone=Tone.MUTED,
            value=lambda one: one.hop.numbers.sent),
        Column("line", "", 14, grows=True, drawn=True, help=_TIME_LINE,
            cell=lambda one: one.line, tone=lambda one: one.line_tone),
    ),
    sort="hop",
)  # fmt: skip

HOP_CHANGES: TableSpec[HopChange] = TableSpec(
    "hop_changes",
    (
        Column("hop", "Hop", 3, "right", help="Number of the router on the path.",
            cell=lambda hop: str(hop.ttl or "?"), tone=Tone.MUTED,
            value=lambda hop: hop.ttl or None, rank=lambda hop: hop.number),
        Column("host", "Host", 15, grows=True,
            help="Router that answers at the later moment; colored if another one answered before.",
            cell=lambda hop: hop.host_now or "gone",
            tone=lambda hop: Tone.WARN if hop.moved else Tone.NORMAL),
        Column("change", "Change ms", 9, "right", unit="ms", larger_first=True,
            help="Change of the median, in milliseconds.",
            cell=lambda hop: signed(hop.change, milliseconds), tone=Tone.ACCENT,
            value=lambda hop: in_ms(hop.change), rank=lambda hop: abs(hop.change)),
        Column("median", "Median", 7, "right", priority=1, unit="ms", larger_first=True,
            help="Median of the minute before the later moment, in milliseconds.",
            cell=lambda hop: milliseconds(hop.now.median),
            value=lambda hop: in_ms(hop.now.median)),
        Column("before", "Before", 7, "right", priority=1, unit="ms", larger_first=True,
            help="Median of the minute before the earlier moment.",
            cell=lambda hop: milliseconds(hop.was.median), tone=Tone.MUTED,
            value=lambda hop: in_ms(hop.was.median)),
        Column("loss", "Loss", 6, "right", priority=2, larger_first=True,
            help="Loss of the minute before the later moment.",
            cell=lambda hop: percent(hop.now.loss),
            tone=lambda hop: Tone.BAD if hop.now.loss > hop.was.loss else Tone.NORMAL,
            value=lambda hop: hop.now.loss),
        Column("was_loss", "Before", 6, "right", priority=2, larger_first=True,
            help="Loss of the minute before the earlier moment.",
            cell=lambda hop: percent(hop.was.loss), tone=Tone.MUTED,
            value=lambda hop: hop.was.loss),
        Column("was_host", "Host before", 15, priority=3, grows=True,
            help="Router that answered at the earlier moment, if it was another one.",
            cell=lambda hop: (hop.host_before or "new") if hop.moved else "", tone=Tone.MUTED),
    ),
    sort="hop",
)  # fmt: skip
