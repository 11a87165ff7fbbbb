"""Columns of screen 2: paths, the hops of one, and their changes between two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.console.tables.spec import TableSpec, either
from bpf.quantities import MISSING, milliseconds, percent, signed
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.paths.untraced import Untraced
    from app.console.tables.sorted_table import FewRows

_TIME_LINE = (
    "A bar is two seconds; every row has the scale at the end of the title. "
    "\N{MULTIPLICATION SIGN}: every probe was lost. A hanging bar: some probes were lost. "
    "◆: the route changed."
)


def _time(
    name: str, title: str, width: int, about: str, field: str = "", text: Any = milliseconds,
    **layout: Any,
) -> Column[FewRows]:  # fmt: skip
    """A column of times: seconds in the rows, milliseconds for files."""

    def seconds(rows: FewRows) -> Any:
        return rows[field or name]

    return Column(
        name, title, width, "right", unit="ms", larger_first=True, help=about, text=text,
        values=seconds, written=lambda rows: ((seconds(rows) * 1e9).round() / 1e6).tolist(),
        **layout,
    )  # fmt: skip


def _loss(name: str, about: str, title: str = "Loss", **layout: Any) -> Column[FewRows]:
    return Column(
        name, title, 6, "right", larger_first=True, help=about, text=percent,
        written=lambda rows: rows[name].tolist(), **layout,
    )  # fmt: skip


def _number(name: str, title: str, width: int, about: str, field: str = "", **layout: Any
            ) -> Column[FewRows]:  # fmt: skip
    """A column of whole numbers; negative ones and NaN are unknown."""
    return Column(
        name, title, width, "right", help=about, values=lambda rows: rows[field or name],
        text=lambda number: f"{number:.0f}" if number >= 0 else "?",
        written=lambda rows: [
            int(number) if number >= 0 else None for number in rows[field or name].tolist()
        ], **layout,
    )  # fmt: skip


def _plain(rows: FewRows) -> Any:
    return either(rows["stopped"], Tone.MUTED, Tone.NORMAL)


DESTINATIONS: TableSpec[FewRows] = TableSpec(
    "destinations",
    (
        Column("path", "Destination or flow", 24,
            help="A traced destination, and below it the flows to it.",
            cells=lambda rows: rows["title"],
            values=lambda rows: [title.strip() for title in rows["title"]],
            tone=lambda rows: either(
                rows["is_whole"] & ~rows["stopped"], Tone.ACCENT, _plain(rows))),
        Column("node", "Node", 8, hidden=True,
            help="The host of the fleet that traces it, where several hosts are chosen.",
            tone=_plain),
        _number("hops", "Routers", 7, "Known number of routers on the path.", priority=2,
            larger_first=True, tone=_plain),
        _time("rtt", "RTT ms", 7,
            "Round trips of the flow itself to the destination and back: mean of the last 5"
            " s, or of the last minute.", tone=_plain),
        _loss("loss",
            "Packets of the flow that the destination did not answer in time or that were"
            " sent again, of those that were timed in the last minute.",
            tone=lambda rows: either(rows["loss"] > 0, Tone.BAD, _plain(rows))),
        Column("samples", "Samples", 7, "right", priority=3, larger_first=True,
            help="Number of those round trips in the last minute.",
            text=lambda number: str(number or MISSING), tone=_plain),
        Column("method", "Measured by", 18, priority=4,
            help="Parts of the flow that tell its round trip: TCP handshake, acknowledgements and"
            " timestamps, ICMP echo, DNS, the spin bit of QUIC; probe: the destination answers"
            " probes.", tone=Tone.MUTED),
        Column("state", "State", 22, priority=1, grows=True,
            help="The most urgent fact: a queue, a changed route, no packets.",
            tone=lambda rows: rows["state_tone"]),
    ),
)  # fmt: skip


def _queued(rows: FewRows, other: Any) -> Any:
    """Tones of hops: a queue is a warning."""
    return either(rows["queue_ns"] > 0, Tone.WARN, other)


def _silent(rows: FewRows) -> Any:
    """Whether no router answered in the last minute, or no round trip to the end is known."""
    return rows["answered"] == 0


def _timed(rows: FewRows) -> Any:
    return _queued(rows, either(_silent(rows), Tone.MUTED, Tone.NORMAL))


def _bars(rows: FewRows) -> Any:
    """Return the bars of the shares of hops."""
    from widgets.sparkline import gauge  # it draws: settings need the columns alone

    texts = (gauge(share, 8)[0][0] for share in rows["share"].tolist())
    tones = _queued(rows, Tone.ACCENT)
    return [((text, tone),) for text, tone in zip(texts, tones, strict=True)]


HOPS: TableSpec[FewRows] = TableSpec(
    "hops",
    (
        _number("hop", "Hop", 3,
            "Number of the router on the path: TTL or hop limit of its probes. The last line"
            " is the destination.", "ttl", tone=Tone.MUTED, order=lambda rows: rows["hop"]),
        Column("host", "Host", 12,
            help="Router that answers; +1: one other router answers too. In the last line the"
            " destination.",
            tone=lambda rows: either(rows["is_end"], Tone.ACCENT, _timed(rows)),
            cells=lambda rows: rows["host"],
            values=lambda rows: either(
                _silent(rows) & ~rows["is_end"], None, rows["host"].tolist())),
        _loss("loss",
            "Lost probes in the last minute. Routers limit their answers: a loss that later"
            " hops do not have is no loss of packets. For the destination, packets of the flow"
            " without an answer.",
            tone=lambda rows: either((rows["loss"] > 0) & ~rows["forgiven"], Tone.BAD, Tone.MUTED)),
        _time("adds", "Adds ms", 7,
            "Delay that the way from the nearest earlier hop that answers adds to the median"
            " round trip, in milliseconds. A hop is taken to be no farther than any later one, the"
            " destination included: slow answers of a router add nothing. The picture has the same"
            " numbers.",
            tone=lambda rows: _queued(rows, either(rows["is_notable"], Tone.NORMAL, Tone.MUTED))),
        Column("share", "", 8, priority=3, drawn=True,
            help="Bar of that delay; a full bar is the whole round trip.", cells=_bars),
        _time("last", "Last ms", 7, "Last round-trip time, in milliseconds.", priority=4,
            cells=lambda rows: either(
                _silent(rows), MISSING, list(map(milliseconds, rows["last"].tolist())))),
        _time("median", "Median", 6,
            "Median of the last minute, in milliseconds: of probes, which go out with packets"
            " of the flows; for the destination, of the flows' own packets.", priority=1,
            tone=_timed),
        _time("p95", "p95", 6,
            "95th percentile of the last minute: 19 of 20 round-trip times were shorter.",
            priority=2, tone=_timed),
        _time("min", "Min", 6, "Least round-trip time of the last minute: without queues.", "least",
            hidden=True, tone=Tone.MUTED),
        _time("jitter", "Jitter", 6,
            "Mean difference between consecutive round-trip times (RFC 3550).", priority=5,
            tone=Tone.MUTED),
        Column("count", "Recv/sent", 11, "right", priority=6, unit="received",
            larger_first=True, help="Answers and sent probes of the last minute; for the"
            " destination, packets of the flow that were timed.", tone=Tone.MUTED,
            values=lambda rows: rows["answered"],
            cells=lambda rows: [
                MISSING if is_end and not sent else f"{answered}/{sent}"
                for is_end, answered, sent in zip(
                    rows["is_end"], rows["answered"], rows["sent"], strict=True)]),
        Column("address", "Address", 15, hidden=True,
            help="Address of the router or the destination, also if Host shows its name.",
            cells=lambda rows: rows["address"], tone=Tone.MUTED,
            values=lambda rows: [address or None for address in rows["address"]]),
        Column("sent", "Sent", 6, "right", hidden=True, larger_first=True,
            help="Sent probes of the last minute.", tone=Tone.MUTED),
        Column("line", "", 14, grows=True, drawn=True, help=_TIME_LINE,
            cells=lambda rows: rows["line"], tone=lambda rows: line_tones(rows)),
    ),
    sort="hop",
)  # fmt: skip


def line_tones(hops: Any) -> Any:
    """Return the tones of time lines; `hops` have columns of HOP."""
    return _queued(hops, either(hops["forgiven"], Tone.MUTED, Tone.ACCENT))


HOP_CHANGES: TableSpec[FewRows] = TableSpec(
    "hop_changes",
    (
        _number("hop", "Hop", 3, "Number of the router on the path.", "ttl", tone=Tone.MUTED,
            order=lambda rows: rows["id"]),
        Column("host", "Host", 15, grows=True,
            help="Router that answers at the later moment; colored if another one answered before.",
            tone=lambda rows: either(rows["moved"], Tone.WARN, Tone.NORMAL)),
        _time("change", "Change ms", 9, "Change of the median, in milliseconds.",
            text=lambda change: signed(change, milliseconds), tone=Tone.ACCENT,
            order=lambda rows: abs(rows["change"])),
        _time("median", "Median", 7,
            "Median of the minute before the later moment, in milliseconds.", priority=1),
        _time("before", "Before", 7, "Median of the minute before the earlier moment.", priority=1,
            tone=Tone.MUTED),
        _loss("loss", "Loss of the minute before the later moment.", priority=2,
            tone=lambda rows: either(rows["loss"] > rows["was_loss"], Tone.BAD, Tone.NORMAL)),
        _loss("was_loss", "Loss of the minute before the earlier moment.", "Before", priority=2,
            tone=Tone.MUTED),
        Column("was_host", "Host before", 15, priority=3, grows=True,
            help="Router that answered at the earlier moment, if it was another one.",
            tone=Tone.MUTED),
    ),
    sort="hop",
)  # fmt: skip

UNTRACED: TableSpec[Untraced] = TableSpec(
    "untraced",
    (
        Column("destination", "Not traced", 18, grows=True,
            help="A destination of this host's connections. Enter traces its path.",
            cells=lambda one: one.key.destination),
        Column("node", "Node", 8, hidden=True, help="The host of the fleet.",
            cells=lambda one: one.key.host),
        Column("rtt", "RTT ms", 9, "right", unit="ms", larger_first=True,
            help="Round-trip time of the largest connection, as its own segments tell it.",
            cells=lambda one: milliseconds(one.rtt), written=lambda one: one.rtt * 1e3,
            order=lambda one: one.rtt),
        Column("least", "Least", 9, "right", unit="ms", larger_first=True, priority=3,
            help="The least round-trip time of that connection.",
            cells=lambda one: milliseconds(one.least), written=lambda one: one.least * 1e3,
            order=lambda one: one.least),
        Column("network", "Network", 18, priority=4,
            help="Prefix of this host's route to it; empty for connections of other namespaces.",
            cells=lambda one: one.network, tone=Tone.MUTED),
        Column("connections", "Convs", 6, "right", larger_first=True, priority=2,
            help="Connections of the last minute.",
            cells=lambda one: str(one.connections), written=lambda one: one.connections),
        Column("state", "State", 36, priority=1,
            help="Time since the last packet, or since the last answer; the time of a round trip"
            " above the least one; that the other end reads slowly; or that no router stands"
            " between.",
            cells=lambda one: one.state[0], tone=lambda one: one.state[1]),
    ),
)  # fmt: skip
