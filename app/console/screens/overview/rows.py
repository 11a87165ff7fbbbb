"""Health strip, columns and rows of the blocks of screen 1."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from app.console.host_names import Names
from app.console.live.overview_feed import Pulse, Pulses
from app.console.screens.overview.model import Rates, Warned
from app.console.screens.paths.columns import HOPS
from app.console.screens.paths.hop import Hop, PathKey
from app.console.screens.paths.lines import HopLine
from app.console.screens.paths.rows import (
    destination_text,
    hop_columns,
    host_text,
    scale_of,
    time_lines,
)
from app.console.tables.columns import columns, row
from app.console.tables.spec import ColumnSpec, TableSpec
from probes.snapshot import LossReason
from widgets.format import age, bit_rate, clock, duration, percent, poll_time, si
from widgets.sparkline import bars, round_scale, sparkline
from widgets.status import StatusItem
from widgets.table.columns import Column
from widgets.table.rows import Pieces, Row, Rows, RowSource, Tones
from widgets.tones import Tone

_BUSY, _OVERLOADED = 0.25, 0.75
"""Shares of an interval that make polling remarkable, or too long."""
_FULL = 0.5
"""Used share of a table that is remarkable."""
_DESTINATION_CELLS = (10, 22)
_WIDE_LINE = 34
_TONES = {"warning": Tone.WARN, "error": Tone.BAD}
LOST = "lost"
"""Key of the row of losses."""

WAITING_PATHS = "no router has answered yet: probes go out with packets to the destination"
NO_WARNINGS = "no loss, no warning, no error"
NO_FLOWS = "waiting for packets"

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


class Head:
    """At most `most` first rows of another source."""

    def __init__(self, source: RowSource, most: int) -> None:
        self._source = source
        self.rows = max(0, min(most, source.rows))

    def key(self, index: int) -> Hashable:
        return self._source.key(index)

    def index(self, key: Hashable) -> int | None:
        found = self._source.index(key)
        return found if found is not None and found < self.rows else None

    def cells(self, index: int) -> Sequence[str | Pieces]:
        return self._source.cells(index)

    def tones(self, index: int) -> Tones:
        return self._source.tones(index)


def health_items(
    pulses: Pulses, late: Sequence[Pulse], ended: dict[str, str], left_out: int, now: float
) -> list[StatusItem]:
    """Return the health strip: a summary, then each probe, those in trouble first.

    `ended` has the reasons of ended probes; `left_out` flows have no row; `now` is
    `time.monotonic()`.
    """
    probes = pulses.probes
    if not probes:
        return [StatusItem("no window yet", Tone.MUTED)]
    missing = {one.name for one in late} | set(ended)
    if missing:
        summary = StatusItem(f"{len(missing)} of {len(probes)} probes silent", Tone.BAD, badge=True)
    else:
        count = f"{len(probes)} probes measure" if len(probes) > 1 else "1 probe measures"
        summary = StatusItem(f"● {count}", Tone.GOOD)
    items = [summary, _lost_item(pulses)]
    if left_out:
        items.append(StatusItem(f"{si(left_out)} flows too many to show", Tone.WARN, 2))
    for priority, one in enumerate(probes.values(), 3):
        if one.name in ended:
            text = f"ended: {ended[one.name]}" if ended[one.name] else "ended"
            items.append(StatusItem(text, Tone.BAD, 1, one.name))
        elif one in late:
            text = f"no window for {age(now - one.came_at)}"
            items.append(StatusItem(text, Tone.WARN, 1, one.name))
        else:
            items.append(_probe_item(one, priority))
    return items


def _lost_item(pulses: Pulses) -> StatusItem:
    total = sum(one.lost.packets for one in pulses.probes.values())
    if not total:
        return StatusItem("nothing lost", Tone.GOOD, 2)
    now = sum(loss_now(one) for one in pulses.probes.values())
    text = f"{si(total)}, {si(now)} of them in the last window" if now else si(total)
    return StatusItem(text, Tone.BAD if now else Tone.WARN, 1, "lost")


def loss_now(pulse: Pulse) -> int:
    """Return the losses of the probe's last window."""
    return sum(loss.packets for reason, loss in pulse.last.items() if reason.is_loss)


def _probe_item(one: Pulse, priority: int) -> StatusItem:
    # Rounded unless remarkable: an idle console draws nothing.
    exact = f"{duration(one.poll)} / {duration(one.interval)}"
    text = exact if one.share > _BUSY else poll_time(one.poll, one.interval)
    if one.occupancy > 0:
        text += f", map {percent(one.occupancy)}"
    if one.generation > 1:
        text += f", gen {one.generation}"
    tone = Tone.BAD if one.share > _OVERLOADED else Tone.NORMAL
    if tone is Tone.NORMAL and (one.share > _BUSY or one.occupancy > _FULL):
        tone = Tone.WARN
    return StatusItem(text, tone, priority if tone is Tone.NORMAL else 1, one.name)


def traffic_columns(scale: float, seconds: float, cells: int) -> tuple[Column, ...]:
    """Return the columns of traffic; `scale` is in bits/s, `seconds` the length of a line."""
    span, top = age(seconds), bit_rate(scale)
    title = f"last {span}, up to {top}" if cells >= _WIDE_LINE else f"{span} ≤{top}"
    return columns(TRAFFIC, line={"title": title if seconds else ""})


def traffic_scale(ways: dict[str, Rates]) -> float:
    """Return the end of the scale of all lines, in bits per second."""
    return round_scale(max((float(np.nanmax(one.line, initial=0.0)) for one in ways.values()),
                           default=0.0))  # fmt: skip


def traffic_rows(ways: dict[str, Rates], scale: float, lines: int, *, old: bool) -> Rows:
    """Return the rows of each direction, `lines` each; `old` traffic is muted."""
    rows = []
    for way, one in ways.items():
        drawn = _tall(one, scale, lines, Tone.MUTED if old else Tone.ACCENT)
        plain = Tone.MUTED if old else Tone.NORMAL
        told = [(way, one.bits, one.packets), ("  peak", *one.peak)]
        for line, bars_of in enumerate(drawn):
            cells: tuple[str | Pieces, ...] = ("", "", "", bars_of)
            if line < len(told):
                name, bits, packets = told[line]
                cells = (name, bit_rate(bits), si(packets), bars_of)
            rows.append(Row((way, line), cells, Tone.MUTED if line else plain))
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
    found: Sequence[tuple[PathKey, Hop]], names: Names, cells: int
) -> tuple[Column, ...]:
    least, most = _DESTINATION_CELLS
    widths = [len(destination_text(choice.destination, names)) for choice, _ in found]
    hops = [hop for _, hop in found]
    hosts = [host_text(hop, names, choice) for choice, hop in found]
    width = max(least, min(most, max(widths, default=0)))
    return hop_columns(hosts, scale_of(hops), cells, WORST_HOPS, destination={"width": width})


def worst_rows(found: Sequence[tuple[PathKey, Hop]], names: Names) -> Rows:
    """Return a row for each hop, with its destination and number as key."""
    hops = [hop for _, hop in found]
    lines = time_lines(hops, scale_of(hops))
    return Rows.of(
        row(
            WORST_HOPS,
            (choice, hop.number),
            HopLine(
                hop,
                host_text(hop, names, choice),
                line,
                destination_text(choice.destination, names),
                choice.destination if hop.is_end else "",
            ),
        )
        for (choice, hop), line in zip(found, lines, strict=True)
    )


def warning_rows(pulses: Pulses, warned: Sequence[Warned]) -> Rows:
    """Return losses, with keys `(LOST, probe)`, then events, with themselves as keys."""
    rows = [_loss_row(one) for one in pulses.probes.values() if one.lost.packets]
    rows += [_warned_row(one) for one in warned]
    return Rows.of(rows)


def _loss_row(one: Pulse) -> Row:
    reasons = ", ".join(
        _loss_text(reason, loss.packets, one.last[reason].packets if reason in one.last else 0)
        for reason, loss in one.losses.items()
        if reason.is_loss and loss.packets
    )
    tone = Tone.BAD if loss_now(one) else Tone.WARN
    cells = (LOST, one.name, reasons, "")
    return Row((LOST, one.name), cells, (tone, Tone.MUTED, tone, Tone.MUTED))


def _loss_text(reason: LossReason, total: int, now: int) -> str:
    text = f"{si(total)} {reason.label}"
    return f"{text}, {si(now)} of them now" if now else text


def _warned_row(one: Warned) -> Row:
    event, tone = one.event, _TONES[one.event.severity]
    times = f"{one.times} x" if one.times > 1 else ""
    muted = Tone.MUTED
    return Row(
        event, (clock(event.utc_ns), event.source, event.text, times), (muted, muted, tone, muted)
    )
