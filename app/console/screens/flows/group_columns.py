"""Columns of the grouped views of screen 3, and the columns that a table of some width needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.commands.flow_view import DIRECTIONS, LABEL_KINDS, QUIET_NS
from app.console.screens.flows.columns import (
    AGE,
    BYTES,
    FLAGS,
    FLOWS,
    IDLE,
    LACKED,
    LINK,
    NODE,
    NUMBERS,
    PACKETS,
    PROTOCOL,
    RTT_COLUMN,
    TOTALS,
    VERSION,
    port,
    rate_text,
    timed,
    whole,
)
from app.console.screens.flows.owner_columns import OWNERS, PROCESS, RTT
from app.console.tables.spec import TableSpec, columns
from bpf.quantities import byte_size, si
from widgets.table.rows import Column, Pieces
from widgets.tones import Tone, Way, rate_tone

if TYPE_CHECKING:
    from app.console.screens.flows.rows import GroupedFlows, ShownFlows
    from bpf.arrays import Array

_Columns = tuple[Column["ShownFlows"], ...]
_LINE = 12
"""Cells of a sparkline."""


def has_interfaces(flows: Array) -> bool:
    """Whether flows (n,) are of more than one interface."""
    names = flows["interface"]
    return len(names) > 1 and bool((names != names[:1]).any())


def _rates(name: str) -> Any:
    """Return a function that returns the texts of rates; a dot if nothing came."""
    return lambda part: [
        rate_text(part, rate) if rate else _nothing(part) for rate in part[name].tolist()
    ]


def _nothing(part: ShownFlows) -> Pieces:
    """A rate of nothing draws no attention."""
    return (("?" if part.view.cut_rates else "·", Tone.MUTED),)


def _bars(way: Way) -> Any:
    """Return a function that returns rates over their shares of the largest."""

    def bars(part: ShownFlows) -> list[Pieces]:
        # They draw: settings need the columns alone.
        from widgets.sparkline import behind, round_scale

        width, scale = part.bar, round_scale(float(part.groups.column(way).max(initial=0)))
        return [
            behind(rate_text(part, rate), width, rate / scale, way, rate_tone(way, rate))
            if rate
            else _nothing(part)
            for rate in part[way].tolist()
        ]

    return bars


def _lines(part: ShownFlows) -> list[Pieces]:
    """Return the last minute, in the colour of the direction with more bytes."""
    from widgets.sparkline import BARS, NOTHING, round_scale

    found: list[Pieces] = []
    inwards = (part["in_bytes"] >= part["out_bytes"]).tolist()
    for place, is_in, quiet in zip(part.places.tolist(), inwards, part["idle"], strict=True):
        values = part.groups.line(place).tolist()
        scale = round_scale(max((value for value in values if value == value), default=0.0))
        text = "".join(
            NOTHING if math.isnan(value)
            else BARS[max(1, math.ceil(value / scale * len(BARS))) - 1]
            for value in values
        )  # fmt: skip
        tone = Tone.MUTED if quiet > QUIET_NS else Tone.IN if is_in else Tone.OUT
        found.append(((text, tone),))
    return found


_RATES: _Columns = (
    Column("in", "In bit/s", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that arrive, over the last window or half second. The bar is the"
        " share of the largest. ≥ and ?: the window lacks flows.",
        cells=_bars("in")),
    Column("out", "Out", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that leave, and the share of the largest.",
        cells=_bars("out")),
    Column("rate", "Both", 6, "right", priority=1, unit="bps", larger_first=True,
        help="Bits per second of both directions: the sum of In and Out.",
        cells=_rates("rate")),
    Column("line", "1 min", _LINE, priority=2, drawn=True,
        help="Bits per second of the last minute, both directions, in cells of 5 s. Each row has"
        " its own scale, and the colour of the direction with more bytes. Gaps: windows that lack"
        " flows.",
        cells=_lines),
)  # fmt: skip
_TOTALS: _Columns = (
    replace(RTT_COLUMN, priority=3, help=f"{RTT} Of several, the longest."),
    replace(IDLE, priority=5),
    replace(PACKETS, width=8, priority=6,
        help="Packets of both directions since probedeck first saw a flow of the group."),
    replace(BYTES, priority=6, help="Bytes since then, of frames with their headers."),
    replace(AGE, priority=7, help="Time since the first packet of a flow that is still listed."),
    Column("in_packet_rate", "In pkt/s", 8, "right", priority=8, unit="pps", larger_first=True,
        help="Packets per second that arrive.",
        cells=_rates("in_packet_rate")),
    Column("out_packet_rate", "Out pkt/s", 9, "right", priority=8, unit="pps", larger_first=True,
        help="Packets per second that leave.",
        cells=_rates("out_packet_rate")),
    Column("mean", "Avg 1 min", 9, "right", priority=9, hidden=True, unit="bps", larger_first=True,
        help="Mean bits per second of the last minute, both directions.", text=si,
        bounded=True),
    Column("in_packets", "In packets", 10, "right", hidden=True, larger_first=True,
        help="Packets that arrived.", text=whole, bounded=True),
    Column("out_packets", "Out packets", 11, "right", hidden=True, larger_first=True,
        help="Packets that left.", text=whole, bounded=True),
    Column("in_bytes", "In bytes", 9, "right", hidden=True, larger_first=True,
        help="Bytes that arrived.", text=byte_size, bounded=True),
    Column("out_bytes", "Out bytes", 9, "right", hidden=True, larger_first=True,
        help="Bytes that left.", text=byte_size, bounded=True),
    timed("first", "First (UTC)", 11, "Time of the first packet."),
    timed("last", "Last (UTC)", 10, "Time of the last packet."),
    replace(TOTALS, priority=2,
        help=f"at least, and ≥ elsewhere: {LACKED} had no row for a flow at times."),
)  # fmt: skip
_ADDRESS: _Columns = (
    Column("address", "Address", 15, priority=4, hidden=True,
        help="The address without name and port.",
        values=lambda part: part.hosts(), order=lambda part: part.address_ranks(part.end)),
    Column("name", "Name", 18, hidden=True, grows=True,
        help="Host name of the address; empty without a known name.",
        values=lambda part: part.names(), order=lambda part: part.address_ranks(part.end)),
)  # fmt: skip
_SERVICE: Column[ShownFlows] = Column(
    "service", "Service", 7,
    help="Name of the serving port, by probedeck's list and /etc/services; or protocol and port.",
    values=lambda part: part.services(), order=lambda part: part["service_port"])  # fmt: skip
_FLOWS: Column[ShownFlows] = Column(
    "flows", "Convs", 6, "right", priority=1, larger_first=True, text=whole,
    help="Conversations: both directions of two ends are one.")  # fmt: skip
CONVERSATIONS: TableSpec[ShownFlows] = TableSpec(
    "conversations",
    (
        NODE,
        _SERVICE,
        Column("local", "Local", 6, priority=3,
            help="This host's end: address and port, or only the port if most conversations have"
            " this address.",
            values=lambda part: part.endpoints("near"), cells=lambda part: part.locals(),
            order=lambda part: part.address_ranks("near")),
        Column("remote", "Remote", 18, grows=True,
            help="The other end: host name, if known, or address; and the port.",
            values=lambda part: part.endpoints("far"), cells=lambda part: part.remotes(),
            order=lambda part: part.address_ranks("far")),
        *PROCESS, *_RATES, *OWNERS, *_TOTALS,
        replace(FLAGS, priority=8,
            help="Every TCP flag seen, in both directions: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.",
            written=lambda part: list(part.flags())),
        replace(PROTOCOL, priority=9),
        *_ADDRESS,
        port("local_port", "Local port", 10, "near_port", "Port of this host's end."),
        port("remote_port", "Remote port", 11, "far_port", "Port of the other end."),
        VERSION,
        *(replace(column, priority=4) for column in LINK),
    ),
    sort="rate",
)  # fmt: skip
HOSTS: TableSpec[ShownFlows] = TableSpec(
    "hosts",
    (
        Column("host", "Host", 19, grows=True,
            help="Host name, if known, or address: of the other ends, or of this host's ends in"
            " the view `hosts local`.",
            values=lambda part: part.hosts(), cells=lambda part: part.named(),
            order=lambda part: part.address_ranks(part.end)),
        _FLOWS, *_RATES, *_TOTALS, *_ADDRESS,
    ),
    sort="rate",
)  # fmt: skip
SERVICES: TableSpec[ShownFlows] = TableSpec(
    "services",
    (
        replace(_SERVICE, width=12, grows=True),
        Column("port", "Port", 9, help="Protocol and serving port.",
            values=lambda part: part.serving_ports(), order=lambda part: part["service_port"]),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
NETWORKS: TableSpec[ShownFlows] = TableSpec(
    "networks",
    (
        Column("network", "Network", 18, grows=True,
            help="Prefix of the other ends, /24 and /64 if not chosen otherwise; or of this host's"
            " ends in the view `networks local`.",
            values=lambda part: part.networks(), order=lambda part: part.address_ranks(part.end)),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
OWNED: TableSpec[ShownFlows] = TableSpec(
    "owners",
    (
        Column("owner", "Owner", 22, grows=True,
            help="Process, unit, container, pod, user or interface of the flows; or why nobody owns"
            " them.",
            values=lambda part: part.texts(), order=lambda part: part.text_ranks(str.casefold),
            tone=lambda part: [
                Tone.MUTED if text.startswith("no ") else Tone.NORMAL for text in part.texts()]),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
"""Groups by owner, of all kinds."""
GROUPS = (CONVERSATIONS, HOSTS, SERVICES, NETWORKS, OWNED)
"""Tables of groups."""
GROUP_CHANGES: TableSpec[ShownFlows] = TableSpec(
    "group_changes",
    (
        Column("group", "Group", 30, grows=True,
            help="The conversation, host, service, network or owner.",
            values=lambda part: part.texts(), order=lambda part: part.text_ranks(str)),
        *NUMBERS,
    ),
    sort="change",
)  # fmt: skip
"""Groups at two moments."""
SPECS: dict[str, TableSpec[ShownFlows]] = {
    DIRECTIONS: FLOWS,
    **{spec.name: spec for spec in GROUPS},
    **dict.fromkeys(LABEL_KINDS, OWNED),
}
"""By kind of groups."""
OWNED_BY_DEFAULT = ("process", "limit")
_BOUND_WIDTHS = {"rate": 12, "packet_rate": 7, "bytes": 9}
_LIMITS_FROM = 100
"""Limits are on tables of so many cells or more."""
_LOCAL = 17
"""Usual width of local ends with addresses."""
_WIDTHS = ((160, {"in": 16, "out": 16, "rate": 8, "service": 14, "local": 8}),
           (100, {"in": 11, "out": 11, "rate": 7, "service": 9, "local": 8}))  # fmt: skip
"""Least widths of a table, and widths of columns of groups that are wider there."""


def widths_of(width: int) -> Mapping[str, int]:
    """Return the widths of columns in a table of `width` cells, if not the usual ones."""
    return next((widths for least, widths in _WIDTHS if width >= least), {})


def shown_columns(
    groups: GroupedFlows, width: int, *, traced: bool
) -> tuple[Column[ShownFlows], ...]:
    """Return the columns of groups in a table of `width` cells.

    Columns for VLANs, tunnels, lower bounds, RTTs and hosts appear if a row needs them, and columns
    of owners if they fit.
    """
    kind, is_grouped, view = groups.by.kind, groups.by.is_grouped, groups.view
    rows = groups.rows if is_grouped else view.rows
    has_ends = kind == "conversations" and groups.has_other_ends
    needed = [name for name in ("vlan", "tunnel", "tunnel_id") if rows[name].any()]
    needed += ["node"] * (view.node_of is not None)
    needed += ["interface"] * (kind == DIRECTIONS and has_interfaces(view.rows))
    needed += ["rtt"] * traced + ["totals"] * bool(rows["at_least"].any())
    if len(groups.table.owned.sockets):
        needed += OWNED_BY_DEFAULT[: 2 if width >= _LIMITS_FROM else 1]
    widths = dict(widths_of(width)) if is_grouped else {}
    if has_ends:
        # Where it does not fit, names of services have its room.
        widths = {"service": _SERVICE.width + 3} | widths | {"local": _LOCAL}
    if "totals" in needed:
        # Bounds have a sign.
        widths |= {"rate": max(7, widths.get("rate", 0))} if is_grouped else _BOUND_WIDTHS
    changes: dict[str, dict[str, Any]] = {name: {"width": widths[name]} for name in widths}
    for name in needed:
        changes.setdefault(name, {})["hidden"] = False
    if kind in LABEL_KINDS:
        changes["owner"] = {"title": LABEL_KINDS[kind].capitalize()}
    return columns(SPECS[kind], **changes)
