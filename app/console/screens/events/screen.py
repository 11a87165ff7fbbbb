"""Screen 6: events, newest first; Enter turns to the moment of an event."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import compress

from textual import on
from textual.widget import Widget
from textual.widgets import Static

from app.console.culprit import CulpritCommands
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, counted
from app.console.screens import SCREENS
from app.console.screens.events.columns import EVENTS
from app.console.tables.sorted_table import OPEN, SortedTable
from app.tape.named_state import StateValues
from bpf.errors import UsageError
from probes.filter import Domain, Filter, RowTable, parse
from probes.filter.events import EVENTS as FILTERED
from probes.filter.events import event_table
from probes.snapshot import SEVERITIES, Event
from widgets.format import REPLACED, clock, safe
from widgets.status import StatusItem
from widgets.table.rows import Tones, Value, order
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_TONES = dict(zip(SEVERITIES, (Tone.NORMAL, Tone.WARN, Tone.BAD), strict=True))
_NOTHING = "nothing has happened yet"
_FILTERED = "no event passes the filter; escape clears it"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    events = console.frame.events
    return {
        "event.count": len(events),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }


class EventRows:
    """A ValueSource over events, newest first."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    @property
    def rows(self) -> int:
        return len(self._events)

    def key(self, index: int) -> Hashable:
        return self._events[index]

    def index(self, key: Hashable) -> int | None:
        return next((n for n, event in enumerate(self._events) if event == key), None)

    def cells(self, index: int) -> Sequence[str]:
        return [column.cell(self._events[index]) for column in EVENTS.columns]

    def tones(self, index: int) -> Tones:
        return _TONES[self._events[index].severity]

    def values(self, position: int) -> Sequence[Value]:
        column = EVENTS.columns[position]
        return list(map(column.value or column.cell, self._events))

    def ordered(self, position: int, *, descending: bool) -> EventRows:
        column = EVENTS.columns[position]
        of = list(map(column.rank or column.cell, self._events))
        return EventRows([self._events[at] for at in order(of, descending=descending)])


class EventsScreen(ConsoleScreen):
    """Events in a table, and the whole text of one."""

    MODE = "events"
    CSS = """
    EventsScreen > #text {
        display: none; height: auto; max-height: 50%; border-top: solid $primary-muted;
        background: $surface; padding: 0 1;
    }
    EventsScreen.-detail > #text { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._detailed = False
        self._filter = Filter()
        self._about = CulpritCommands(self, self._culprit)
        self.parts = (self._about,)

    def filtered(self) -> tuple[tuple[Domain, RowTable | None], ...]:
        return ((FILTERED, None),)

    def compose_body(self) -> list[Widget]:
        return [SortedTable(EVENTS, empty=_NOTHING), Static(markup=False, id="text")]

    @property
    def table(self) -> SortedTable:
        return self.query_one(SortedTable)

    def _culprit(self) -> str:
        """Return the filter of the chosen event's finding; empty without one."""
        event = self._chosen
        for table in reversed(self.console.frame.monitor.triggers) if event else ():
            for row in table.rows[table.rows["found_packets"] > 0]:
                if event and row["finding"].decode(errors="replace") in event.text:
                    return str(row["filter"].decode(errors="replace"))
        return ""

    @property
    def _chosen(self) -> Event | None:
        key = self.table.cursor_key
        return key if isinstance(key, Event) and self.table.source.rows else None

    def keep(self) -> dict[str, str]:
        detail = OPEN if self._detailed else ""
        return super().keep() | {"filter": self._filter.text, "detail": detail}

    def restore(self, kept: Mapping[str, str]) -> None:
        with suppress(UsageError):
            self._filter = parse(kept.get("filter", ""), FILTERED, self.console.settings.filters)
        super().restore(kept)
        self._detailed = kept.get("detail") == OPEN

    def point_at(self, key: Hashable) -> None:
        self.table.want(key)
        self.set_focus(self.table)

    def show(self) -> None:
        every = events = self.console.frame.events
        if self._filter:
            events = tuple(compress(every, self._filter.mask(event_table(every)).tolist()))
        self.table.empty = _FILTERED if every else _NOTHING
        self.table.fill(EventRows(events))
        self._show_detail()
        passed = f"{len(events)} of " if self._filter else ""
        notes = [StatusItem(passed + counted(len(every), "event"), Tone.MUTED, priority=4)]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        self.show_notes(*notes)

    def _show_detail(self) -> None:
        event = self._chosen
        self.set_class(event is not None and self._detailed, "-detail")
        if event is not None:
            lines = [safe(line, REPLACED) for line in event.text.splitlines()]
            if self._detailed and (found := self._culprit()):
                lines.append(f"{safe(found, REPLACED)}: {self._about.hint('event')}")
            self.query_one("#text", Static).update("\n".join(lines))

    do_event_sort = ConsoleScreen.sort_rows
    do_event_reverse = ConsoleScreen.reverse_rows

    def do_event_filter(self, text: str | None = None) -> None:
        if text is None:
            example = "severity:warning,error source:flow /lost/"
            self.prompt.ask("event.filter", "Show only", example, self._filter.text)
            return
        self._filter = parse(text, FILTERED, self.console.settings.filters)
        self.show()

    def do_event_detail(self) -> None:
        self._detailed = not self._detailed
        self._show_detail()

    do_event_leave = ConsoleScreen.leave

    def close_detail(self) -> bool:
        if was_open := self._detailed:
            self.do_event_detail()
        return was_open

    def clear_filter(self) -> bool:
        if was_set := bool(self._filter.text):
            self.do_event_filter("")
        return was_set

    def do_event_go(self) -> None:
        if (event := self._chosen) is None:
            raise UsageError("there is no event here")
        programs = {table.probe for table in self.console.frame.metrics}
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
        await self.console.action_command("event.go")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_detail()
