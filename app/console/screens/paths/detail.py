"""The detail of one hop: its routers, changes, and the distribution of round-trip times."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from app.console.host_names import Names
from app.console.live.paths import SAMPLE, SECOND_NS, SECONDS, PathView
from app.console.screens.paths.hop import HOP, PathKey, hop_text, mark_text, methods_text
from app.console.screens.paths.model import MINUTE, Paths
from app.console.screens.paths.rows import NO_ANSWER, end_note, path_notes
from app.console.tables.label_lines import labelled
from bpf.arrays import Array, Row, Rows
from bpf.quantities import age, clock, counted, duration, percent, si, zone
from probes.path.analysis.statistics import Ordered
from probes.path.events.words import describe
from probes.path.records import PathRowKind
from widgets.chart import ChartSeries, Distribution, HistoryChart
from widgets.sparkline import means
from widgets.tones import Tone

_CHANGES = 50
"""Most changes, and most queues, in a list."""
_SELDOM = 4
"""Seconds between two charts that the user did not open: drawing one takes some milliseconds."""
_NOTABLE = 0.0005
"""Seconds of queueing that are worth a word."""


class PathDetail(Horizontal):
    """A pane below the hops."""

    DEFAULT_CSS = """
    PathDetail {
        display: none; height: 12; border-top: solid $primary-muted; background: $surface;
    }
    PathDetail.open { display: block; }
    PathDetail > Static { width: 2fr; height: 100%; padding: 0 1; }
    PathDetail > Vertical { width: 3fr; }
    PathDetail > #queues { display: none; width: 32; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        """Number of its hop."""
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield Static(markup=False, id="about")
        with Vertical():
            yield HistoryChart(unit=duration, empty="no answer in the last minute")
            yield Distribution(unit=duration)
        yield Static(markup=False, id="queues")

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def show(
        self, paths: Paths, choice: PathKey, hop: Row[HOP] | None, names: Names, span: float,
        past: Callable[[], Iterable[PathView]],
    ) -> None:  # fmt: skip
        """Show `hop` of `choice`; None if the cursor is on none.

        The chart shows the last `span` seconds. Beyond a minute, its bins come from the views of
        `past`, newest first.
        """
        if hop is None:
            self._show_nothing()
            return
        # The chart changes once a second, or more seldom if the user did not ask for it.
        view = paths.view
        tick = view.second // (1 if self.is_open else _SELDOM)
        told = view.changes[-1:].tobytes()
        drawn = (choice, hop["hop"], tick, told, len(hop["places"]), span)
        fresh = drawn != self._drawn
        self._drawn = drawn
        if not (fresh or self.is_open):
            return
        lines = _lines(paths, choice, hop, names)
        self.query_one("#about", Static).update(labelled(lines), layout=False)
        if not fresh:
            return
        queues = list(queue_lines(paths, choice.destination))
        self.set_class(bool(queues), "queued")
        self.query_one("#queues", Static).update(labelled(queues), layout=False)
        ids = np.sort(paths.view.series["id"][hop["places"]])
        samples = paths.view.samples(ids)
        samples = samples[samples["rtt_ns"] >= 0]
        title = "Destination" if hop["is_end"] else f"Hop {hop['hop']}"
        if span > MINUTE:
            series = [long_history(past(), ids)]
        else:
            series = _history(samples, paths.view.second)
        self.query_one(HistoryChart).show(series, title=title, span=span)
        rtt = samples["rtt_ns"] / 1e9
        self.query_one(Distribution).show(rtt, f"{si(len(rtt))} answers")

    def _show_nothing(self) -> None:
        self._drawn = None
        for part in self.query(Static):
            part.update("", layout=False)
        self.query_one(HistoryChart).show([])
        self.query_one(Distribution).show(np.empty(0), "")


def _history(samples: Rows[SAMPLE], second: int) -> list[ChartSeries]:
    times = np.arange(second - MINUTE, second + 1)
    values = np.full((2, len(times)), np.nan)
    seconds = samples["sent_ns"] // SECOND_NS - times[0]
    shown = (seconds >= 0) & (seconds < len(times))
    ordered = Ordered.of(seconds[shown], samples["rtt_ns"][shown])
    for row, fraction in enumerate((0.5, 0.95)):
        values[row, ordered.series] = ordered.quantile(fraction) / 1e9
    when = times.astype("f8")
    return [
        ChartSeries("median", when, values[0], Tone.ACCENT),
        ChartSeries("p95", when, values[1], Tone.MUTED),
    ]


def long_history(views: Iterable[PathView], ids: Array) -> ChartSeries:
    """Return the mean of each second of the series `ids`; `views` stand newest first."""
    times, values = [np.empty(0)], [np.empty(0)]
    until = sys.maxsize
    for view in views:
        bins = view.recent(np.flatnonzero(np.isin(view.series["id"], ids)), SECONDS)
        seconds = np.arange(view.second - SECONDS + 1, view.second + 1)
        new = seconds < until
        until = int(seconds[0])
        answered = bins["answered"].sum(axis=0)
        times.append(seconds[new].astype("f8"))
        values.append(means(bins["rtt_ns"].sum(axis=0), answered)[new] / 1e9)
    found = np.concatenate(values[::-1])
    # The chart begins with the first answer.
    begin = int(np.argmax(np.isfinite(found))) if len(found) else 0
    return ChartSeries("mean", np.concatenate(times[::-1])[begin:], found[begin:])


def _lines(
    paths: Paths, choice: PathKey, hop: Row[HOP], names: Names
) -> Iterator[tuple[str, str, str]]:
    view = paths.view
    series = view.series[hop["places"]]
    yield from _end(paths, choice, hop, names) if hop["is_end"] else _routers(view, hop, names)
    for number, row in enumerate(paths.comparisons(choice, hop["hop"])):
        yield "" if number else "Compare", describe(row)[1].partition(": ")[2], ""
    if hop["queue_ns"]:
        yield "Queue", f"{duration(hop['queue_ns'] / 1e9)} here, none before it", "bold"
    if math.isfinite(hop["adds"]):
        queued = (
            f", {duration(hop['adds_queue'])} of it by queues"
            if hop["adds_queue"] > _NOTABLE
            else ""
        )
        yield "Adds", f"{duration(hop['adds'])} to the median{queued}", ""
    lost, answered = int(series["lost"].sum()), int(series["answered"].sum())
    since = age((view.now_ns - int(series["first_ns"].min(initial=view.now_ns))) / 1e9)
    share = percent(lost / (lost + answered)) if lost + answered else "-"
    if len(series):
        yield "In all", f"{lost + answered} {'timed' if hop['is_end'] else 'sent'} in {since}", ""
        yield "", f"{lost} lost ({share})", ""
    if dropped := int(series["dropped"].sum()):
        yield "", f"{dropped} not sent: this host's queue was full", ""
    if hop["cleared"] and lost:
        yield "", "later hops lose none: it answers seldom", "dim"
    for number, note in enumerate(path_notes(paths, choice)):
        yield "" if number else "Note", note, ""
    changes = paths.changes(choice)
    changes = changes[changes["hop"] == hop["hop"]][::-1][:_CHANGES]
    for number, row in enumerate(changes):
        at = clock(int(row["at_ns"]) + view.utc_offset_ns)
        yield "" if number else "Changes", f"{at} {zone()}", ""
        yield "", describe(row)[1].partition(": ")[2], ""


def queue_lines(paths: Paths, destination: str) -> Iterator[tuple[str, str, str]]:
    """Yield the totals of the queues on the way to a destination, and each queue, newest first."""
    view = paths.view
    found = [one for one in paths.spells(PathRowKind.QUEUE) if one.destination == destination]
    if not found:
        return
    yield "Queues", f"{len(found)} in all", "bold"
    yield "Worst", duration(max(one.worst for one in found)), ""
    yield "Longest", duration(max(one.seconds(view.now_ns) for one in found)), ""
    for one in found[:_CHANGES]:
        at = clock(one.began_ns + view.utc_offset_ns)
        took = duration(one.seconds(view.now_ns))
        text = f"{hop_text(one.hop)}  {duration(one.worst)}  {took}"
        yield at, text + ("" if one.ended_ns else ", now"), "" if one.ended_ns else "bold"


def _end(
    paths: Paths, choice: PathKey, hop: Row[HOP], names: Names
) -> Iterator[tuple[str, str, str]]:
    yield "To", f"{choice.destination} {names.name(choice.destination)}".rstrip(), ""
    if hop["answered"]:
        text = f"{counted(hop['answered'], 'round trip')} by {methods_text(hop['methods'])}"
    else:
        text = end_note(paths, choice)
    yield "Measured", text, ""


def _routers(view: PathView, hop: Row[HOP], names: Names) -> Iterator[tuple[str, str, str]]:
    for number, router in enumerate(hop["routers"]):
        name = names.name(router.address)
        ago = age((view.now_ns - router.last_ns) / 1e9)
        yield "" if number else "Router", f"{router.address} {name}".rstrip(), ""
        yield "", f"{percent(router.share)} of answers, last {ago} ago", "dim"
        for entry in router.labels:
            label = f"MPLS label {entry >> 12}, class {entry >> 9 & 7}, TTL {entry & 255}"
            yield "", label, "dim"
        if router.tos != router.quoted_tos:
            yield "", f"{mark_text(router.quoted_tos)} here, sent with {mark_text(router.tos)}", ""
        if router.altered:
            fields = ", ".join(str(each.name).lower() for each in router.altered)
            yield "", f"changed on the way here: {fields}", ""
    if not hop["routers"]:
        yield "Router", NO_ANSWER, ""
