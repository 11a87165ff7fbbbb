"""Columns of owners and of TCP health, for flows and for conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bpf.quantities import bit_rate, percent
from probes.tables.flow_columns import OWNER_COLUMNS, FlowColumn
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.flows.rows import ShownFlows

RTT = (
    "Round-trip time to the other end: the median of the last minute, if the path is traced and the"
    " flow's own packets tell it, else the kernel's smoothed one of this host's TCP connection."
)


def _text(of: FlowColumn) -> Column[ShownFlows]:
    name = of.name
    return Column(
        name, of.title, of.width, priority=of.priority, hidden=True, help=of.help,
        values=lambda part: part.shared(name), order=lambda part: part.ranks(name),
    )  # fmt: skip


def _words(name: str) -> Any:
    """Return a function that returns the words of a column of codes, `limit` or `by`."""

    def words(part: ShownFlows) -> list[str]:
        # Imported here: settings check names of columns without numpy.
        from probes.sockets.records import By, Limit

        labels = [one.label for one in (By if name == "by" else Limit)]
        return [labels[code] for code in part[name].tolist()]

    return words


_PROCESS, *_OTHERS = map(_text, OWNER_COLUMNS)
PROCESS: tuple[Column[ShownFlows], ...] = (
    replace(
        _PROCESS,
        priority=1,
        cells=lambda part: [row.process for row in part.owners],
        tone=lambda part: [
            Tone.NORMAL if row.owner is not None else Tone.MUTED for row in part.owners
        ],
    ),
)  # fmt: skip
OWNERS: tuple[Column[ShownFlows], ...] = (
    Column("pid", "PID", 7, "right", priority=3, hidden=True, larger_first=True,
        help="Number of the process on this host.", order=lambda part: part["pid"],
        values=lambda part: [str(number or "") for number in part["pid"].tolist()]),
    *_OTHERS,
    Column("owner_by", "Owner by", 8, priority=3, hidden=True,
        help="Source that named the owner: holds (a descriptor of the socket), opened, closed,"
        " listener (of the connection's port), or cgroup (only that is known).",
        values=_words("by"), order=lambda part: part["by"]),
    Column("limit", "Limited by", 11, priority=4, hidden=True,
        help="Limit of the TCP connection. For sent data: the application, the receiver's window,"
        " the send buffer, pacing, a queue, losses or the bandwidth of the network. For received"
        " data: the process reads slowly, segments are lost before this host, or the other end"
        " sends no faster.",
        values=_words("limit"), order=lambda part: part["limit"],
        tone=lambda part: [row.limit_tone for row in part.owners]),
    Column("retrans", "Retr %", 6, "right", priority=6, hidden=True, unit="ratio",
        larger_first=True, text=percent,
        help="Retransmitted segments of those that this host sent in the last 10 s or so."),
    Column("cwnd", "Cwnd", 5, "right", priority=6, hidden=True, unit="segments",
        larger_first=True, help="Congestion window, in segments.",
        text=lambda number: str(number or "")),
    Column("delivery", "Delivery", 10, "right", priority=6, hidden=True, unit="bps",
        larger_first=True, text=lambda rate: bit_rate(rate) if rate else "",
        help="Rate at which data of this host arrives at the other end, by its acknowledgements."),
)  # fmt: skip
