"""Columns of the blocks that only screen 1 has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.console.screens.paths.columns import HOPS
from app.console.tables.spec import ColumnSpec, TableSpec

if TYPE_CHECKING:
    from app.console.screens.paths.lines import HopLine

TRAFFIC: TableSpec[object] = TableSpec(
    "traffic",
    (
        ColumnSpec("way", "Traffic", 7, help="Into this host, or out of it; below, the highest"
                   " rates of a window on the time line."),
        ColumnSpec("rate", "Rate", 11, "right",
                   help="Bits per second over the last window, or the last half second."),
        ColumnSpec("packet_rate", "Pkt/s", 6, "right",
                   help="Packets per second over the same time."),
        ColumnSpec("line", "", 14, grows=True, drawn=True,
                   help="A bar is two seconds, or one longer window; a hanging bar: packets are"
                   " missing there."),
    ),
)  # fmt: skip

WARNINGS: TableSpec[object] = TableSpec(
    "warnings",
    (
        ColumnSpec("time", "Warnings", 8, help="Time of the last such event, UTC; lost: losses"
                   " since the start."),
        ColumnSpec("source", "", 10, priority=1,
                   help="The probe or part of probedeck that reports it."),
        ColumnSpec("text", "", 30, grows=True,
                   help="Text of the event; for losses the packets by reason."),
        ColumnSpec("times", "", 7, "right", priority=2,
                   help="Number of such events, with other numbers in their texts."),
    ),
)  # fmt: skip

WORST_HOPS: TableSpec[HopLine] = TableSpec(
    "hops",
    (
        ColumnSpec("destination", "Worst hops", 10, help="Destination of the path.",
                   cell=lambda hop: hop.destination),
        *HOPS.columns,
    ),
)  # fmt: skip
