"""Columns and rows of the blocks of screen 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.console.host_names import Names
from app.console.live.frames import Frame
from app.console.screens.overview.model import Rates
from app.console.screens.overview.trouble import Trouble
from app.console.screens.paths.columns import HOPS
from app.console.screens.paths.hop import HOP, LITTLE, PathKey
from app.console.screens.paths.rows import (
    destination_text,
    hop_columns,
    hop_rows,
    host_text,
    scale_of,
)
from app.console.tables.sorted_table import FewRows
from app.console.tables.spec import TableSpec, columns
from bpf import arrays
from bpf.quantities import age, bit_rate, counted, percent, si
from widgets.sparkline import bars, round_scale, sparkline
from widgets.status import StatusItem
from widgets.table.columns import cell
from widgets.table.rows import Column, Pieces, Row, Rows
from widgets.tones import Tone, Way, rate_tone

_DESTINATION_CELLS = (10, 22)
_DIALOGS = {"output.list": "Outputs"}
"""Titles of dialogs by the commands that open them."""
_HUES: dict[Way, Tone] = {"in": Tone.IN, "out": Tone.OUT}
OTHERS = "others"
"""Key of the row of the hops that add little."""
CALM = "calm"
"""Key of the calm sentence."""

WAITING_PATHS = "No router has answered yet. Probes go out with packets to the destination."
NO_FLOWS = "Waiting for packets"

TRAFFIC: TableSpec[object] = TableSpec(
    "traffic",
    (
        Column("way", "Traffic", 7, help="Into this host, or out of it."),
        Column("rate", "Rate", 11, "right",
                   help="Bits per second over the last window, or the last half second."),
        Column("peak", "Peak", 11, "right", priority=1,
                   help="Highest rate of a window on the time line."),
        Column("packet_rate", "Pkt/s", 6, "right", priority=2,
                   help="Packets per second over the same time as Rate."),
        Column("line", "", 14, grows=True, drawn=True,
                   help="A bar is two seconds, or one longer window; a hanging bar: packets are"
                   " missing there. Each direction has a scale of its own."),
        Column("scale", "Scale", 11, "right", priority=1,
                   help="Rate of a full bar, for each direction."),
    ),
)  # fmt: skip

NOW: TableSpec[object] = TableSpec(
    "now",
    (
        Column("text", "Now", 40, grows=True, drawn=True, help="Trouble, the largest first:"
                   " ✕ an error, ▲ a warning, · a warning that is over since a few minutes."
                   " ● Nothing is wrong."),
        Column("screen", "", 10, "right", priority=1,
                   help="Enter opens this screen, at the row that the sentence is about."),
    ),
)  # fmt: skip

_ADDS = (
    "Delay that the way from the nearest earlier hop that answers adds to the mean round trip of"
    " the last minute, in milliseconds; Paths has the median's."
)
WORST_HOPS: TableSpec[FewRows] = TableSpec(
    "hops",
    (
        Column("destination", "Worst hops", 10, help="Destination of the path."),
        Column("node", "Node", 8, hidden=True, help="The host of the fleet that traces it,"
                   " where several hosts are chosen."),
        *(
            replace(column, help=_ADDS) if column.id == "adds" else column
            for column in HOPS.columns
            if column.id != "share"
        ),
    ),
)  # fmt: skip


def now_rows(found: Sequence[Trouble], calm: str, cells: int, screens: Mapping[str, str]) -> Rows:
    """Return a row for each sentence of `cells` cells; the sentence `calm` if nothing goes on.

    `screens` has the key and the title of each screen, by name.
    """
    rows = [_now_row(one, cells, screens.get(one.screen) or _DIALOGS[one.command]) for one in found]
    if not any(one.is_present for one in found):
        drawn = (("● ", Tone.GOOD), (cell(calm, cells - 2, "left"), Tone.NORMAL))
        rows.insert(0, Row(CALM, (drawn, screens["programs"]), Tone.MUTED))
    return Rows.of(rows)


def _now_row(one: Trouble, cells: int, screen: str) -> Row:
    sign = "✕" if one.tone is Tone.BAD else "▲" if one.is_present else "·"
    text = cell(one.sentence(cells - 2), cells - 2, "left")
    plain = Tone.NORMAL if one.is_present else Tone.MUTED
    drawn = ((f"{sign} ", one.tone), (text, plain))
    return Row(one.key, (drawn, screen), Tone.MUTED)


def traffic_columns(seconds: float) -> tuple[Column[Any], ...]:
    """Return the columns of traffic; `seconds` is the length of a time line."""
    return columns(TRAFFIC, line={"title": f"last {age(seconds)}" if seconds else ""})


def traffic_rows(ways: dict[Way, Rates], lines: int, *, old: bool) -> Rows:
    """Return the rows of each direction, `lines` each; `old` traffic is muted."""
    rows = []
    for way, one in ways.items():
        scale = round_scale(float(np.nanmax(one.line, initial=0.0)))
        drawn = _tall(one, scale, lines, Tone.MUTED if old else _HUES[way])
        rate = Tone.MUTED if old else rate_tone(way, one.bits)
        tones = (rate, rate, Tone.MUTED, Tone.MUTED, Tone.NORMAL, Tone.MUTED)
        for line, bars_of in enumerate(drawn):
            cells: tuple[str | Pieces, ...] = ("", "", "", "", bars_of, "")
            if not line:
                told = bit_rate(one.bits), bit_rate(one.peak[0]), si(one.packets)
                cells = (way, *told, bars_of, bit_rate(scale))
            rows.append(Row((way, line), cells, tones))
    return Rows.of(rows)


def _tall(one: Rates, scale: float, lines: int, tone: Tone) -> list[Pieces]:
    """Return bars over `lines` lines, the uppermost first; they hang if packets are missing.

    Zero has no bar: an idle console draws nothing.
    """
    step = scale / lines
    none = np.zeros(len(one.line), bool)
    some = np.where(one.line > 0, one.line, np.nan)
    drawn = [sparkline(np.minimum(some, step), one.lost, none, step, tone)]
    for base in step * np.arange(1, lines):
        above = np.where(one.line > base, one.line - base, np.nan)
        drawn.insert(0, bars(above, [tone] * len(above), step))
    return drawn


def worst_columns(
    choices: Sequence[PathKey], hops: arrays.Rows[HOP], names: Names, cells: int
) -> tuple[Column[Any], ...]:
    least, most = _DESTINATION_CELLS
    widths = [len(destination_text(choice.destination, names)) for choice in choices]
    hosts = [host_text(hop, names, choice) for choice, hop in zip(choices, hops, strict=True)]
    width = max(least, min(most, max(widths, default=0)))
    nodes = [choice.host for choice in choices]
    node = {"hidden": not any(nodes), "width": max(4, min(16, max(map(len, nodes), default=0)))}
    return hop_columns(
        hosts, scale_of(hops), cells, WORST_HOPS, destination={"width": width}, node=node
    )


def worst_rows(
    choices: Sequence[PathKey], hops: arrays.Rows[HOP], names: Names, others: int
) -> Rows:
    """Return a row for each hop, with its destination and number as key, and one for the `others`,
    which add little."""
    found = [(one, host_text(hop, names, one)) for one, hop in zip(choices, hops, strict=True)]
    shown = hop_rows(hops, found, spec=WORST_HOPS)
    for row, choice in zip(shown.content, choices, strict=True):
        row["id"] = choice, row["hop"].item()
        row["destination"] = destination_text(choice.destination, names)
        row["is_notable"] = False
    rows = [Row(shown.key(at), tuple(shown.cells(at)), shown.tones(at)) for at in range(len(hops))]
    if others and len(hops):
        said = {"host": counted(others, "other"), "adds": f"<{LITTLE * 1e3:g}"}
        cells = tuple(said.get(name, "") for name in WORST_HOPS.names)
        rows.append(Row(OTHERS, cells, Tone.MUTED))
    return Rows.of(rows)


def notes(frame: Frame, trouble: str) -> list[StatusItem]:
    """Return the items of the status strip: flows, their owned share, and `trouble` of polling."""
    found = []
    if flows := len(frame.flows.rows):
        found.append(StatusItem(counted(flows, "flow"), Tone.MUTED, priority=4))
    if (share := frame.owners.share) is not None:
        found.append(StatusItem(percent(share), Tone.MUTED, priority=3, label="owned"))
    if trouble:
        found.append(StatusItem(trouble, Tone.BAD, priority=1))
    return found
