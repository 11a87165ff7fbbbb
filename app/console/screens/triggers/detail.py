"""The detail of a policy with its history, or of an application with its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from app.console.screens.triggers.columns import band_text, left, nanoseconds, value_text, with_unit
from app.console.screens.triggers.model import PolicyView, Transition, Triggers, begin_of
from app.console.tables.label_lines import labelled
from bpf.errors import printable
from bpf.quantities import REPLACED, byte_size, clock, duration, percent, si, zone
from probes.monitor.info import ApplicationInfo
from probes.monitor.state import PolicyState
from probes.snapshot import Snapshot
from widgets.chart import ChartSeries, HistoryChart
from widgets.status import StatusItem, StatusStrip
from widgets.table.rows import Column, Row, Rows
from widgets.table.table import VirtualTable
from widgets.tones import Tone

if TYPE_CHECKING:
    from probes.monitor.actions.state import ActionInfo
    from probes.monitor.applications.top_table import Cell, TopTable
    from probes.monitor.finding import Finding

_TRANSITIONS = 50
_ROWS = 200
"""Rows of an application's table; files and the API have all."""
_WIDEST = 40
"""Cells of a column of an application's table."""
_TITLES = {"source port": "Src port", "destination port": "Dst port", "protocol": "Proto"}
"""Short titles of columns that screen 3 has too."""
_HINT = "no window yet: an application that is idle measures nothing"


class TriggerDetail(Vertical):
    """A pane below the tables, about a policy or about an application."""

    DEFAULT_CSS = """
    TriggerDetail {
        display: none; border-top: solid $primary-muted; background: $surface;
    }
    TriggerDetail.-policy, TriggerDetail.-application { display: block; }
    TriggerDetail > Horizontal { display: none; }
    TriggerDetail.-policy > Horizontal { display: block; }
    TriggerDetail > Horizontal > Static { width: 3fr; height: 1fr; padding: 0 1; }
    TriggerDetail HistoryChart { width: 2fr; }
    TriggerDetail > StatusStrip, TriggerDetail > VirtualTable, TriggerDetail > #findings {
        display: none;
    }
    TriggerDetail > #findings {
        height: auto; max-height: 3; padding: 0 1; color: $text-warning;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    TriggerDetail.-application > StatusStrip, TriggerDetail.-application > VirtualTable,
    TriggerDetail.-application > #findings.-some { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""
        """`policy`, `application`, or empty while it is closed."""
        self._drawn: object = None
        self.tables: tuple[TopTable, ...] = ()
        """Tables of the shown application."""
        self._chosen = 0
        """Place of the shown table."""

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(markup=False, id="about")
            yield HistoryChart(unit=si, empty="nothing to compare")
        yield StatusStrip()
        yield Static(markup=False, id="findings")
        yield VirtualTable((), id="top")

    @property
    def is_open(self) -> bool:
        return bool(self.kind)

    @property
    def table(self) -> VirtualTable:
        """The table of an application."""
        return self.query_one("#top", VirtualTable)

    def turn_to(self, kind: str) -> None:
        """Open for a `policy` or an `application`; without a kind, close."""
        if kind == self.kind:
            return
        self.kind = kind
        self.screen.set_class(bool(kind), "-detail")
        for one in ("policy", "application"):
            self.set_class(one == kind, f"-{one}")
            self.screen.set_class(one == kind, f"-{one}")
        self.tables = ()

    def show_policy(self, triggers: Triggers, one: PolicyView, span: float, keys: str) -> None:
        """Show a policy, and its value in the last `span` seconds; `keys` act on its culprit."""
        about = self.query_one("#about", Static)
        made = triggers.transitions(one.name, _TRANSITIONS)
        about.update(labelled(_lines(triggers, one, made, keys)), layout=False)
        table = triggers.view.policies
        drawn = (one.key, table[-1].end_ns if table else 0, span)
        if drawn != self._drawn:
            self._drawn = drawn
            times, rows = triggers.history(one.name, span)
            # Another window may have been decided by another comparison.
            mine = rows["comparison"] == one.numbers["comparison"]
            scale = 8.0 if one.unit.startswith("bit") else 1.0
            series = [
                ChartSeries(name, times, np.where(mine, rows[name] * scale, np.nan), tone)
                for name, tone in (("value", Tone.ACCENT), ("threshold", Tone.WARN))
            ]
            chart = self.query_one(HistoryChart)
            chart.show(
                series if len(times) else [], title=one.comparison, span=span,
                unit=lambda value: with_unit(value / scale, one.unit),
            )  # fmt: skip

    def show_application(
        self, triggers: Triggers, one: ApplicationInfo, define: Mapping[str, int],
        snapshots: Sequence[Snapshot],
    ) -> None:  # fmt: skip
        """Show an application: its tables of the last window, and the macros of its compilation."""
        # Imported here: the first paint needs no reader of tables.
        from probes.monitor.applications.views import findings, tables

        newest = max((snapshot.window for snapshot in snapshots), default=0)
        mine = [snapshot for snapshot in snapshots if snapshot.window == newest]
        self.tables = tables(one.name, define, mine, _ROWS)
        told = findings(one.name, define, mine, 3)
        found = self.query_one("#findings", Static)
        found.set_class(bool(told), "-some")
        found.update(Text("\n".join(printable(line, REPLACED) for line in told)))
        runs = triggers.runs(one.name)
        self._chosen = self._chosen % max(1, len(self.tables))
        items = [
            StatusItem(one.name, Tone.ACCENT),
            StatusItem(one.state, Tone.MUTED if one.state == "idle" else Tone.WARN),
            StatusItem(f"{nanoseconds(one.ns)} ns/packet", Tone.MUTED, priority=3),
            StatusItem(", ".join(runs) or "no policy", Tone.MUTED, priority=4, label="woken by"),
        ]
        if lacks := max((snapshot.lacks for snapshot in mine), default=""):
            items.insert(1, StatusItem(lacks, Tone.WARN, priority=1))
        if self.tables:
            title = self.tables[self._chosen].title
            which = f"{self._chosen + 1}/{len(self.tables)}"
            items.insert(1, StatusItem(title, Tone.NORMAL, label=which))
        if len(self.tables) > 1:
            items.append(StatusItem("n next table", Tone.MUTED, priority=2))
        self.query_one(StatusStrip).show(items)
        table = self.table
        table.empty = lacks or "nothing was seen in the last window" if self.tables else _HINT
        if not self.tables:
            table.show(Rows())
            return
        shown = self.tables[self._chosen]
        table.columns = top_columns(shown)
        table.show(top_rows(shown))

    def step(self, by: int) -> None:
        """Choose another table for the next `show_application`."""
        self._chosen = (self._chosen + by) % max(1, len(self.tables))


def top_columns(table: TopTable) -> tuple[Column[Any], ...]:
    """Return columns as wide as their contents; a narrow table drops the last ones."""
    found: list[Column[Any]] = []
    for place, name in enumerate(table.columns):
        # A unit keeps its case.
        title = _TITLES.get(name, name if "/" in name else name[:1].upper() + name[1:])
        cells = [row[place] for row in table.rows]
        width = max([len(title), *(len(_cell(cell)) for cell in cells)])
        numbers = bool(cells) and not any(isinstance(cell, str) for cell in cells)
        align = "right" if numbers else "left"
        found.append(Column(str(place), title, min(width, _WIDEST), align, place))  # type: ignore[arg-type]
    return tuple(found)


def top_rows(table: TopTable) -> Rows:
    """Return a row for each row of the table, with its place as key."""
    return Rows.of(Row(n, tuple(map(_cell, row))) for n, row in enumerate(table.rows))


def _cell(value: Cell) -> str:
    # Whole numbers may be ports: every digit counts.
    return si(value) if isinstance(value, float) else str(value)


def _lines(
    triggers: Triggers, one: PolicyView, made: Sequence[Transition], keys: str
) -> Iterator[tuple[str, str, str]]:
    info, policy = one.info, one.info.policy
    yield "Policy", f"{one.full_name}, {_state(triggers, one)}", "bold"
    if one.advice:
        yield "Advice", one.advice, "bold"
    if begun := begin_of(made):
        yield "Who", begun.finding, ""
        if info.finding and info.finding.text == begun.finding:
            yield from _largest(info.finding)
        if begun.filter:
            yield "Filter", begun.filter, ""
            yield "", keys, "dim"
    if info.cause and not made:
        yield "", info.cause, ""
    if policy.condition:
        yield "Condition", policy.when, ""
        if policy.deactivate:
            yield "Until", policy.named(policy.deactivate), ""
        times = ((policy.hold, "hold"), (policy.cooldown, "cool-down"))
        if told := ", ".join(f"{name} {duration(time)}" for time, name in times if time):
            yield "Times", told, ""
    select = " or ".join(policy.select) or "every packet"
    yield "Wakes", f"{', '.join(policy.run)} on {select}", ""
    if info.action:
        yield from _action(info.action)
    numbers = one.numbers
    if not math.isnan(numbers["value"]):
        verdict = "holds" if numbers["holds"] else "does not hold"
        value = f"{value_text(one, 'value')} against {value_text(one, 'threshold')}: {verdict}"
        yield "Value", value, "" if one.sure else "bold"
    if band := band_text(one, " to "):
        yield "", band + ("" if one.sure else ", which reaches over it: not sure"), ""
    last = int(one.numbers["selected"])
    yield "Matched", f"{si(info.selected)} packets, {si(last)} in last window", ""
    for number, change in enumerate(made):
        at = f"{clock(change.utc_ns)} {zone()}  {change.before.label} -> {change.after.label}"
        yield "" if number else "Changes", at, ""
        yield "", change.cause, ""
        if change.finding and change is not begun:
            yield "", change.finding, ""
        if change.metrics["packets"]:
            yield "", _metrics(change), "dim"


def _action(action: ActionInfo) -> Iterator[tuple[str, str, str]]:
    text = f"{action.state}: {action.cause}" if action.cause else action.state
    if action.until_utc_ns:
        text += f" until {clock(action.until_utc_ns)} {zone()} at most"
    yield "Action", text, "bold" if action.until_utc_ns else ""
    if action.dry and not action.until_utc_ns:
        yield "", "a dry run: it counts, and acts on no packet", ""
    if action.packets:
        taken = f"{si(action.packets)} packets, {byte_size(action.bytes)}"
        yield "", f"{taken}; {percent(action.share)} of the last window", ""
    for number, words in (
        (action.spared, "of control connections passed"),
        (action.failed, "were not mirrored"),
    ):
        if number:
            yield "", f"{number:,} packets {words}", ""


def _largest(finding: Finding) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of the flow key that have several values, each with the largest."""
    parts = {
        "Sources": finding.sources,
        "Hosts": finding.destinations,
        "Src ports": finding.source_ports,
        "Ports": finding.ports,
        "Protocols": finding.protocols,
        "Flags": finding.flags,
    }
    for label, part in parts.items():
        if part.count > 1:
            largest = [f"{top.name} {percent(top.share)}" for top in part.top if top.share >= 0.01]
            yield label, f"{part.count:,}: {', '.join(largest) or 'none over 1 %'}", "dim"


def _state(triggers: Triggers, one: PolicyView) -> str:
    info = one.info
    word = info.state.label
    if info.forced and info.state.runs:
        word += " by an operator"
    text = f"{word} since {clock(info.since_utc_ns)} {zone()}"
    now = triggers.view.now_utc_ns
    if info.until_utc_ns and now:
        what = "ends" if info.state is PolicyState.HOLD else "armed again"
        text += f", {what} in {duration(left(info, now))}"
    return text


def _metrics(change: Transition) -> str:
    metrics = change.metrics
    total = int(metrics["packets"])
    shares = ", ".join(
        f"{percent(int(metrics[f'{name}_packets']) / total)} {name.upper()}"
        for name in ("tcp", "udp", "icmp")
        if metrics[f"{name}_packets"]
    )
    counts = f"{si(total)} packets, {byte_size(metrics['bytes'])}, {si(metrics['flows'])} flows"
    return f"{counts}{': ' if shares else ''}{shares}"
