"""Screen 6: a ribbon of time, and events in groups; Enter turns to the moment of an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from itertools import compress
from typing import Any

from textual import on
from textual.widget import Widget

from app.console.culprit import CulpritCommands
from app.console.live.day import day_pieces
from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS
from app.console.screens.events.columns import EVENTS, folds
from app.console.screens.events.detail import EventDetail
from app.console.screens.events.rows import (
    RIBBON_MARGIN,
    event_rows,
    ribbon_pieces,
)
from app.console.tables.array_rows import EachRow
from app.console.tables.sorted_table import OPEN, SortedTable
from app.console.tables.spec import columns
from app.events.folding import fold, ribbon
from app.tape.named_state import StateValues
from bpf.errors import UsageError
from bpf.quantities import clock, counted
from probes.filter import Domain, Filter, RowTable, parse
from probes.filter.owners import EVENTS as FILTERED
from probes.filter.owners import event_table
from probes.snapshot import SEVERITIES, Event, host_of
from widgets.status import StatusItem, TonedLine
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_TONES = dict(zip(SEVERITIES, (Tone.MUTED, Tone.WARN, Tone.BAD), strict=True))
CLOSED = "closed"
"""Kept for a detail that the user has closed."""
_NOTHING = "nothing has happened yet"
_FILTERED = "no event passes the filter; escape clears it"
_MUTED = "every group is muted; {} lists them"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    events = console.frame.events
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
        frame = self.console.frame.of(self._host()) or self.console.frame
        for table in reversed(frame.monitor.triggers):
            for row in table.rows[table.rows["found_packets"] > 0]:
                finding = row["finding"].decode(errors="replace")
                if any(finding in text for text in texts):
                    return str(row["filter"].decode(errors="replace"))
        return ""

    def _cause(self) -> str:
        """Return the condition and its values for an event of a policy; else an empty text."""
        event: Event = self._line()["event"]
        frame = self.console.frame.of(self._host()) or self.console.frame
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
        groups = fold(self.console.frame.events)
        key = next((group.key for group in groups if key in group.events), key)
        self.table.want(key)
        self.set_focus(self.table)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_chosen)

    def show(self) -> None:
        every, marks = self.console.frame.events, self.console.event_marks
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
        self.table.columns = columns(EVENTS, node={"hidden": not self.console.frame.parts})
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
        frame, line = self.console.frame, self._chosen
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
        await self.console.action_command("event.open")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_chosen()
