"""Columns of the grouped views of screen 3, and of their changes between two moments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.console.screens.flows.columns import CHANGES, NODE, SHARED, TOTALS, whole
from app.console.screens.flows.owners.columns import OWNERS, PROCESS, RTT
from app.console.tables.spec import TableSpec
from probes.tunnels import tunnel_name
from widgets.format import age, byte_size, clock, milliseconds, si
from widgets.table.rows import Column

if TYPE_CHECKING:
    from app.console.screens.flows.group import Group

_Columns = tuple[Column["Group"], ...]
_LINE = 12
"""Cells of a sparkline."""

_RATES: _Columns = (
    Column("in", "In bit/s", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that arrive, over the last window or half second. The bar is the"
        " share of the largest.",
        cell=lambda group: group.bar("in")),
    Column("out", "Out", 8, "right", unit="bps", larger_first=True,
        help="Bits per second that leave, and the share of the largest.",
        cell=lambda group: group.bar("out")),
    Column("rate", "Both", 6, "right", priority=1, unit="bps", larger_first=True,
        help="Bits per second of both directions: the sum of In and Out.",
        cell=lambda group: group.rate("rate")),
    Column("line", "1 min", _LINE, priority=2, drawn=True,
        help="Bits per second of the last minute, both directions, in cells of 5 s. Each row has"
        " its own scale, and the colour of the direction with more bytes.",
        cell=lambda group: group.line),
)  # fmt: skip
_TOTALS: _Columns = (
    Column("rtt", "RTT ms", 6, "right", priority=3, hidden=True, unit="ms", larger_first=True,
        help=f"{RTT} Of several, the longest.",
        cell=lambda group: milliseconds(group.number("rtt")),
        values=lambda rows: rows.seconds("rtt", 1e-3)),
    Column("idle", "Idle", 5, "right", priority=5, unit="s",
        help="Time since the last packet, from 3 s on.",
        cell=lambda group: age(group.number("idle") / 1e9) if group.is_quiet else "",
        values=lambda rows: rows.seconds("idle", 1e9)),
    Column("packets", "Packets", 8, "right", priority=6, larger_first=True,
        help="Packets of both directions since probedeck first saw a flow of the group.",
        cell=lambda group: group.bound + whole(group.number("packets"))),
    Column("bytes", "Bytes", 8, "right", priority=6, larger_first=True,
        help="Bytes since then, of frames with their headers.",
        cell=lambda group: group.bound + byte_size(group.number("bytes"))),
    Column("age", "Age", 6, "right", priority=7, unit="s", larger_first=True,
        help="Time since the first packet of a flow that is still listed.",
        cell=lambda group: group.bound + age(group.number("age") / 1e9),
        values=lambda rows: rows.seconds("age", 1e9)),
    Column("in_packet_rate", "In pkt/s", 8, "right", priority=8, unit="pps", larger_first=True,
        help="Packets per second that arrive.",
        cell=lambda group: group.rate("in_packet_rate")),
    Column("out_packet_rate", "Out pkt/s", 9, "right", priority=8, unit="pps",
        larger_first=True, help="Packets per second that leave.",
        cell=lambda group: group.rate("out_packet_rate")),
    Column("mean", "Avg 1 min", 9, "right", priority=9, hidden=True, unit="bps",
        larger_first=True, help="Mean bits per second of the last minute, both directions.",
        cell=lambda group: si(group.number("mean"))),
    Column("in_packets", "In packets", 10, "right", hidden=True, larger_first=True,
        help="Packets that arrived.",
        cell=lambda group: group.bound + whole(group.row["in_packets"])),
    Column("out_packets", "Out packets", 11, "right", hidden=True, larger_first=True,
        help="Packets that left.",
        cell=lambda group: group.bound + whole(group.row["out_packets"])),
    Column("in_bytes", "In bytes", 9, "right", hidden=True, larger_first=True,
        help="Bytes that arrived.",
        cell=lambda group: group.bound + byte_size(group.row["in_bytes"])),
    Column("out_bytes", "Out bytes", 9, "right", hidden=True, larger_first=True,
        help="Bytes that left.",
        cell=lambda group: group.bound + byte_size(group.row["out_bytes"])),
    Column("first", "First (UTC)", 11, hidden=True, larger_first=True,
        help="Time of the first packet.",
        cell=lambda group: clock(group.utc_ns("first_ns")),
        numbers=lambda rows: rows.groups.column("first_ns"),
        values=lambda rows: rows.times("first_ns")),
    Column("last", "Last (UTC)", 10, hidden=True, larger_first=True,
        help="Time of the last packet.",
        cell=lambda group: clock(group.utc_ns("last_ns")),
        numbers=lambda rows: rows.groups.column("last_ns"),
        values=lambda rows: rows.times("last_ns")),
    Column("totals", "Totals", 8, priority=2, hidden=True, larger_first=True,
        help="at least, and ≥ elsewhere: the full table had no row for a flow at times.",
        cell=lambda group: TOTALS[group.row["at_least"]],
        numbers=lambda rows: rows.groups.column("at_least"),
        values=lambda rows: rows.texts(lambda group: TOTALS[group.row["at_least"]])),
)  # fmt: skip
_ADDRESS: _Columns = (
    Column("address", "Address", 15, priority=4, hidden=True,
        help="The address without name and port.",
        cell=lambda group: group.address, numbers=lambda rows: rows.ranks(rows.end),
        values=lambda rows: rows.texts(lambda group: group.address)),
    Column("name", "Name", 18, hidden=True, grows=True,
        help="Host name of the address; empty without a known name.",
        cell=lambda group: group.name, numbers=lambda rows: rows.ranks(rows.end),
        values=lambda rows: rows.texts(lambda group: group.name)),
)  # fmt: skip
_SERVICE: Column[Group] = Column(
    "service", "Service", 7,
    help="Name of the serving port, by probedeck's list and /etc/services; or protocol and port.",
    cell=lambda group: group.service,
    numbers=lambda rows: rows.groups.column("service_port"),
    values=lambda rows: rows.texts(lambda group: group.service))  # fmt: skip
_FLOWS: Column[Group] = Column(
    "flows", "Convs", 6, "right", priority=1, larger_first=True,
    help="Conversations: both directions of two ends are one.",
    cell=lambda group: whole(group.row["flows"]))  # fmt: skip
CONVERSATIONS: TableSpec[Group] = TableSpec(
    "conversations",
    (
        Column("node", "Node", 8, hidden=True, help=NODE,
            cell=lambda group: group.node, numbers=lambda rows: rows.owner_ranks("node"),
            values=lambda rows: rows.owner_texts("node")),
        _SERVICE,
        Column("local", "Local", 6, priority=3,
            help="This host's end: address and port, or only the port if most conversations have"
            " this address.",
            cell=lambda group: group.local, numbers=lambda rows: rows.ranks("near"),
            values=lambda rows: rows.texts(lambda group: group.end("near"))),
        Column("remote", "Remote", 18, grows=True,
            help="The other end: host name, if known, or address; and the port.",
            cell=lambda group: group.remote, numbers=lambda rows: rows.ranks("far"),
            values=lambda rows: rows.texts(lambda group: group.end("far"))),
        *PROCESS, *_RATES, *OWNERS, *_TOTALS,
        Column("flags", "TCP flags", 9, priority=8,
            help="Every TCP flag seen, in both directions: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.",
            cell=lambda group: group.flags, numbers=lambda rows: rows.groups.column("tcp_flags"),
            values=lambda rows: rows.texts(lambda group: group.flags)),
        Column("protocol", "Proto", 5, priority=9,
            help="TCP, UDP, ICMP and so on; a number if the protocol has no usual name.",
            cell=lambda group: group.protocol,
            values=lambda rows: rows.texts(lambda group: group.protocol)),
        *_ADDRESS,
        Column("local_port", "Local port", 10, "right", hidden=True,
            help="Port of this host's end.", cell=lambda group: group.port_of("near"),
            numbers=lambda rows: rows.groups.column("near_port")),
        Column("remote_port", "Remote port", 11, "right", hidden=True,
            help="Port of the other end.", cell=lambda group: group.port_of("far"),
            numbers=lambda rows: rows.groups.column("far_port")),
        Column("version", "IP", 2, "right", hidden=True, larger_first=True,
            help="IP version: 4 or 6.", cell=lambda group: str(group.row["version"])),
        Column("vlan", "VLAN", 4, "right", priority=4, hidden=True, larger_first=True,
            help="Id of the outermost VLAN tag.",
            cell=lambda group: str(group.row["vlan"] or "")),
        Column("tunnel", "Tunnel", 6, priority=4, hidden=True, larger_first=True,
            help="Kind of the tunnel around the flow, with --tunnels: gre, ipip, vxlan, ...",
            cell=lambda group: tunnel_name(int(group.row["tunnel"])),
            values=lambda rows: rows.texts(lambda group: tunnel_name(int(group.row["tunnel"])))),
        Column("tunnel_id", "Tunnel id", 10, "right", priority=4, hidden=True,
            larger_first=True, help="Key of GRE, VNI of VXLAN and Geneve, TEID of GTP.",
            cell=lambda group: str(group.row["tunnel_id"]) if group.row["tunnel"] else ""),
    ),
    sort="rate",
)  # fmt: skip
HOSTS: TableSpec[Group] = TableSpec(
    "hosts",
    (
        Column("host", "Host", 19, grows=True,
            help="Host name, if known, or address: of the other ends, or of this host's ends in"
            " the view `hosts local`.",
            cell=lambda group: group.host, numbers=lambda rows: rows.ranks(rows.end),
            values=lambda rows: rows.texts(lambda group: group.address)),
        _FLOWS, *_RATES, *_TOTALS, *_ADDRESS,
    ),
    sort="rate",
)  # fmt: skip
SERVICES: TableSpec[Group] = TableSpec(
    "services",
    (
        replace(_SERVICE, width=12, grows=True),
        Column("port", "Port", 9, help="Protocol and serving port.",
            cell=lambda group: group.port, numbers=lambda rows: rows.groups.column("service_port"),
            values=lambda rows: rows.texts(lambda group: group.port)),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
NETWORKS: TableSpec[Group] = TableSpec(
    "networks",
    (
        Column("network", "Network", 18, grows=True,
            help="Prefix of the other ends, /24 and /64 if not chosen otherwise; or of this host's"
            " ends in the view `networks local`.",
            cell=lambda group: group.network, numbers=lambda rows: rows.ranks(rows.end),
            values=lambda rows: rows.texts(lambda group: group.network)),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
OWNED: TableSpec[Group] = TableSpec(
    "owners",
    (
        Column("owner", "Owner", 22, grows=True,
            help="Process, unit, container, pod or user of the flows; or why nobody owns them.",
            cell=lambda group: group.text, tone=lambda group: group.label_tone,
            numbers=lambda rows: rows.label_ranks,
            values=lambda rows: rows.texts(lambda group: group.text)),
        _FLOWS, *_RATES, *_TOTALS,
    ),
    sort="rate",
)  # fmt: skip
"""Groups by owner, of all kinds."""
GROUPS = (CONVERSATIONS, HOSTS, SERVICES, NETWORKS, OWNED)
"""Tables of groups; `group` is a Group, `rows` are GroupRows."""
GROUP_CHANGES: TableSpec[Any] = TableSpec(
    "group_changes",
    (
        Column("group", "Group", 30, grows=True,
            help="The conversation, host, service, network or owner.",
            cell=lambda group: group.text),
        *CHANGES.columns[SHARED:],
    ),
    sort="change",
)  # fmt: skip
"""Groups at two moments; `group` and `flow` are a GroupChange."""
