"""Columns of the grouped views of screen 3, and of their changes between two moments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.console.screens.flows.columns import (
    AGE,
    BYTES,
    FLAGS,
    IDLE,
    LINK,
    NODE,
    NUMBERS,
    PACKETS,
    PROTOCOL,
    RTT_COLUMN,
    TOTALS,
    VERSION,
    port,
    timed,
    whole,
)
from app.console.screens.flows.owners.columns import OWNERS, PROCESS, RTT
from app.console.tables.spec import TableSpec
from bpf.quantities import byte_size, si
from widgets.table.rows import Column

if TYPE_CHECKING:
    from app.console.screens.flows.group_part import ShownGroups

_Columns = tuple[Column["ShownGroups"], ...]
_LINE = 12
"""Cells of a sparkline."""

_RATES: _Columns = (
    Column("in", "In bit/s", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that arrive, over the last window or half second. The bar is the"
        " share of the largest.",
        cells=lambda part: part.bars("in")),
    Column("out", "Out", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that leave, and the share of the largest.",
        cells=lambda part: part.bars("out")),
    Column("rate", "Both", 6, "right", priority=1, unit="bps", larger_first=True,
        help="Bits per second of both directions: the sum of In and Out.",
        cells=lambda part: part.rates("rate")),
    Column("line", "1 min", _LINE, priority=2, drawn=True,
        help="Bits per second of the last minute, both directions, in cells of 5 s. Each row has"
        " its own scale, and the colour of the direction with more bytes.",
        cells=lambda part: part.lines()),
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
        cells=lambda part: part.rates("in_packet_rate")),
    Column("out_packet_rate", "Out pkt/s", 9, "right", priority=8, unit="pps", larger_first=True,
        help="Packets per second that leave.",
        cells=lambda part: part.rates("out_packet_rate")),
    Column("mean", "Avg 1 min", 9, "right", priority=9, hidden=True, unit="bps", larger_first=True,
        help="Mean bits per second of the last minute, both directions.", text=si),
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
        help="at least, and ≥ elsewhere: the full table had no row for a flow at times."),
)  # fmt: skip
_ADDRESS: _Columns = (
    Column("address", "Address", 15, priority=4, hidden=True,
        help="The address without name and port.",
        values=lambda part: part.hosts(), order=lambda part: part.address_ranks(part.end)),
    Column("name", "Name", 18, hidden=True, grows=True,
        help="Host name of the address; empty without a known name.",
        values=lambda part: part.names(), order=lambda part: part.address_ranks(part.end)),
)  # fmt: skip
_SERVICE: Column[ShownGroups] = Column(
    "service", "Service", 7,
    help="Name of the serving port, by probedeck's list and /etc/services; or protocol and port.",
    values=lambda part: part.services(), order=lambda part: part["service_port"])  # fmt: skip
_FLOWS: Column[ShownGroups] = Column(
    "flows", "Convs", 6, "right", priority=1, larger_first=True, text=whole,
    help="Conversations: both directions of two ends are one.")  # fmt: skip
CONVERSATIONS: TableSpec[ShownGroups] = TableSpec(
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
HOSTS: TableSpec[ShownGroups] = TableSpec(
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
SERVICES: TableSpec[ShownGroups] = TableSpec(
    "services",
    (
        replace(_SERVICE, width=12, grows=True),
        Column("port", "Port", 9, help="Protocol and serving port.",
            values=lambda part: part.serving_ports(), order=lambda part: part["service_port"]),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
NETWORKS: TableSpec[ShownGroups] = TableSpec(
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
OWNED: TableSpec[ShownGroups] = TableSpec(
    "owners",
    (
        Column("owner", "Owner", 22, grows=True,
            help="Process, unit, container, pod or user of the flows; or why nobody owns them.",
            values=lambda part: part.texts(), order=lambda part: part.text_ranks(str.casefold),
            tone=lambda part: part.label_tones()),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
"""Groups by owner, of all kinds."""
GROUPS = (CONVERSATIONS, HOSTS, SERVICES, NETWORKS, OWNED)
"""Tables of groups."""
GROUP_CHANGES: TableSpec[ShownGroups] = TableSpec(
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
