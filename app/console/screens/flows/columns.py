"""Columns of screen 3: flows, and their changes between two moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.commands.flow_view import QUIET_NS
from app.console.screens.flows.owner_columns import OWNERS, PROCESS, RTT
from app.console.tables.spec import TableSpec
from bpf.quantities import age, bit_rate, byte_size, clock, milliseconds, si, signed
from probes.tables.flow_columns import FLOW_COLUMNS, FlowColumn
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.flows.rows import ShownFlows

STATES = ("", "new", "gone", "cut")
"""Words for the states of compared flows."""
LACKED = "the full table, a window that the CPU budget cut, or one of a fleet's largest flows,"
"""Reason of a lower bound."""


def whole(value: float) -> str:
    """Return a count, without decimals below a thousand."""
    return f"{value:.0f}" if value < 999.5 else si(value)


def _worded(name: str, title: str, width: int, field: str, words: Sequence[str], **layout: Any
            ) -> Column[ShownFlows]:  # fmt: skip
    """A column of words for the values of a field."""
    return Column(
        name, title, width, order=lambda part: part[field],
        values=lambda part: [words[value] for value in part[field].tolist()], **layout,
    )  # fmt: skip


def timed(name: str, title: str, width: int, about: str) -> Column[ShownFlows]:
    """A column of UTC times."""

    def utc(part: ShownFlows) -> Any:
        return part[f"{name}_ns"] + part.view.to_utc_ns

    def iso(part: ShownFlows) -> Any:
        from probes.tables.conversion import iso_all

        return iso_all(utc(part))

    return Column(
        name, title, width, hidden=True, larger_first=True, help=about, text=clock,
        values=utc, written=iso,
    )  # fmt: skip


def _end(name: str, about: str) -> Column[ShownFlows]:
    return Column(
        name, name.capitalize(), 21, grows=True, help=about,
        values=lambda part: part.endpoints(name), order=lambda part: part.address_ranks(name),
    )  # fmt: skip


def port(name: str, title: str, width: int, field: str, about: str) -> Column[ShownFlows]:
    """A column of ports."""
    return Column(
        name, title, width, "right", hidden=True, help=about, values=lambda part: part[field],
        cells=lambda part: part.ports(field),
    )  # fmt: skip


def rate_text(part: ShownFlows, rate: float, text: Callable[[float], str] = si) -> str:
    """Return a rate. In a window that lacks flows it is a lower bound, and 0 is unknown."""
    if not part.view.cut_rates:
        return text(rate)
    return f"≥{text(rate)}" if rate else "?"


def _rates(name: str, text: Callable[[float], str]) -> Any:
    """Return a function that returns the texts of rates."""
    return lambda part: [rate_text(part, rate, text) for rate in part[name].tolist()]


def _seconds(name: str, unit: float) -> Any:
    """A function that returns a column of times in `unit`, with three decimals."""
    return lambda part: (part[name] / unit).round(3).tolist()


NODE: Column[ShownFlows] = Column(
    "node", "Node", 8, hidden=True,
    help="The host of the fleet that sees the flow, where several hosts are chosen.",
    values=lambda part: part.shared("node"), order=lambda part: part.ranks("node"))  # fmt: skip
INTERFACE: Column[ShownFlows] = Column(
    "interface", "Interface", 9, priority=3, hidden=True,
    help="The interface that counts the packets, where several are watched.",
    values=lambda part: part.shared("interface"),
    order=lambda part: part.ranks("interface"))  # fmt: skip
PROTOCOL: Column[ShownFlows] = Column(
    "protocol", "Proto", 5, priority=1,
    help="TCP, UDP, ICMP and so on; a number if the protocol has no usual name.",
    values=lambda part: part.protocols(), order=lambda part: part["protocol"])  # fmt: skip
RTT_COLUMN: Column[ShownFlows] = Column(
    "rtt", "RTT ms", 6, "right", priority=5, hidden=True, unit="ms", larger_first=True, help=RTT,
    text=milliseconds, written=_seconds("rtt", 1e-3))  # fmt: skip
IDLE: Column[ShownFlows] = Column(
    "idle", "Idle", 5, "right", priority=6, unit="s",
    help="Time since the last packet, from 3 s on, or since a window that lacks flows.",
    text=lambda ns: age(ns / 1e9) if ns > QUIET_NS else "",
    written=_seconds("idle", 1e9))  # fmt: skip
PACKETS: Column[ShownFlows] = Column(
    "packets", "Packets", 7, "right", priority=4, larger_first=True, text=whole, bounded=True,
    help="Packets since probedeck first saw the flow.")  # fmt: skip
BYTES: Column[ShownFlows] = Column(
    "bytes", "Bytes", 8, "right", priority=3, larger_first=True, text=byte_size, bounded=True,
    help="Bytes since then, of IP packets with their headers.")  # fmt: skip
AGE: Column[ShownFlows] = Column(
    "age", "Age", 6, "right", priority=2, unit="s", larger_first=True, bounded=True,
    help="Time since the first packet.",
    text=lambda ns: age(ns / 1e9), written=_seconds("age", 1e9))  # fmt: skip
FLAGS: Column[ShownFlows] = Column(
    "flags", "TCP flags", 9, priority=7,
    help="Every TCP flag seen: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.",
    values=lambda part: part["tcp_flags"], cells=lambda part: part.flags())  # fmt: skip
VERSION: Column[ShownFlows] = Column(
    "version", "IP", 2, "right", hidden=True, larger_first=True, help="IP version: 4 or 6."
)


def _plain(of: FlowColumn) -> Column[ShownFlows]:
    """A column of a number of the flow's packets."""
    name, words, given = of.name, of.words, of.given
    column: Column[ShownFlows] = Column(
        name, of.title, of.width, "left" if words else "right", of.priority, hidden=True,
        larger_first=True, help=of.help,
    )  # fmt: skip
    if words is not None:
        return replace(
            column, order=lambda part: part[name],
            values=lambda part: list(map(words, part[name].tolist())),
        )  # fmt: skip
    if not given:
        return column
    return replace(column, cells=lambda part: [
        str(value) if known else "" for value, known in zip(part[name], part[given], strict=True)
    ])  # fmt: skip


LINK = tuple(_plain(column) for column in FLOW_COLUMNS if column.is_key)
"""Columns of conversations, too."""
TOTALS = _worded(
    "totals",
    "Totals",
    8,
    "at_least",
    ("exact", "at least"),
    priority=1,
    hidden=True,
    larger_first=True,
    help=f"at least, and ≥ elsewhere: {LACKED} had no row for the flow at times.",
)
FLOWS: TableSpec[ShownFlows] = TableSpec(
    "flows",
    (
        _worded("direction", "Dir", 3, "direction", ("in", "out"), priority=1,
            help="Into this host, or out of it."),
        PROTOCOL,
        _end("source", "Address and port that the packets come from."),
        _end("destination", "Address and port that the packets go to; for ICMP the message's"
            " type."),
        NODE,
        INTERFACE,
        *PROCESS,
        Column("rate", "Rate", 11, "right", unit="bps", larger_first=True,
            help="Bits per second over the last window, or the last half second. ≥ and ?: the"
            " window lacks flows.", cells=_rates("bit_rate", bit_rate)),
        Column("packet_rate", "Pkt/s", 6, "right", priority=2, unit="pps", larger_first=True,
            help="Packets per second over the same time.", cells=_rates("packet_rate", whole)),
        PACKETS, BYTES, AGE, *OWNERS, RTT_COLUMN, IDLE, FLAGS, VERSION,
        port("source_port", "Src port", 8, "source_port", "Port of the source."),
        port("destination_port", "Dst port", 8, "destination_port", "Port of the destination."),
        Column("size", "Size", 6, "right", hidden=True, unit="bytes", larger_first=True,
            help="Mean size of a packet.", text=whole,
            values=lambda part: part["bytes"] / part["packets"].clip(1)),
        timed("first", "First (UTC)", 11, "Time of the first packet."),
        timed("last", "Last (UTC)", 10, "Time of the last packet."),
        *map(_plain, FLOW_COLUMNS),
        TOTALS,
    ),
    sort="rate",
)  # fmt: skip
"""Flows of the table."""


def _change(name: str, title: str, width: int, text: Any, about: str, **layout: Any
            ) -> Column[ShownFlows]:  # fmt: skip
    """A column of numbers at two moments: the largest one comes first, whatever its sign."""
    return Column(
        name, title, width, "right", larger_first=True, help=about, text=text,
        order=lambda part: part.change_ranks(name), **layout,
    )  # fmt: skip


NUMBERS: tuple[Column[ShownFlows], ...] = (
    _change("change", "Change", 12, lambda value: signed(value, bit_rate),
        "Bits per second more, or fewer, than at the earlier moment.", unit="bps",
        tone=Tone.ACCENT),
    _change("rate", "Rate", 11, bit_rate, "Bits per second at the later moment.", unit="bps",
        priority=1),
    _change("before", "Before", 11, bit_rate, "Bits per second at the earlier moment.",
        unit="bps", priority=3, tone=Tone.MUTED),
    _change("more", "Packets", 8, lambda value: signed(value, si),
        "Packets between the two moments; unknown if the flow is gone.", unit="packets",
        priority=4),
    Column("state", "Flow", 4, priority=1, larger_first=True,
        help="new: no packet before the later moment. gone: no packet for a minute. cut: the"
        " window of a moment lacks flows.",
        values=lambda part: [STATES[state] for state in part["state"].tolist()],
        order=lambda part: part.change_ranks("state"),
        tone=lambda part: [Tone.GOOD if state == STATES.index("new") else Tone.NORMAL
                           for state in part["state"].tolist()]),
)  # fmt: skip
"""Columns of changes."""
CHANGES: TableSpec[ShownFlows] = TableSpec(
    "changes",
    (*(replace(column, priority=2 * column.priority) for column in FLOWS.columns[:4]), *NUMBERS),
    sort="change",
)
"""Flows at two moments."""
