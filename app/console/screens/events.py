"""Screen 6: what happened, newest first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import UTC, datetime

from textual.widget import Widget

from app.console.screens.base import DeckScreen, counted
from probes.snapshot import Event
from widgets.columns import Column
from widgets.rows import Tones
from widgets.status import StatusItem
from widgets.table import VirtualTable
from widgets.tones import Tone

COLUMNS = (
    Column("time", "Time (UTC)", 12),
    Column("severity", "Severity", 8, priority=1),
    Column("source", "Source", 12, priority=2),
    Column("text", "Event", 40, grows=True),
)
_TONES = {"info": Tone.NORMAL, "warning": Tone.WARN, "error": Tone.BAD}


class EventRows:
    """A RowSource over events, newest first."""

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
        event = self._events[index]
        time = datetime.fromtimestamp(event.utc_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
        return time, event.severity, event.source, event.text

    def tones(self, index: int) -> Tones:
        return _TONES[self._events[index].severity]


class EventsScreen(DeckScreen):
    """Events in a table."""

    def compose_body(self) -> list[Widget]:
        return [VirtualTable(COLUMNS, empty="nothing has happened yet", id="events")]

    def show(self) -> None:
        events = self.deck.frame.events
        self.query_one(VirtualTable).show(EventRows(events))
        self.deck.show_notes(StatusItem(counted(len(events), "event"), Tone.MUTED, priority=4))
