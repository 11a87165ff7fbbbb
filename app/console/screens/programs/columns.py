"""Columns of screen 5: the list of probes, and the panels below the editor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.console.tables.spec import TableSpec, either
from bpf.quantities import MISSING, byte_size, si
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.tables.sorted_table import FewRows

_PLACE: Column[object] = Column("place", "Place", 16, help="Line and column of the source.")
_TEXT: Column[object] = Column(
    "text", "Text", 20, grows=True, help="Words of the compiler or the verifier, or of the event."
)

PROGRAMS: TableSpec[FewRows] = TableSpec(
    "programs",
    (
        Column("probe", "Probe", 14,
            help="Name of the probe; the flow probe, path tracing and the monitor are probes too.",
            tone=lambda rows: either(rows["tone"] == Tone.BAD, Tone.MUTED, Tone.ACCENT)),
        Column("side", "Direction", 9, help="Incoming or outgoing packets."),
        Column("state", "State", 10,
            help="Whether the program runs, has edits, or has failed.",
            tone=lambda rows: rows["tone"]),
        Column("interface", "Interface", 9, priority=2,
            help="Network interface whose packets the program sees."),
        Column("hook", "Hook", 15, priority=5,
            help="Hook in the kernel, and how the program is attached.", tone=Tone.MUTED),
        Column("generation", "Gen (before)", 12, "right", priority=1, larger_first=True,
            help="Number that grows with each swap; in brackets the generation of a roll-back.",
            cells=lambda rows: [
                f"{now} ({before})" if before else str(now)
                for now, before in zip(rows["generation"], rows["previous"], strict=True)]),
        Column("cost", "ns/packet", 9, "right", priority=3, unit="ns", larger_first=True,
            help="Time for a packet, if it was measured (m).",
            text=lambda ns: MISSING if math.isnan(ns) else f"{ns:.1f}",
            tone=lambda rows: either(rows["is_measured"], Tone.NORMAL, Tone.MUTED),
            written=lambda rows: [
                None if math.isnan(ns) else ns for ns in rows["cost"].tolist()]),
        Column("memory", "Memory", 9, "right", priority=4, unit="bytes", larger_first=True,
            help="Memory of the program's maps, with all their clones.",
            text=lambda size: MISSING if size is None else byte_size(size), tone=Tone.MUTED),
        Column("purpose", "Purpose", 24, priority=2, grows=True,
            help="The first sentence of the source; of an ended probe the reason.",
            tone=lambda rows: either(rows["tone"] == Tone.BAD, Tone.BAD, Tone.MUTED)),
        Column("metrics", "Metrics", 16, priority=6, grows=True,
            help="Tables that the probe exports.", tone=Tone.MUTED),
    ),
)  # fmt: skip

MAPS: TableSpec[FewRows] = TableSpec(
    "maps",
    (
        Column("map", "Map, key", 12, grows=True,
            help="A map of the probe (* if it is pinned), and the keys of its entries.",
            tone=lambda rows: rows["tone"]),
        Column("value", "Value", 10, "right", grows=True, larger_first=True,
            help="Value of the entry, summed over the CPUs; of a map how many entries it has.",
            tone=lambda rows: rows["tone"], order=lambda rows: rows["number"],
            written=lambda rows: rows["number"].tolist()),
        Column("rate", "Per s", 7, "right", priority=1, larger_first=True,
            help="Growth of the value in a second; of a window's map the value in a second.",
            text=lambda rate: "" if rate is None else MISSING if math.isnan(rate) else si(rate),
            tone=lambda rows: rows["tone"]),
        Column("picture", "Last minute, share", 9, priority=2, drawn=True,
            help="Of counters the rates of the last readings, else a bar beside the largest"
            " entry; of a map its kind, fill and memory.",
            cells=lambda rows: rows["picture"], tone="muted"),
    ),
)  # fmt: skip

_KIND: Column[object] = Column("kind", "Kind", 7, help="error, warning, note or info.")
PANELS: dict[str, TableSpec[object]] = {
    "problems": TableSpec("problems", (_PLACE, _KIND, _TEXT)),
    "log": TableSpec("log", (_PLACE, _TEXT)),
    "diff": TableSpec(
        "diff",
        (Column("text", "- what runs   + what is edited", 20, grows=True,
                    help="A line of the source, with its sign."),),
    ),
    "report": TableSpec(
        "report",
        (
            Column("side", "Direction", 9, help="Incoming or outgoing packets."),
            Column("map", "Map or metric", 16, help="A map of the source, or a metric."),
            Column("fate", "In the new program", 18,
                       help="Fate of the map's contents in a swap."),
            Column("reason", "Why", 18, grows=True, help="Why the contents are not kept."),
        ),
    ),
    "metrics": TableSpec(
        "metrics",
        (
            Column("metric", "Metric", 14, help="Name of the metric."),
            Column("key", "Key", 26, help="Key of the map's entry."),
            Column("value", "Value", 20, grows=True, help="Value of the last window."),
        ),
    ),
    "maps": TableSpec("maps", ()),
    "events": TableSpec(
        "events",
        (Column("time", "Time (UTC)", 12, help="Time of the event."), _KIND, _TEXT),
    ),
}  # fmt: skip
"""Tables of the panel; their columns are fixed."""
