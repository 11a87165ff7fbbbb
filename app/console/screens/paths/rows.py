"""Rows of screen 2: paths, and the hops of one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from socket import IPPROTO_UDP
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.screens.paths.columns import DESTINATIONS, HOP_CHANGES, HOPS, line_tones
from app.console.screens.paths.hop import (
    HOP,
    LITTLE,
    NOTABLE,
    PATH,
    PathKey,
    flow_text,
    hop_text,
    methods_text,
    since,
)
from app.console.screens.paths.hosts import PathHosts
from app.console.screens.paths.model import CELL, ROUTE, Paths
from app.console.tables.sorted_table import FewRows
from app.console.tables.spec import TableSpec, columns
from app.run.unprobed import reasons
from bpf.arrays import Array, Row, Rows
from bpf.quantities import age, counted, duration
from probes.filter import Filter
from probes.path.events.words import flap_text, going_on, loop_text
from probes.path.options import TracedFlow
from probes.path.records import PathRowKind
from probes.path.traced import Traced
from widgets.sparkline import round_scale, sparklines
from widgets.status import StatusItem
from widgets.table.rows import Column, Pieces
from widgets.tones import Tone

_HOST_CELLS = (12, 40)
"""Least and most width of the column of hosts."""
_PATH_CELLS, _NODE_CELLS = (24, 60), (4, 16)
_WIDE_LINE = 24
_RECENT_NS = 60_000_000_000
"""The list of paths shows a change for this long."""
_HOP_ROW = np.dtype(
    [
        *HOP.descr,
        ("share", "f8"),
        ("is_notable", "?"),
        *((name, "O") for name in ("id", "host", "address", "line", "destination", "node")),
    ]
)
"""A hop in a table: its share of the path's round trip, 0 to 1, its time line, and in a table of
several paths the name of the destination and the host of the fleet that traces it."""
_PATH_ROW = np.dtype(
    [
        *PATH.descr,
        *((name, "?") for name in ("stopped", "is_whole")),
        ("depth", "i8"),
        *((name, "O") for name in ("id", "title", "method", "state", "state_tone")),
    ]
)
_CHANGE_ROW = np.dtype(
    [
        *((name, "i8") for name in ("id", "ttl")),
        *((name, "f8") for name in ("median", "before", "change", "loss", "was_loss")),
        ("moved", "?"),
        *((name, "O") for name in ("host", "was_host")),
    ]
)
"""A hop at two moments; it moved if another router answers."""
NO_ANSWER = "no answer"
NO_PROBE = "no probe yet"


def hop_columns(
    hosts: Sequence[str], scale: float, cells: int, spec: TableSpec[FewRows] = HOPS,
    **changes: Mapping[str, Any],
) -> tuple[Column[FewRows], ...]:  # fmt: skip
    """Return the columns of hops; the scale of time lines ends at `scale` seconds.

    `spec` has the columns of HOPS and others, which `changes` are for.
    """
    least, most = _HOST_CELLS
    host = max(least, min(most, max(map(len, hosts), default=0)))
    span, top = age(cells * CELL), duration(scale)
    title = f"last {span}, up to {top}" if cells >= _WIDE_LINE else f"{span} ≤{top}"
    line = {"title": title if hosts else ""}
    return columns(spec, host={"width": host}, line=line, **changes)


def scale_of(hops: Rows[HOP]) -> float:
    """Return the end of the scale of all time lines, in seconds."""
    found = np.array(hops["means"].tolist())
    return round_scale(float(found[np.isfinite(found)].max(initial=0))) if len(hops) else 0.0


def host_text(hop: Row[HOP], names: Names, choice: PathKey) -> str:
    """Return the destination, or the router that answers and the number of others:
    `10.94.3.2 +1`."""
    if hop["is_end"]:
        return destination_text(choice.destination, names)
    if not hop["sent"]:
        return NO_PROBE
    if not hop["answered"]:
        return NO_ANSWER
    address, others = hop["routers"][0].address, len(hop["routers"]) - 1
    return (names.name(address) or address) + (f" +{others}" if others else "")


def hop_rows(
    hops: Rows[HOP], found: Sequence[tuple[PathKey, str]], note: str = "",
    spec: TableSpec[FewRows] = HOPS,
) -> FewRows:  # fmt: skip
    """Return a row for each hop, with its number as key.

    `found` has the path and the host of each. `note` stands in the place of a time line if nothing
    tells the destination's round trip.
    """
    rows = np.zeros(len(hops), _HOP_ROW)
    rows[list(HOP.names or ())] = hops
    rows["id"], rows["share"] = hops["hop"], shares_of(hops)
    rows["is_notable"] = is_notable(hops, rows["share"])
    for row, (choice, host), line in zip(rows, found, time_lines(hops), strict=True):
        row["host"], row["node"] = host, choice.host
        first = next((router.address for router in row["routers"]), "")
        row["address"] = choice.destination if row["is_end"] else first
        is_unknown = note and row["is_end"] and not row["sent"]
        row["line"] = ((note, Tone.MUTED),) if is_unknown else line
    return FewRows(spec, rows)


def shares_of(hops: Rows[HOP]) -> Array:
    """Return the share (n,) of the round trip that each hop of a path adds."""
    total = np.nansum(hops["adds"])
    return hops["adds"] / total if total else np.full(len(hops), np.nan)


def is_notable(hops: Rows[HOP], shares: Array) -> Array:
    """Return whether hops add much: more than a little, and a share of their path's round trip."""
    return (hops["adds"] >= LITTLE) & (shares >= NOTABLE)


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


def hop_changes(before: Rows[HOP], after: Rows[HOP], choice: PathKey, names: Names) -> FewRows:
    """Return a row for each hop of a path at one of two moments, with its number as key."""
    numbers = np.union1d(before["hop"], after["hop"])
    rows = np.zeros(len(numbers), _CHANGE_ROW)
    rows["id"] = numbers
    for hops, median, loss, host in (
        (before, "before", "was_loss", "was_host"), (after, "median", "loss", "host"),
    ):  # fmt: skip
        at = np.searchsorted(numbers, hops["hop"])
        rows[median], rows[loss], rows[host] = np.nan, np.nan, ""
        rows["ttl"][at] = hops["ttl"]
        rows[median][at], rows[loss][at] = hops["median"], hops["loss"]
        rows[host][at] = [host_text(hop, names, choice) for hop in hops]
    rows["change"] = rows["median"] - rows["before"]
    was, now = rows["was_host"].copy(), rows["host"].copy()
    rows["moved"] = moved = was != now
    rows["host"][now == ""] = "gone"
    rows["was_host"][was == ""] = "new"
    rows["was_host"][~moved] = ""
    return FewRows(HOP_CHANGES, rows)


def time_lines(hops: Rows[HOP]) -> list[Pieces]:
    """Return the time line of each hop; all have one scale."""
    if not len(hops):
        return []
    values, lost, marked = (np.array(hops[name].tolist()) for name in ("means", "lost", "marked"))
    return sparklines(
        values, lost, marked, scale_of(hops), line_tones(hops), hops["forgiven"].tolist()
    )


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


def path_columns(rows: FewRows, hosts: Sequence[str]) -> tuple[Column[FewRows], ...]:
    """Return the columns of paths; names and numbers stand side by side.

    `hosts` are the names of several hosts.
    """
    least, most = _PATH_CELLS
    width = max(least, min(most, max(map(cell_len, rows["title"]), default=0)))
    least, most = _NODE_CELLS
    node = max(least, min(most, max(map(cell_len, hosts), default=0)))
    return columns(DESTINATIONS, path={"width": width}, node={"hidden": not hosts, "width": node})


class ListedPath(NamedTuple):
    """A place of the list."""

    key: PathKey
    depth: int = 0
    """Depth below its destination."""
    folds: int = 0
    """Number of flows that it stands for; 0: none."""
    is_open: bool = False
    """Whether those flows are listed below it."""
    about: str = ""
    """The number of ways of a destination, or the branch of a way."""


def path_rows(hosts: PathHosts, listed: Iterable[ListedPath], names: Names) -> FewRows:
    """Return a row for each of `listed`, which are of `hosts`."""
    every = tuple(listed)
    rows = np.zeros(len(every), _PATH_ROW)
    summaries = [hosts.of(one.key).summary(one.key) for one in every]
    rows[list(PATH.names or ())] = np.array(summaries, PATH)
    row: Any
    for row, (choice, depth, count, is_open, about) in zip(rows, every, strict=True):
        paths = hosts.of(choice)
        flows = paths.flows(choice.destination)
        folds = f"{'▾' if is_open else '▸'} {counted(count, 'flow')}" if count else ""
        if choice.flow is not None:
            title = "  " * depth + (folds or flow_text(choice.flow))
        else:
            title = destination_text(choice.destination, names)
            if len(flows) == 1:
                title += f"  {flow_text(flows[0])}"
            elif flows:
                title += f"  {folds or counted(len(flows), 'flow')}"
        row["id"], row["depth"], row["is_whole"] = choice, depth, choice.flow is None
        row["title"] = title + (f", {about}" if about else "")
        row["method"] = methods_text(int(row["methods"]))
        row["state"], row["state_tone"] = path_state(paths, choice)
        row["stopped"] = row["ended"] or paths.running(choice.destination) is None
    return FewRows(DESTINATIONS, rows)


def path_state(paths: Paths, choice: PathKey) -> tuple[str, Tone]:
    """Return the most urgent fact of a path with its tone, or an empty text."""
    summary = paths.summary(choice)
    if paths.running(choice.destination) is None:
        return "tracing has ended", Tone.MUTED
    if summary["queue"]:
        place = hop_text(int(summary["queue_hop"]))
        return f"{duration(summary['queue'])} of queueing at {place}", Tone.WARN
    changes = paths.changes(choice)
    for kind, words in ((PathRowKind.LOOP, loop_text), (PathRowKind.FLAP, flap_text)):
        lasting = going_on(changes, kind)
        if lasting is not None and not summary["ended"]:
            return words(lasting), Tone.WARN
    routes = changes[np.isin(changes["kind"], ROUTE)] if len(changes) else changes
    if len(routes):
        ago = paths.view.now_ns - int(since(routes)[-1])
        if ago < _RECENT_NS:
            hop = int(routes["hop"][-1])
            return f"another way {age(ago / 1e9)} ago, {hop_text(hop)}", Tone.WARN
    if summary["ended"]:
        return "no packets any more", Tone.MUTED
    running = paths.running(choice.destination)
    if running and not paths.is_measured(choice):
        if running.packets:
            return f"no answer yet to {counted(running.packets, 'packet')}", Tone.MUTED
        return "idle: no packet yet" if running.flows else "waits for packets to it", Tone.MUTED
    if running and running.notes:
        return running.notes[0], Tone.MUTED
    return "", Tone.MUTED


def idle_text(view: LiveView, running: Traced) -> tuple[str, str] | None:
    """Return since when the flows of a trace without packets are idle, and a hint; None if no flow
    is known."""
    packed = ipaddress.ip_address(running.destination).packed.ljust(16, b"\0")
    sent = (view.rows["destination"] == np.frombuffer(packed, "u1")).all(axis=1)
    last_ns = [
        int(row["last_ns"])
        for row in view.rows[sent]
        if TracedFlow(int(row["protocol"]), int(row["source_port"]), int(row["destination_port"]))
        in running.flows
    ]
    if not last_ns:
        return None
    idle_ns = int(view.idle_ns(np.array(last_ns)).min())
    state = f"idle since {age(idle_ns / 1e9)}" if idle_ns else view.lacks
    return f"The flow is {state}.", "No probe goes out until it sends a packet."


def destination_text(destination: str, names: Names) -> str:
    """Return the known name of a destination, or its address."""
    return names.name(destination) or destination
