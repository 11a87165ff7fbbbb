"""Screen 2 in words: a row for each path, and for each hop of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from app.console.host_names import Names
from app.console.screens.paths.model import CELL, ROUTE, Choice, Hop, Paths, flow_text, since
from probes.path.analysis import describe
from probes.path.traced import Traced
from widgets.format import MISSING, age, duration, milliseconds, percent
from widgets.sparkline import round_scale, sparklines
from widgets.table.columns import Column
from widgets.table.rows import Pieces, Row, Rows
from widgets.tones import Tone

PATH_COLUMNS = (
    Column("path", "Destination or flow", 24, grows=True),
    Column("hops", "Routers", 7, "right", priority=2),
    Column("rtt", "RTT ms", 7, "right", unit="ms"),
    Column("loss", "Loss", 6, "right"),
    Column("state", "State", 22, priority=1, grows=True),
)
_HOST_CELLS = (12, 40)
"""The least and the most of the column of hosts, which is as wide as its widest host."""
_LINE_CELLS = 14
_WIDE_LINE = 30
_RECENT_NS = 60_000_000_000
"""A change is told of in the list of paths for this long."""
NO_ANSWER = "no answer"
NO_PROBE = "no probe yet"


def hop_columns(hosts: Sequence[str], scale: float, cells: int) -> tuple[Column, ...]:
    """The columns of a table of hops; `scale` is in seconds and of all time lines."""
    least, most = _HOST_CELLS
    host = max(least, min(most, max(map(len, hosts), default=0)))
    span, top = age(cells * CELL), duration(scale)
    title = f"last {span}, up to {top}" if cells >= _WIDE_LINE else f"{span} ≤{top}"
    title = title if hosts else ""
    return (
        Column("hop", "Hop", 3, "right"),
        Column("host", "Host", host),
        Column("loss", "Loss", 6, "right"),
        Column("last", "Last ms", 7, "right", priority=3, unit="ms"),
        Column("median", "Median", 6, "right", priority=1, unit="ms"),
        Column("p95", "p95", 6, "right", priority=2, unit="ms"),
        Column("jitter", "Jitter", 6, "right", priority=4, unit="ms"),
        Column("count", "Recv/sent", 11, "right", priority=5, unit="received"),
        Column("address", "Address", 15, hidden=True),
        Column("sent", "Sent", 6, "right", hidden=True),
        Column("line", title, _LINE_CELLS, grows=True),
    )


def scale_of(hops: Sequence[Hop]) -> float:
    """The end of the scale of all time lines, in seconds."""
    values = [hop.means[np.isfinite(hop.means)] for hop in hops]
    return round_scale(float(np.concatenate(values).max(initial=0)) if values else 0.0)


def host_text(hop: Hop, names: Names) -> str:
    """Who answers, and how many others do at times: `10.94.3.2 +1`."""
    if not hop.numbers.sent:
        return NO_PROBE
    if not hop.numbers.answered:
        return NO_ANSWER
    address = hop.routers[0].address
    others = f" +{len(hop.routers) - 1}" if len(hop.routers) > 1 else ""
    return (names.name(address) or address) + others


def hop_rows(
    hops: Sequence[Hop], hosts: Sequence[str], scale: float, choice: Choice, end: str,
    distance: str,
) -> Rows:  # fmt: skip
    """A row for each hop, whose key is its number, and one for the destination, called `end`.

    That one's key is 0; `distance` is what is known of it, empty for nothing.
    """
    lines = time_lines(hops, scale)
    rows = [hop_row(*each) for each in zip(hops, hosts, lines, strict=True)]
    arrived = bool(hops) and any(r.address == choice.destination for r in hops[-1].routers)
    if not arrived:
        number = str(len(hops) + 1) if distance else "?"
        blank = ("",) * 6
        text = distance or "not known yet"
        line: Pieces = ((text, Tone.MUTED),)
        tones = (Tone.MUTED, Tone.ACCENT, *[Tone.MUTED] * 9)
        destination = choice.destination
        values = (None, end, *[None] * 6, destination, None, None)
        rows.append(Row(0, (number, end, *blank, destination, "", line), tones, values))
    return Rows.of(rows)


def time_lines(hops: Sequence[Hop], scale: float) -> list[Pieces]:
    """The time line of each hop; `scale` is in seconds and of them all."""
    if not hops:
        return []
    values, lost, marked = (
        np.array([getattr(hop, name) for hop in hops]) for name in ("means", "lost", "marked")
    )
    tones, forgiven = [_line_tone(hop) for hop in hops], [hop.forgiven for hop in hops]
    return sparklines(values, lost, marked, scale, tones, forgiven)


def _line_tone(hop: Hop) -> Tone:
    """That of its time line."""
    return Tone.WARN if hop.queue_ns else Tone.MUTED if hop.forgiven else Tone.ACCENT


def hop_row(hop: Hop, host: str, line: Pieces) -> Row:
    """A hop's row, whose key is its number; `line` is its time line."""
    numbers = hop.numbers
    silent = not numbers.answered
    muted, normal = Tone.MUTED, Tone.NORMAL
    loss = muted if hop.forgiven or not numbers.loss > 0 else Tone.BAD
    value = Tone.WARN if hop.queue_ns else muted if silent else normal
    name = muted if silent else Tone.WARN if hop.queue_ns else normal
    address = hop.routers[0].address if hop.routers else ""
    cells = (
        str(hop.number),
        host,
        percent(numbers.loss),
        milliseconds(hop.last) if not silent else MISSING,
        milliseconds(numbers.median),
        milliseconds(numbers.p95),
        milliseconds(numbers.jitter),
        f"{numbers.answered}/{numbers.sent}",
        address,
        str(numbers.sent),
        line,
    )
    times = (hop.last, numbers.median, numbers.p95, numbers.jitter)
    values = (
        hop.number,
        None if silent else host,
        numbers.loss,
        *map(in_ms, times),
        numbers.answered,
        address or None,
        numbers.sent,
        None,
    )
    tones = (muted, name, loss, normal, value, value, muted, muted, muted, muted, _line_tone(hop))
    return Row(hop.number, cells, tones, values)


def in_ms(seconds: float) -> float | None:
    """Milliseconds with six decimals; None for what is not known."""
    return round(seconds * 1e9) / 1e6 if math.isfinite(seconds) else None


def path_rows(paths: Paths, choices: Iterable[Choice], names: Names) -> Rows:
    """A row for each of `choices`, which are of `paths`."""
    return Rows.of(_path_row(paths, choice, names) for choice in choices)


def _path_row(paths: Paths, choice: Choice, names: Names) -> Row:
    summary = paths.summary(choice)
    flows = paths.flows(choice.destination)
    if choice.flow is not None:
        title = f"  {flow_text(choice.flow)}"
    else:
        title = destination_text(choice.destination, names)
        if len(flows) == 1:
            title += f"  {flow_text(flows[0])}"
        elif flows:
            title += f"  {len(flows)} flows"
    state, tone = path_state(paths, choice)
    stopped = summary.ended or paths.running(choice.destination) is None
    plain = Tone.MUTED if stopped else Tone.NORMAL
    name = Tone.MUTED if stopped else Tone.ACCENT if choice.flow is None else Tone.NORMAL
    cells = (
        title,
        str(summary.length or "?"),
        milliseconds(summary.rtt),
        percent(summary.loss),
        state,
    )
    values = (title.strip(), summary.length or None, in_ms(summary.rtt), summary.loss, state)
    tones = (name, plain, plain, Tone.BAD if summary.loss > 0 else plain, tone)
    return Row(choice, cells, tones, values, below=choice.flow is not None)


def path_state(paths: Paths, choice: Choice) -> tuple[str, Tone]:
    """What is to be said first of a path; empty for nothing."""
    summary = paths.summary(choice)
    if paths.running(choice.destination) is None:
        return "tracing has ended", Tone.MUTED
    hop, queue_ns = summary.queue
    if queue_ns:
        return f"hop {hop} queues {duration(queue_ns / 1e9)}", Tone.WARN
    changes = paths.changes(choice)
    routes = changes[np.isin(changes["kind"], ROUTE)] if len(changes) else changes
    if len(routes):
        ago = paths.view.now_ns - int(since(routes)[-1])
        if ago < _RECENT_NS:
            return f"another way {age(ago / 1e9)} ago, hop {routes['hop'][-1]}", Tone.WARN
    if summary.ended:
        return "no packets any more", Tone.MUTED
    if not paths.flows(choice.destination):
        return "waits for packets to it", Tone.MUTED
    return "", Tone.MUTED


def change_text(row: np.void) -> str:
    """What a row of dtype PATH tells, without where: `answered by 10.0.4.2, was 10.0.3.2`."""
    return describe(row)[1].partition(": ")[2]


def destination_text(destination: str, names: Names) -> str:
    """Its name where it is known, or its address."""
    return names.name(destination) or destination


def distance_text(running: Traced | None) -> str:
    """How far a destination is; empty where that is not known."""
    if running is None or not running.length:
        return ""
    routers = "1 router" if running.length == 1 else f"{running.length} routers"
    return f"{routers} away"
