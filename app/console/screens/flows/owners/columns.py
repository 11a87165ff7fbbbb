"""Columns of owners and of TCP health, for flows and for conversations."""

from __future__ import annotations

from typing import Any

from widgets.format import bit_rate, percent
from widgets.table.rows import Column

RTT = (
    "Round-trip time to the other end: the median of the last minute, if the path is traced and the"
    " flow's own packets tell it, else the kernel's smoothed one of this host's TCP connection."
)
_TEXTS = (
    ("process", "Process", 12, "Process that holds the connection's socket, and +n for n further"
     " ones. In parentheses: why nobody owns it."),
    ("pid", "PID", 7, "Number of the process on this host."),
    ("user", "User", 10, "User of the process."),
    ("unit", "Unit", 16, "Systemd's unit of the process."),
    ("container", "Container", 14, "Container of the process: the runtime's name, or its id."),
    ("pod", "Pod", 14, "Pod of the process: its name or uid."),
    ("owner_by", "Owner by", 8, "Source that named the owner: holds (a descriptor of the socket),"
     " opened, closed, listener (of the connection's port), or cgroup (only that is known)."),
)  # fmt: skip


def _text(name: str, title: str, width: int, about: str) -> Column[Any]:
    return Column(
        name, title, width, "right" if name == "pid" else "left", priority=3, hidden=True,
        help=about, larger_first=name == "pid",
        cell=lambda row: getattr(row.owner, name),
        tone=(lambda row: row.owner.process_tone) if name == "process" else "normal",
        numbers=lambda rows: rows.owner_ranks(name), values=lambda rows: rows.owner_texts(name),
    )  # fmt: skip


PROCESS: tuple[Column[Any], ...] = (_text(*_TEXTS[0]),)
OWNERS: tuple[Column[Any], ...] = (
    *(_text(*one) for one in _TEXTS[1:]),
    Column("limit", "Limited by", 11, priority=4, hidden=True,
        help="Limit of the TCP connection. For sent data: the application, the receiver's window,"
        " the send buffer, pacing, a queue, losses or the bandwidth of the network. For received"
        " data: the process reads slowly, segments are lost before this host, or the other end"
        " sends no faster.",
        cell=lambda row: row.owner.limit, tone=lambda row: row.owner.limit_tone,
        numbers=lambda rows: rows.owner_numbers("limit"),
        values=lambda rows: rows.owner_texts("limit")),
    Column("retrans", "Retr %", 6, "right", priority=6, hidden=True, unit="ratio",
        larger_first=True,
        help="Retransmitted segments of those that this host sent in the last 10 s or so.",
        cell=lambda row: percent(row.owner.retrans),
        numbers=lambda rows: rows.owner_numbers("retrans")),
    Column("cwnd", "Cwnd", 5, "right", priority=6, hidden=True, unit="segments",
        larger_first=True, help="Congestion window, in segments.",
        cell=lambda row: row.owner.cwnd, numbers=lambda rows: rows.owner_numbers("cwnd")),
    Column("delivery", "Delivery", 10, "right", priority=6, hidden=True, unit="bps",
        larger_first=True,
        help="Rate at which data of this host arrives at the other end, by its acknowledgements.",
        cell=lambda row: bit_rate(row.owner.delivery) if row.owner.delivery else "",
        numbers=lambda rows: rows.owner_numbers("delivery")),
)  # fmt: skip
"""`row` has a RowOwner as `owner`; `rows` are FlowRows or GroupRows."""
