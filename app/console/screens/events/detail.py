"""The detail of an event: its text, its group's times, and the traffic of its moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from app.console.live.state import Frame
from app.console.screens.events.columns import folds, time_of
from app.console.screens.events.rows import story_text
from app.console.screens.flows.part import endpoint
from app.console.tables.label_lines import Line, labelled
from app.console.time_travel import TimeTravel
from bpf.errors import UsageError
from bpf.quantities import bit_rate, counted, duration
from probes.filter.hosts import protocol_name
from probes.snapshot import Event

_FLOWS = 5
"""Most flows of the moment."""
_TIMES = 50
"""Most events in the list of times."""
_TIME = len("00:00:00.000")


class EventDetail(Horizontal):
    """A pane below the table."""

    DEFAULT_CSS = """
    EventDetail {
        display: none; height: auto; max-height: 50%; border-top: solid $primary-muted;
        background: $surface;
    }
    EventDetail > Static { width: 3fr; height: auto; padding: 0 1; }
    EventDetail > #times { width: 2fr; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._about: Event | None = None
        self._then: tuple[Line, ...] = ()
        """The traffic of the moment of `_about`."""
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield Static(markup=False, id="text")
        yield Static(markup=False, id="times")

    def show(self, line: Any, time: TimeTravel, culprit: tuple[str, str], cause: str) -> None:
        """Show the event of a line of dtype EVENT_LINE.

        `culprit` is a filter, or empty, and keys that act on it. `cause` is a policy's condition.
        """
        if line["event"] is not self._about:
            self._about, self._then = line["event"], ()
        if not self._then:
            # The window of an event ends after it. The flow that fills a queue runs at the begin.
            event = begin_of(line)
            with suppress(UsageError):
                self._then = tuple(_traffic(time.frame_since(event.utc_ns), event))
        found, keys = culprit
        about = (("Filter", found, ""), ("", keys, "dim")) if found else ()
        why = (("Cause", cause, ""),) if cause else ()
        lines = (*_texts(line), *why, *about, *self._then)
        times = tuple(_times(line))
        if (lines, times) != self._drawn:
            self._drawn = lines, times
            self.query_one("#text", Static).update(labelled(lines))
            self.query_one("#times", Static).update(labelled(times, _TIME))


def begin_of(line: Any) -> Event:
    """Return the begin of a line's event if the event is an end, else the event."""
    events = line["group"].events[line["group"].events.index(line["event"]) :]
    begins = (each for each in events if each.phase == "begin")
    event: Event = line["event"]
    return next(begins, event) if event.phase == "end" else event


def _texts(line: Any) -> Iterator[Line]:
    texts = [line["event"].text]
    if folds(line):
        begun = (event.text for event in line["group"].events if event.phase == "begin")
        texts = [*dict.fromkeys([*texts, *islice(begun, 1)])]
    for label, text in zip(("Event", "Began"), texts, strict=False):
        for number, one in enumerate(text.splitlines()):
            yield "" if number else label, one, "bold" if label == "Event" else ""
    if folds(line):
        yield "Times", story_text(line["group"]), ""


def _traffic(frame: Frame, event: Event) -> Iterator[Line]:
    """Yield the rates and the fastest flows of the event's window; nothing before it ends."""
    if frame.utc_ns < event.utc_ns or not len(rows := frame.flows.rows):
        return
    rates = rows["bit_rate"]
    active = int(np.count_nonzero(rates > 0))
    moment = {"begin": " as it began", "end": " as it ended"}.get(event.phase, "")
    late = (frame.utc_ns - event.utc_ns) / 1e9
    # Old frames are far apart.
    if frame.last is not None and late > 2 * frame.last.seconds:
        moment = f", {duration(late)} after {moment[4:] or 'it'}"
    of = f"of {counted(active, 'flow')}{moment}"
    yield "Then", f"{bit_rate(float(rates.sum()))} {of}, the fastest:", ""
    # A partition, as there may be 100,000 flows.
    fastest = np.argpartition(rates, -min(_FLOWS, len(rows)))[-_FLOWS:]
    for row in rows[fastest[np.argsort(rates[fastest])[::-1]]]:
        if row["bit_rate"] > 0:
            name = protocol_name(int(row["protocol"]))
            ends = f"{endpoint(row, 'source')} -> {endpoint(row, 'destination')}"
            yield "", f"{bit_rate(row['bit_rate']):>11}  {name} {ends}", ""


def _times(line: Any) -> Iterator[Line]:
    """Yield the events of the group, newest first."""
    for event in line["group"].events[:_TIMES]:
        value = "" if event.value is None else f"{event.value:.4g} {event.unit}"
        told = "  ".join(filter(None, (event.phase, value))) or event.severity
        yield time_of(event), told, "bold" if event is line["event"] else ""
