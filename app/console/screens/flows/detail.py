"""The detail of a flow or of a group, and the line with the sums of the shown flows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from app.commands.flow_view import INTERFACES, LABEL_KINDS, OWNER_KINDS, Grouping
from app.console.live.frames import Frame
from app.console.live.owners import NO_OWNERS
from app.console.protocol import Console
from app.console.screens.flows.columns import rate_text, whole
from app.console.screens.flows.owners import (
    RowOwner,
    RttLine,
    limit_words,
    owner_words,
    tcp_words,
)
from app.console.screens.flows.rows import ShownFlows
from app.console.screens.flows.selection import Opened
from bpf.arrays import Array, Row
from bpf.quantities import age, bit_rate, byte_size, counted, percent
from probes.flow.grouping import GROUP
from probes.flow.records import FLOW, FlowDirection
from probes.snapshot import History, Snapshot
from probes.sockets.records import OWNERS_TABLE, OWNERSHIP_TABLE, SOCKETS_TABLE, Owned
from probes.sockets.records import PROBE as SOCKETS
from probes.tunnels import tunnel_name
from widgets.chart import ChartSeries, HistoryChart
from widgets.status import StatusItem, StatusStrip
from widgets.tones import Tone

_ENDS = 3
"""Facts about the ends of a flow or conversation."""
_WINDOWS = 3600
"""As many as a history keeps of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class DetailSubject:
    """The flow or group that a detail is about."""

    facts: Sequence[tuple[str, str]]
    """Labels and values."""
    lines: Sequence[tuple[str, Tone]]
    """Name and tone of each line of the chart."""
    measure: Callable[[Snapshot], Sequence[int] | None]
    """Return the bytes of each line in a window of flows; None if its owners are not known yet."""
    owner: RowOwner | None = None
    """Of a flow or conversation."""


class FlowDetail(Horizontal):
    """A pane below the table; a chart only where there is room for it."""

    DEFAULT_CSS = """
    FlowDetail { display: none; height: 8; border-top: solid $primary-muted; background: $surface; }
    FlowDetail.open { display: block; }
    FlowDetail.-owned { height: 11; }
    FlowDetail > Static {
        width: 1fr; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis;
    }
    FlowDetail > HistoryChart { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._key: Hashable | None = None
        self._rtts = RttLine()
        self._seen_ns = 0
        """End of the last window that is in `_points`."""
        self._points: deque[tuple[float, ...]] = deque(maxlen=_WINDOWS)
        """Ends of windows in seconds, and bits per second of each line; also of windows after the
        moment that is shown."""

    def compose(self) -> ComposeResult:
        yield Static(markup=False)
        yield HistoryChart(unit=bit_rate, empty="no window yet")

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def follow(self, key: Hashable) -> None:
        """Show the flow or group of a row from now on."""
        if key != self._key:
            self._key = key
            self._seen_ns = 0
            self._points.clear()

    def show(
        self, subject: DetailSubject | None, now_ns: int, history: History, span: float
    ) -> None:
        """Show `subject`, and its rates in the windows of `span` seconds until `now_ns`.

        Without a subject all its flows have left.
        """
        if subject is None:
            lacks = max((one.lacks for one in history.snapshots("flow", "")), default="")
            text = f"No packet for a minute{f', or {lacks}' if lacks else ''}."
            self.query_one(Static).update(Text(text))
            self.query_one(HistoryChart).show([])
            return
        facts = list(subject.facts)
        # After the ends: a low pane has no room for the rest.
        facts[_ENDS:_ENDS] = self._owner_facts(subject.owner, history, now_ns)
        self.query_one(Static).update(_labelled(facts), layout=False)
        for window in history.snapshots("flow", ""):
            if window.end_ns > self._seen_ns:
                seconds = max(window.seconds, 1e-3)
                if (sizes := subject.measure(window)) is None:
                    break
                # A window that lacks flows leaves a gap.
                nothing = math.nan if window.lacks else 0.0
                bits = (8 * size / seconds if size else nothing for size in sizes)
                self._points.append((window.end_ns / 1e9, *bits))
                self._seen_ns = window.end_ns
        times, *rates = np.array(self._points, "f8").reshape(-1, 1 + len(subject.lines)).T
        until = int(np.searchsorted(times, now_ns / 1e9, "right"))
        series = [
            ChartSeries(name, times[:until], rate[:until], tone)
            for (name, tone), rate in zip(subject.lines, rates, strict=True)
        ]
        self.query_one(HistoryChart).show(series, span=span)

    def _owner_facts(
        self, owner: RowOwner | None, history: History, now_ns: int
    ) -> list[tuple[str, str]]:
        self.set_class(owner is not None and owner.socket is not None, "-owned")
        if owner is None:
            return []
        found = [("Owner", owner_words(owner)), ("Limited by", limit_words(owner))]
        found += [("RTT", self._rtts.text(owner, history, now_ns)), *tcp_words(owner)]
        return [(label, value) for label, value in found if value]


def past_of(console: Console, node: str) -> tuple[History, int]:
    """Return the windows of a host of several, and the moment by its CLOCK_MONOTONIC; no
    windows for a group of several hosts."""
    frame, plane = console.time.frame, console.hosts.planes.by_name.get(node)
    part = next((one for one in frame.parts if one.host == node), None)
    if part is None or plane is None:
        return History(), frame.flows.now_ns
    return plane.history, part.frame.flows.now_ns


def subject_of(row: ShownFlows, history: History) -> DetailSubject:
    """Describe the row; `history` has the owners of past windows."""
    opened = Opened.of(row)
    past = cache(partial(_past_owners, history))

    def measure(window: Snapshot) -> Sequence[int] | None:
        sockets, owners = NO_OWNERS.sockets, NO_OWNERS.owners
        if opened.by.kind in OWNER_KINDS:
            known = past()
            if window.window > max(known, default=0):
                return None
            sockets, owners = known.get(window.window, (sockets, owners))
        rows = window.rows
        owned = Owned(rows if opened.by.is_by_label else rows[:0], sockets, owners)
        flows = rows[opened.mask(rows, owned)]
        leaves = flows["direction"] == FlowDirection.EGRESS
        size = flows["bytes"]
        sizes = [int(size[~leaves].sum()), int(size[leaves].sum())]
        return sizes if opened.by.is_grouped else [sum(sizes)]

    owner = row.owners[0] if opened.by.is_finest else None
    if not opened.by.is_grouped:
        return DetailSubject(_flow_facts(row), [("rate", Tone.ACCENT)], measure, owner)
    lines = [("in", Tone.IN), ("out", Tone.OUT)]
    return DetailSubject(_group_facts(row), lines, measure, owner)


def _past_owners(history: History) -> dict[int, tuple[Array, Array]]:
    """Return the sockets and owners of past windows, by the number of the window."""
    tables: dict[str, dict[int, Array]] = {SOCKETS_TABLE: {}, OWNERS_TABLE: {}, OWNERSHIP_TABLE: {}}
    for one in history.snapshots(SOCKETS):
        tables[one.metric][one.window] = one.rows
    sockets, owners = tables[SOCKETS_TABLE], tables[OWNERS_TABLE]
    return {window: (sockets[window], rows) for window, rows in owners.items() if window in sockets}


def _flow_facts(flow: ShownFlows) -> list[tuple[str, str]]:
    row = flow.row
    way = "into this host" if row["direction"] == FlowDirection.INGRESS else "out of this host"
    mean = byte_size(row["bytes"] / row["packets"])
    bound = "at least " if row["at_least"] else ""
    rate, packets = float(row["bit_rate"]), whole(row["packet_rate"])
    rates = f"{rate_text(flow, rate, bit_rate)}, {packets} packets/s"
    lines = [
        ("Flow", f"{flow.protocols()[0]} over IPv{row['version']}, {way}{_link(row)}"),
        ("Source", flow.endpoints("source")[0]),
        ("Destination", flow.endpoints("destination")[0]),
        ("Rate", flow.view.lacks if flow.view.cut_rates and not rate else rates),
        ("Total", f"{bound}{byte_size(row['bytes'])} in {_packets(row['packets'])}, {mean} each"),
        ("Seen", _seen(flow)),
    ]
    return lines + _flags(flow)


def _seen(row: ShownFlows) -> str:
    last_ns = row.view.now_ns - int(row["last_ns"][0])
    since = f", then {row.view.lacks}" if last_ns > row["idle"][0] else ""
    return f"first {age(int(row['age'][0]) / 1e9)} ago, last {age(last_ns / 1e9)} ago{since}"


def _flags(row: ShownFlows) -> list[tuple[str, str]]:
    return [("TCP flags", flags) for flags in row.flags() if flags]


def _group_facts(group: ShownFlows) -> list[tuple[str, str]]:
    row, kind = group.row, group.kind
    found = group.known()[0]
    name = f", {found.text} {found.source.about}" if found is not None else ""
    lines, bound = [], "≥" if row["at_least"] else ""
    if kind == "conversations":
        what = f"{group.services()[0]}, {group.protocols()[0]} over IPv{row['version']}{_link(row)}"
        lines += [("Conversation", what), ("Local", group.endpoints("near")[0])]
        lines += [("Remote", group.endpoints("far")[0] + name)]
    elif kind == "services":
        lines.append(("Service", f"{group.services()[0]}, {group.serving_ports()[0]}"))
    elif group.groups.by.is_by_label:
        lines.append((LABEL_KINDS[kind].capitalize(), group.texts()[0]))
    else:
        label = kind.removesuffix("s").capitalize()
        text = group.networks()[0] if kind == "networks" else group.hosts()[0] + name
        lines.append((label, text))
    for way in ("in", "out"):
        rate, packet_rate = (float(group[name][0]) for name in (way, f"{way}_packet_rate"))
        size, packets = byte_size(row[f"{way}_bytes"]), _packets(row[f"{way}_packets"])
        rates = f"{rate_text(group, rate, bit_rate)}, {rate_text(group, packet_rate, whole)} pkt/s"
        text = f"{rates}; {bound}{size} in {packets}"
        lines.append((way.capitalize(), text))
    seen = _seen(group)
    if kind != "conversations":
        seen += f"; {row['flows']} conversation{'' if row['flows'] == 1 else 's'}"
    lines.append(("Seen", seen))
    return lines + _flags(group)


def _link(row: Row[FLOW] | Row[GROUP]) -> str:
    """VLAN and tunnel of a row, after a comma each."""
    vlan = f", VLAN {row['vlan']}" if row["vlan"] else ""
    tunnel = f", in {tunnel_name(int(row['tunnel']))} {row['tunnel_id']}" if row["tunnel"] else ""
    return vlan + tunnel


def _packets(number: int) -> str:
    return f"{whole(number)} packet{'' if number == 1 else 's'}"


def _labelled(lines: Sequence[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in lines:
        text.append(f"{label:<13}", "dim")
        text.append(f"{value}\n")
    text.right_crop(1)
    return text


_MOST = 3
"""Interfaces that are named."""


class TotalsLine(StatusStrip):
    """Rates of both directions, counts, and whether they are exact."""

    DEFAULT_CSS = """
    TotalsLine { background: $surface; }
    """

    def follow(self, frame: Frame, places: Array, rows: int, by: Grouping) -> None:
        """Show the sums of the flows at `places` of a frame, in `rows` groups."""
        view = frame.flows
        rates, leaves = (view.rows[name][places] for name in ("bit_rate", "direction"))
        out = float(rates[leaves == FlowDirection.EGRESS].sum())
        exact = not (view.left_out or view.rows["at_least"][places].any())
        why = view.lacks or "the table was full"
        items = [
            StatusItem(bit_rate(float(rates.sum()) - out), Tone.IN, label="total in"),
            StatusItem(bit_rate(out), Tone.OUT, label="out"),
            StatusItem(counted(len(places), "flow"), Tone.MUTED, 2),
        ]
        if by.is_grouped:
            how = str(by).removeprefix(by.kind)
            noun = by.noun if rows == 1 else by.kind
            items.insert(2, StatusItem(f"{rows} {noun}{how}", Tone.MUTED, 1))
        items.append(
            StatusItem("exact sums", Tone.MUTED, 3) if exact
            else StatusItem(f"at least: {why}", Tone.WARN, 1)
        )  # fmt: skip
        if (share := frame.owners.share) is not None:
            items.append(StatusItem(percent(share), Tone.MUTED, 2, label="owned"))
        if by.kind == INTERFACES and frame.pulses.links is not None:
            items += repeated_items(frame.pulses.links)
        self.show(items)


def repeated_items(links: Snapshot) -> list[StatusItem]:
    """Return the interfaces that saw most of the packets that had counted before, from the last
    window of the table of interfaces."""
    bits = 8 * (links.rows["repeated_in_bytes"] + links.rows["repeated_out_bytes"]) / links.seconds
    most = [at for at in np.argsort(-bits)[:_MOST] if bits[at]]
    texts = [f"{links.rows['interface'][at].decode()} {bit_rate(bits[at])}" for at in most]
    return [StatusItem(text, Tone.MUTED, 2 * number, label="" if number else "repeated at")
            for number, text in enumerate(texts)]  # fmt: skip
