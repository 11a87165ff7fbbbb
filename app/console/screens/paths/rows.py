"""Rows of screen 2: paths, and the hops of one."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from socket import IPPROTO_UDP
from typing import Any

import numpy as np
from rich.cells import cell_len

from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.screens.paths.columns import DESTINATIONS, HOP_CHANGES, HOPS
from app.console.screens.paths.hop import Hop, PathKey, flow_text, hop_text, since
from app.console.screens.paths.hosts import PathHosts
from app.console.screens.paths.lines import HopChange, HopLine, ListedPath, PathLine
from app.console.screens.paths.model import CELL, ROUTE, Paths
from app.console.screens.paths.numbers import NONE, Numbers
from app.console.tables.columns import columns, row
from app.console.tables.spec import TableSpec
from app.run.unprobed import reasons
from probes.filter import Filter
from probes.path.events.words import flap_text, going_on, loop_text
from probes.path.options import TracedFlow
from probes.path.records import PathRowKind
from probes.path.traced import Traced
from widgets.format import age, counted, duration
from widgets.sparkline import round_scale, sparklines
from widgets.status import StatusItem
from widgets.table.rows import Column, Pieces, Rows
from widgets.tones import Tone

_HOST_CELLS = (12, 40)
"""Least and most width of the column of hosts."""
_PATH_CELLS, _NODE_CELLS = (24, 60), (4, 16)
_WIDE_LINE = 24
_RECENT_NS = 60_000_000_000
"""The list of paths shows a change for this long."""
NO_ANSWER = "no answer"
NO_PROBE = "no probe yet"


def hop_columns(
    hosts: Sequence[str], scale: float, cells: int, spec: TableSpec[Any] = HOPS,
    **changes: Mapping[str, Any],
) -> tuple[Column[Any], ...]:  # fmt: skip
    """Return the columns of hops; the scale of time lines ends at `scale` seconds.

    `spec` has the columns of HOPS and others, which `changes` are for.
    """
    least, most = _HOST_CELLS
    host = max(least, min(most, max(map(len, hosts), default=0)))
    span, top = age(cells * CELL), duration(scale)
    title = f"last {span}, up to {top}" if cells >= _WIDE_LINE else f"{span} ≤{top}"
    line = {"title": title if hosts else ""}
    return columns(spec, host={"width": host}, line=line, **changes)


def scale_of(hops: Sequence[Hop]) -> float:
    """Return the end of the scale of all time lines, in seconds."""
    values = [hop.means[np.isfinite(hop.means)] for hop in hops]
    return round_scale(float(np.concatenate(values).max(initial=0)) if values else 0.0)


def host_text(hop: Hop, names: Names, choice: PathKey) -> str:
    """Return the destination, or the router that answers and the number of others:
    `10.94.3.2 +1`."""
    if hop.is_end:
        return destination_text(choice.destination, names)
    if not hop.numbers.sent:
        return NO_PROBE
    if not hop.numbers.answered:
        return NO_ANSWER
    address = hop.routers[0].address
    others = f" +{len(hop.routers) - 1}" if len(hop.routers) > 1 else ""
    return (names.name(address) or address) + others


def hop_rows(hops: Sequence[Hop], hosts: Sequence[str], scale: float, end: str, note: str) -> Rows:
    """Return a row for each hop, with its number as key.

    `end` is the destination's address, `note` stands in the place of its time line if nothing tells
    its round trip.
    """
    rows = []
    shares = shares_of(hops)
    for hop, host, drawn in zip(hops, hosts, time_lines(hops, scale), strict=True):
        share = shares[hop.number]
        line = HopLine(hop, host, drawn, end=end if hop.is_end else "", share=share)
        if line.is_unknown_end:
            line = replace(line, line=((note, Tone.MUTED),))
        rows.append(row(HOPS, hop.number, line))
    return Rows.of(rows)


def shares_of(hops: Sequence[Hop]) -> dict[int, float]:
    """Return the share of the round trip that each hop of a path adds, by its number."""
    total = sum(hop.adds for hop in hops if math.isfinite(hop.adds))
    return {hop.number: hop.adds / total if total else math.nan for hop in hops}


def end_note(paths: Paths, choice: PathKey) -> str:
    """Return in words why no round trip to the destination is known."""
    flows = [choice.flow] if choice.flow else paths.flows(choice.destination)
    if flows and all(flow.protocol == IPPROTO_UDP for flow in flows):
        one = len(flows) == 1
        return f"UDP {'flow' if one else 'flows'}: nothing in {'it' if one else 'them'} tells" + (
            f" {'its' if one else 'their'} round trip"
        )
    return "no round trip of the flow in the last minute"


def path_notes(paths: Paths, choice: PathKey) -> list[str]:
    """Return what is to be known of the whole path, a sentence each."""
    running = paths.running(choice.destination)
    if running is None:
        return []
    notes = [*running.notes]
    if running.packets:
        notes += reasons([running], "")[running.destination]
    if running.path_mtu:
        notes.append(str(running.path_mtu))
    if running.foreign:
        notes.append(f"another tracer is active: {running.foreign} probes of it were left alone")
    if running.unmatched:
        notes.append(f"{counted(running.unmatched, 'answer')} matched no probe")
    return notes


def hop_changes(before: Sequence[Hop], after: Sequence[Hop], choice: PathKey, names: Names) -> Rows:
    """Return a row for each hop of a path at one of two moments, with its number as key."""
    old, new = ({hop.number: hop for hop in hops} for hops in (before, after))

    def at(hop: Hop | None) -> tuple[Numbers, str]:
        return (NONE, "") if hop is None else (hop.numbers, host_text(hop, names, choice))

    rows = []
    for number in sorted(old.keys() | new.keys()):
        (was, host_before), (now, host_now) = at(old.get(number)), at(new.get(number))
        ttl = (new.get(number) or old[number]).ttl
        change = HopChange(number, ttl, was, now, host_before, host_now)
        rows.append(row(HOP_CHANGES, number, change))
    return Rows.of(rows)


def time_lines(hops: Sequence[Hop], scale: float) -> list[Pieces]:
    """Return the time line of each hop; all have the scale `scale`, in seconds."""
    if not hops:
        return []
    values, lost, marked = (
        np.array([getattr(hop, name) for hop in hops]) for name in ("means", "lost", "marked")
    )
    tones = [HopLine(hop, "", ()).line_tone for hop in hops]
    return sparklines(values, lost, marked, scale, tones, [hop.forgiven for hop in hops])


def note_items(
    hosts: PathHosts, shown: Sequence[PathKey], passing: Filter, chosen: PathKey | None
) -> list[StatusItem]:
    """Return the notes about the list; `chosen` is the path of a list that is not visible."""
    count, seen = (len({key.destination for key in keys}) for keys in (hosts.choices, shown))
    text = f"{seen} of " if passing else ""
    notes = [StatusItem(text + counted(count, "destination"), Tone.MUTED, priority=4)]
    if passing.text:
        notes.append(StatusItem(passing.text, Tone.ACCENT, 3, label="filter"))
    if chosen is not None:
        notes += [StatusItem(chosen.host, Tone.ACCENT, priority=2)] if chosen.host else []
        text, tone = path_state(hosts.of(chosen), chosen)
        notes += [StatusItem(text, tone, priority=2)] if text else []
    return notes


def path_columns(rows: Rows, hosts: Sequence[str]) -> tuple[Column[Any], ...]:
    """Return the columns of paths; names and numbers stand side by side.

    `hosts` are the names of several hosts.
    """
    least, most = _PATH_CELLS
    names = (str(rows.cells(index)[0]) for index in range(rows.rows))
    width = max(least, min(most, max(map(cell_len, names), default=0)))
    least, most = _NODE_CELLS
    node = max(least, min(most, max(map(cell_len, hosts), default=0)))
    return columns(DESTINATIONS, path={"width": width}, node={"hidden": not hosts, "width": node})


def path_rows(hosts: PathHosts, listed: Iterable[ListedPath], names: Names) -> Rows:
    """Return a row for each of `listed`, which are of `hosts`."""
    return Rows.of(
        row(DESTINATIONS, one.key, _path_line(hosts.of(one.key), one, names), below=one.depth)
        for one in listed
    )


def _path_line(paths: Paths, listed: ListedPath, names: Names) -> PathLine:
    choice = listed.key
    summary = paths.summary(choice)
    flows = paths.flows(choice.destination)
    folds = ""
    if listed.folds:
        folds = f"{'▾' if listed.is_open else '▸'} {counted(listed.folds, 'flow')}"
    if choice.flow is not None:
        title = "  " * listed.depth + (folds or flow_text(choice.flow))
    else:
        title = destination_text(choice.destination, names)
        if len(flows) == 1:
            title += f"  {flow_text(flows[0])}"
        elif flows:
            title += f"  {folds or counted(len(flows), 'flow')}"
    title += f", {listed.about}" if listed.about else ""
    stopped = summary.ended or paths.running(choice.destination) is None
    plain = Tone.MUTED if stopped else Tone.NORMAL
    name = Tone.MUTED if stopped else Tone.ACCENT if choice.flow is None else Tone.NORMAL
    return PathLine(title, summary, path_state(paths, choice), plain, name, choice.host)


def path_state(paths: Paths, choice: PathKey) -> tuple[str, Tone]:
    """Return the most urgent fact of a path with its tone, or an empty text."""
    summary = paths.summary(choice)
    if paths.running(choice.destination) is None:
        return "tracing has ended", Tone.MUTED
    hop, queue_ns = summary.queue
    if queue_ns:
        return f"{duration(queue_ns / 1e9)} of queueing at {hop_text(hop)}", Tone.WARN
    changes = paths.changes(choice)
    for kind, words in ((PathRowKind.LOOP, loop_text), (PathRowKind.FLAP, flap_text)):
        lasting = going_on(changes, kind)
        if lasting is not None and not summary.ended:
            return words(lasting), Tone.WARN
    routes = changes[np.isin(changes["kind"], ROUTE)] if len(changes) else changes
    if len(routes):
        ago = paths.view.now_ns - int(since(routes)[-1])
        if ago < _RECENT_NS:
            hop = int(routes["hop"][-1])
            return f"another way {age(ago / 1e9)} ago, {hop_text(hop)}", Tone.WARN
    if summary.ended:
        return "no packets any more", Tone.MUTED
    running = paths.running(choice.destination)
    if running and not paths.is_measured(choice):
        if running.packets:
            return "waits for the first answer", Tone.MUTED
        return "idle: no packet yet" if running.flows else "waits for packets to it", Tone.MUTED
    if running and running.notes:
        return running.notes[0], Tone.MUTED
    return "", Tone.MUTED


def idle_text(view: LiveView, running: Traced) -> str:
    """Return since when the flows of a trace without packets are idle; empty if none is known."""
    packed = ipaddress.ip_address(running.destination).packed.ljust(16, b"\0")
    sent = (view.rows["destination"] == np.frombuffer(packed, "u1")).all(axis=1)
    last_ns = [
        int(row["last_ns"])
        for row in view.rows[sent]
        if TracedFlow(int(row["protocol"]), int(row["source_port"]), int(row["destination_port"]))
        in running.flows
    ]
    if not last_ns:
        return ""
    ago = age((view.now_ns - max(last_ns)) / 1e9)
    return f"The flow is idle since {ago}.\n\nNo probe goes out until it sends a packet."


def destination_text(destination: str, names: Names) -> str:
    """Return the known name of a destination, or its address."""
    return names.name(destination) or destination
