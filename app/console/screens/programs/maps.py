"""The maps of a probe, live: rows of the table beside the source."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from app.console.live.maps import Drawing, EntryView, MapView
from app.console.marks import Pin
from app.console.screens.programs.columns import MAPS
from app.console.tables.sorted_table import FewRows
from bpf.quantities import byte_size, percent
from widgets.sparkline import gauge, round_scale, sparkline
from widgets.table.rows import Pieces
from widgets.tones import Tone

_ROW = np.dtype(
    [
        ("id", "O"),
        ("depth", "i8"),
        *((name, "O") for name in ("map", "value", "number", "rate", "picture", "tone")),
    ]
)
"""A map, or one of its entries below it. `number` and `rate` are None without a number."""
_TREND = 24
"""Cells of a picture."""


class MapKey(NamedTuple):
    """Key of a row: a map, or one of its entries."""

    probe: str
    side: str
    map: str
    entry: str | None = None


def map_rows(
    views: Sequence[MapView], *, pinned: Container[Pin] = (), cells: int = _TREND
) -> FewRows:
    """Return a row for each map, and below it one for each entry; pictures have some `cells`."""
    two_sided = len({view.reading.side for view in views}) > 1
    found: list[tuple[object, ...]] = []
    for view in views:
        reading = view.reading
        key = MapKey(view.probe, reading.side, reading.name)
        name = f"{reading.name} {reading.side}" if two_sided else reading.name
        name = f"{name} *" if key[:3] in pinned else name
        tone = Tone.ACCENT if view.entries else Tone.MUTED
        found.append((key, 0, name, _size(view), None, None, _about(view), tone))
        scale = 1.0
        if view.drawing is Drawing.COUNTERS:
            rates = [rate for entry in view.entries for rate in entry.trend if not math.isnan(rate)]
            scale = round_scale(max(rates, default=0.0))
        found += [
            (key._replace(entry=entry.key), 1, *_entry(view, entry, scale, cells))
            for entry in view.entries
        ]
    return FewRows(MAPS, np.array(found, _ROW))


def _entry(view: MapView, entry: EntryView, scale: float, cells: int) -> tuple[object, ...]:
    """Return the fields of an entry from `map` on."""
    alone = view.drawing is Drawing.COUNTERS and len(view.entries) == 1
    name = f"  [{entry.key}]" if view.reading.table == "array" else f"  {entry.key}"
    picture: Pieces
    if view.drawing is Drawing.COUNTERS:
        rates = np.array(entry.trend[-cells:], "f8")
        none = np.zeros(len(rates), bool)
        picture = sparkline(rates, none, none, scale)
    else:
        picture = gauge(entry.share, cells)
    tone = Tone.NORMAL if entry.number or alone else Tone.MUTED
    number = None if math.isnan(entry.number) else entry.number
    return name, entry.value, number, entry.rate, picture, tone


def _size(view: MapView) -> str:
    """Return the entries of a map in use; of an array all, of a ring buffer its bytes."""
    reading = view.reading
    if reading.kind == "ringbuf":
        return byte_size(reading.max_entries)
    if reading.entries is None:
        return str(reading.max_entries)
    return f">= {reading.entries}" if reading.at_least else str(reading.entries)


def _about(view: MapView) -> str:
    """Return kind, fill and memory of a map, and the reason for missing rows."""
    reading = view.reading
    fill = "" if reading.fill is None else f"{percent(reading.fill)} full"
    window = "of the last window" if reading.cleared and reading.metrics else ""
    metrics = f"metric {', '.join(reading.metrics)}" if reading.metrics else ""
    entries = "bytes" if reading.kind == "ringbuf" else "entries"
    parts = (
        reading.kind,
        f"{reading.max_entries} {entries}",
        fill,
        byte_size(reading.memory),
        window,
        metrics,
        reading.note,
    )
    return ", ".join(filter(None, parts))
