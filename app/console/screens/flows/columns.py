"""Columns of screen 3: flows, and their changes between two moments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.console.screens.flows.owners.columns import OWNERS, PROCESS, RTT
from app.console.tables.spec import TableSpec
from probes.tunnels import TUNNELS, tunnel_name
from widgets.format import age, bit_rate, byte_size, clock, milliseconds, si, signed
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.flows.flow import Change, Flow

WAYS = ("in", "out")
"""Words for values of FlowDirection."""
TOTALS = ("exact", "at least")


def whole(value: float) -> str:
    """Return a count, without decimals below a thousand."""
    return f"{value:.0f}" if value < 999.5 else si(value)


NODE = "The host of the fleet that sees the flow, where several hosts are chosen."
FLOWS: TableSpec[Flow] = TableSpec(
    "flows",
    (
        Column("direction", "Dir", 3, priority=1, help="Into this host, or out of it.",
            cell=lambda flow: WAYS[flow.row["direction"]],
            values=lambda flows: flows.words("direction", WAYS)),
        Column("protocol", "Proto", 5, priority=1,
            help="TCP, UDP, ICMP and so on; a number if the protocol has no usual name.",
            cell=lambda flow: flow.protocol_name, values=lambda flows: flows.protocol_names),
        Column("source", "Source", 21, grows=True,
            help="Address and port that the packets come from.",
            cell=lambda flow: flow.endpoint("source"),
            numbers=lambda flows: flows.address_ranks("source"),
            values=lambda flows: flows.endpoints("source")),
        Column("destination", "Destination", 21, grows=True,
            help="Address and port that the packets go to; for ICMP the message's type.",
            cell=lambda flow: flow.endpoint("destination"),
            numbers=lambda flows: flows.address_ranks("destination"),
            values=lambda flows: flows.endpoints("destination")),
        Column("node", "Node", 8, hidden=True, help=NODE, cell=lambda flow: flow.node,
            numbers=lambda flows: flows.owner_ranks("node"),
            values=lambda flows: flows.owner_texts("node")),
        *PROCESS,
        Column("rate", "Rate", 11, "right", unit="bps", larger_first=True,
            help="Bits per second over the last window, or the last half second.",
            cell=lambda flow: bit_rate(flow.row["bit_rate"]),
            numbers=lambda flows: flows.field("bit_rate")),
        Column("packet_rate", "Pkt/s", 6, "right", priority=2, unit="pps", larger_first=True,
            help="Packets per second over the same time.",
            cell=lambda flow: whole(flow.row["packet_rate"])),
        Column("packets", "Packets", 7, "right", priority=4, larger_first=True,
            help="Packets since probedeck first saw the flow.",
            cell=lambda flow: flow.bound + whole(flow.row["packets"])),
        Column("bytes", "Bytes", 8, "right", priority=3, larger_first=True,
            help="Bytes since then, of IP packets with their headers.",
            cell=lambda flow: flow.bound + byte_size(flow.row["bytes"])),
        Column("age", "Age", 6, "right", priority=2, unit="s", larger_first=True,
            help="Time since the first packet.",
            cell=lambda flow: flow.bound + age(flow.ns_since("first_ns") / 1e9),
            values=lambda flows: flows.seconds("age", 1e9)),
        *OWNERS,
        Column("rtt", "RTT ms", 6, "right", priority=5, hidden=True, unit="ms",
            larger_first=True, help=RTT,
            cell=lambda flow: milliseconds(flow.rtt),
            values=lambda flows: flows.seconds("rtt", 1e-3)),
        Column("idle", "Idle", 5, "right", priority=6, unit="s",
            help="Time since the last packet, from 3 s on.",
            cell=lambda flow: age(flow.ns_since("last_ns") / 1e9) if flow.is_quiet else "",
            values=lambda flows: flows.seconds("idle", 1e9)),
        Column("flags", "TCP flags", 9, priority=7,
            help="Every TCP flag seen: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.",
            cell=lambda flow: flow.flags, numbers=lambda flows: flows.field("tcp_flags")),
        Column("version", "IP", 2, "right", hidden=True, larger_first=True,
            help="IP version: 4 or 6.",
            cell=lambda flow: str(flow.row["version"])),
        Column("source_port", "Src port", 8, "right", hidden=True, help="Port of the source.",
            cell=lambda flow: flow.port("source")),
        Column("destination_port", "Dst port", 8, "right", hidden=True,
            help="Port of the destination.",
            cell=lambda flow: flow.port("destination")),
        Column("size", "Size", 6, "right", hidden=True, unit="bytes", larger_first=True,
            help="Mean size of a packet.",
            cell=lambda flow: whole(flow.row["bytes"] / max(1, int(flow.row["packets"]))),
            numbers=lambda flows: flows.field("bytes") / flows.field("packets").clip(1)),
        Column("first", "First (UTC)", 11, hidden=True, larger_first=True,
            help="Time of the first packet.",
            cell=lambda flow: clock(flow.utc_ns("first_ns")),
            numbers=lambda flows: flows.field("first_ns"),
            values=lambda flows: flows.times("first_ns")),
        Column("last", "Last (UTC)", 10, hidden=True, larger_first=True,
            help="Time of the last packet.",
            cell=lambda flow: clock(flow.utc_ns("last_ns")),
            numbers=lambda flows: flows.field("last_ns"),
            values=lambda flows: flows.times("last_ns")),
        Column("vlan", "VLAN", 4, "right", priority=5, hidden=True, larger_first=True,
            help="Id of the outermost VLAN tag.",
            cell=lambda flow: str(flow.row["vlan"] or "")),
        Column("tunnel", "Tunnel", 6, priority=5, hidden=True, larger_first=True,
            help="Kind of the tunnel around the flow, with --tunnels: gre, ipip, vxlan, ...",
            cell=lambda flow: tunnel_name(int(flow.row["tunnel"])),
            values=lambda flows: flows.words("tunnel", ("", *TUNNELS))),
        Column("tunnel_id", "Tunnel id", 10, "right", priority=5, hidden=True,
            larger_first=True, help="Key of GRE, VNI of VXLAN and Geneve, TEID of GTP.",
            cell=lambda flow: str(flow.row["tunnel_id"]) if flow.row["tunnel"] else ""),
        Column("tos", "TOS", 3, "right", hidden=True, larger_first=True,
            help="Type of service, or traffic class, of the first packet.",
            cell=lambda flow: str(flow.row["tos"])),
        Column("totals", "Totals", 8, priority=1, hidden=True, larger_first=True,
            help="at least, and ≥ elsewhere: the full table had no row for the flow at times.",
            cell=lambda flow: TOTALS[flow.row["at_least"]],
            numbers=lambda flows: flows.field("at_least"),
            values=lambda flows: flows.words("at_least", TOTALS)),
    ),
    sort="rate",
)  # fmt: skip
"""Flows of the table; `flow` is a Flow, `flows` are FlowRows."""

SHARED = 4
"""Columns of FLOWS that CHANGES begins with."""
CHANGES: TableSpec[Change] = TableSpec(
    "changes",
    (
        *(replace(column, priority=2 * column.priority) for column in FLOWS.columns[:SHARED]),
        Column("change", "Change", 12, "right", unit="bps", larger_first=True,
            help="Bits per second more, or fewer, than at the earlier moment.",
            cell=lambda flow: signed(flow.change, bit_rate), tone=Tone.ACCENT),
        Column("rate", "Rate", 11, "right", priority=1, unit="bps", larger_first=True,
            help="Bits per second at the later moment.",
            cell=lambda flow: bit_rate(flow.rate)),
        Column("before", "Before", 11, "right", priority=3, unit="bps", larger_first=True,
            help="Bits per second at the earlier moment.",
            cell=lambda flow: bit_rate(flow.before), tone=Tone.MUTED),
        Column("more", "Packets", 8, "right", priority=4, unit="packets", larger_first=True,
            help="Packets between the two moments; unknown if the flow is gone.",
            cell=lambda flow: signed(flow.more, si)),
        Column("state", "Flow", 4, priority=1, larger_first=True,
            help="new: no packet before the later moment. gone: no packet for a minute.",
            cell=lambda flow: flow.state,
            tone=lambda flow: Tone.GOOD if flow.state == "new" else Tone.NORMAL),
    ),
    sort="change",
)  # fmt: skip
"""Flows at two moments; `flow` is a Change."""
