"""Screen 6: a ribbon of time, and events in groups; Enter turns to the moment of an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from itertools import compress, islice
from typing import Any

import numpy as np
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from app.console.culprit import CulpritCommands
from app.console.live.day import day_pieces
from app.console.live.frames import Frame
from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS
from app.console.screens.events.columns import EVENTS, folds, time_of
from app.console.screens.events.rows import (
    RIBBON_MARGIN,
    event_rows,
    ribbon_pieces,
    story_text,
)
from app.console.tables.label_lines import Line, labelled
from app.console.tables.sorted_table import OPEN, EachRow, SortedTable
from app.console.tables.spec import columns
from app.console.time_travel import TimeTravel
from app.events.folding import fold, ribbon
from app.tape.named_state import StateValues
from bpf.errors import UsageError
from bpf.quantities import bit_rate, clock, counted, duration
from probes.filter import Domain, Filter, RowTable, parse
from probes.filter.hosts import protocol_name
from probes.filter.owners import EVENTS as FILTERED
from probes.filter.owners import event_table
from probes.flow.services import endpoint
from probes.snapshot import SEVERITIES, Event, host_of
from widgets.status import StatusItem, TonedLine
from widgets.table.table import VirtualTable
from widgets.tones import Tone

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


_TONES = dict(zip(SEVERITIES, (Tone.MUTED, Tone.WARN, Tone.BAD), strict=True))
CLOSED = "closed"
"""Kept for a detail that the user has closed."""
_NOTHING = "nothing has happened yet"
_FILTERED = "no event passes the filter; escape clears it"
_MUTED = "every group is muted; {} lists them"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    events = console.time.frame.events
    return {
        "event.count": len(events),
        "event.groups": len(fold(events)),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }


class EventsScreen(ConsoleScreen):
    """Groups of events in a table below a ribbon of time, and the whole text of one."""

    MODE = "events"
    filter_example = "severity:warning,error source:flow /lost/"
    CSS = """
    EventsScreen.-detail EventDetail { display: block; }
    EventsScreen.-tall.-detail #events { max-height: 60%; }
    EventsScreen.-tall.-detail EventDetail { height: 1fr; max-height: 100%; }
    EventsScreen.-wide EventDetail > #times { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._detailed: bool | None = None
        """Whether the user has opened or closed the detail; None: it is open on a tall screen."""
        self._opened: set[Hashable] = set()
        """Keys of the groups whose events are listed."""
        self._lists_muted = False
        self._filter: Filter = Filter()
        self._about = CulpritCommands(self, "event", self._culprit, self._host)
        self.parts = (self._about,)

    def filtered(self) -> tuple[tuple[Domain, RowTable | None], ...]:
        return ((FILTERED, None),)

    def compose_body(self) -> list[Widget]:
        table = SortedTable(EVENTS, empty=_NOTHING)
        table.holds = lambda: self._has_detail
        return [TonedLine(id="day"), TonedLine(id="ribbon"), table, EventDetail()]

    @property
    def table(self) -> SortedTable:
        return self.query_one(SortedTable)

    def _culprit(self) -> str:
        """Return the filter of the finding of the chosen event, or of the newest of its group."""
        if (line := self._chosen) is None:
            return ""
        texts = [event.text for event in self._events_of(line)]
        frame = self.console.time.frame.of(self._host()) or self.console.time.frame
        for table in reversed(frame.monitor.triggers):
            for row in table.rows[table.rows["found_packets"] > 0]:
                finding = row["finding"].decode(errors="replace")
                if any(finding in text for text in texts):
                    return str(row["filter"].decode(errors="replace"))
        return ""

    def _cause(self) -> str:
        """Return the condition and its values for an event of a policy; else an empty text."""
        event: Event = self._line()["event"]
        frame = self.console.time.frame.of(self._host()) or self.console.time.frame
        found = (
            (abs(table.utc_ns(int(row["at_ns"])) - event.utc_ns), bytes(row["cause"]))
            for table in frame.monitor.triggers
            for row in table.rows
            if event.subject == f"policy {row['policy'].decode()}"
        )
        return min(found, default=(0, b""))[1].decode(errors="replace")

    def _host(self) -> str:
        """The host of the chosen event; empty for the only host."""
        return host_of(line["event"]) if (line := self._chosen) is not None else ""

    @property
    def _chosen(self) -> Any:
        """The line under the cursor, of dtype EVENT_LINE; None for none."""
        source, at = self.table.source, self.table.cursor_index
        if not isinstance(source, EachRow) or at >= source.rows:
            return None
        return source.content[at]

    @staticmethod
    def _events_of(line: Any) -> tuple[Event, ...]:
        return (line["event"],) if line["depth"] else line["group"].events

    def keep(self) -> dict[str, str]:
        detail = {True: OPEN, False: CLOSED, None: ""}[self._detailed]
        return super().keep() | {"detail": detail}

    def restore(self, kept: Mapping[str, str]) -> None:
        super().restore(kept)
        self._detailed = {OPEN: True, CLOSED: False}.get(kept.get("detail", ""))

    def point_at(self, key: Hashable) -> None:
        """Put the cursor on the group of an event, or of a group's key."""
        groups = fold(self.console.time.frame.events)
        key = next((group.key for group in groups if key in group.events), key)
        self.table.want(key)
        self.set_focus(self.table)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_chosen)

    def show(self) -> None:
        every, marks = self.console.time.frame.events, self.console.event_marks
        passed: Collection[int] | None = None
        if self._filter:
            mask = self._filter.mask(event_table(every)).tolist()
            passed = set(map(id, compress(every, mask)))
        groups = [
            group
            for group in fold(every)
            if passed is None or any(id(event) in passed for event in group.events)
        ]
        muted = [group for group in groups if marks.is_muted(group)]
        shown = groups
        if not self._lists_muted:
            shown = [group for group in groups if not marks.is_muted(group)]
        key = self.console.key_of("event.muted")
        self.table.empty = _NOTHING if not every else _MUTED.format(key) if muted else _FILTERED
        self.table.columns = columns(EVENTS, node={"hidden": not self.console.time.frame.parts})
        self.table.fill(event_rows(shown, self._opened, marks))
        self._show_chosen()
        counts = Counter(event.severity for group in shown for event in group.events)
        count = counted(len(fold(every)), "group")
        passed_of = f"{len(groups)} of " if self._filter else ""
        notes = [StatusItem(passed_of + count, Tone.MUTED, priority=4)]
        notes += [
            StatusItem(str(counts[severity]), _TONES[severity], 4, label=severity)
            for severity in reversed(SEVERITIES)
            if counts[severity]
        ]
        if muted:
            notes.append(StatusItem(str(len(muted)), Tone.MUTED, 3, label=f"muted ({key})"))
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        self.show_notes(*notes)

    def _show_chosen(self) -> None:
        self._show_ribbon()
        self._show_detail()

    def _show_ribbon(self) -> None:
        frame, line = self.console.time.frame, self._chosen
        pieces, cells = self.query_one("#ribbon", TonedLine), self.size.width - RIBBON_MARGIN
        pieces.display = bool(frame.events)
        drawn = ribbon(frame.events, frame.utc_ns, max(1, cells))
        pieces.show(ribbon_pieces(drawn, self._events_of(line) if line is not None else ()))

        day, past = self.query_one("#day", TonedLine), self.console.time.recorded()
        day.display = past is not None
        if past is not None:
            day.show(day_pieces(past.day(), frame.utc_ns, max(2, cells)))

    @property
    def _has_detail(self) -> bool:
        return self.has_class("-tall") if self._detailed is None else self._detailed

    def _show_detail(self) -> None:
        line, table = self._chosen, self.table
        is_shown = line is not None and self._has_detail
        self.set_class(is_shown, "-detail")
        # The detail of a tall screen takes the lines that the table does not need.
        fits = is_shown and self.has_class("-tall")
        table.styles.height = 1 + table.source.rows if fits else "1fr"
        if line is not None and is_shown:
            found = self._culprit()
            culprit = found, self._about.hint if found else ""
            self.query_one(EventDetail).show(line, self.console.time, culprit, self._cause())

    def set_filter(self, text: str) -> None:
        self._filter = parse(text, FILTERED, self.console.settings.filters)

    def do_event_detail(self) -> None:
        self._detailed = not self._has_detail
        self._show_detail()

    def close_detail(self) -> bool:
        # A tall screen has room for the detail: there only the key that opens it closes it.
        if was_open := self._has_detail and not self.has_class("-tall"):
            self.do_event_detail()
        return was_open

    def _line(self) -> Any:
        if (line := self._chosen) is None:
            raise UsageError("there is no event here")
        return line

    def do_event_open(self) -> None:
        line = self._line()
        if not folds(line):
            self.do_event_go()
            return
        self._opened ^= {line["group"].key}
        self.table.move_to(self.table.cursor_index)
        self.show()

    def do_event_acknowledge(self) -> None:
        self.console.event_marks.toggle_acknowledged(self._line()["group"])
        self.show()

    def do_event_mute(self) -> None:
        group = self._line()["group"]
        self.console.event_marks.muted ^= {group.key}
        self.show()

    def do_event_muted(self) -> None:
        self._lists_muted = not self._lists_muted
        self.show()

    def do_event_go(self) -> None:
        event = self._line()["event"]
        programs = {table.probe for table in self.console.time.frame.metrics}
        other = "programs" if event.source in programs else "events"
        about = (screen.name for screen in SCREENS.values() if event.source in screen.probes)
        mode = next(about, other)
        frame = self.console.time.frame_since(event.utc_ns)
        self.console.time.pause_at(frame, f"event of {clock(event.utc_ns)}")
        if mode == "events":
            self.console.refresh_view()
        else:
            # The next screen draws the moment.
            self.app.switch_mode(mode)

    @on(VirtualTable.RowSelected)
    async def _row_selected(self) -> None:
        await self.console.action_command("event.open")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_chosen()
