"""Screen 6: what happened, newest first."""

from __future__ import annotations

from datetime import UTC, datetime

from textual.widget import Widget

from app.console.screens.base import DeckScreen
from probes.snapshot import Event
from widgets.columns import Column
from widgets.rows import Row, Rows
from widgets.status import StatusItem
from widgets.table import VirtualTable
from widgets.tones import Tone

COLUMNS = (
    Column("time", "Time (UTC)", 12),
    Column("severity", "Severity", 8),
    Column("source", "Source", 12, priority=1),
    Column("text", "Event", 40, grows=True),
)
_TONES = {"info": Tone.NORMAL, "warning": Tone.WARN, "error": Tone.BAD}


class EventsScreen(DeckScreen):
    """Events in a table."""

    def compose_body(self) -> list[Widget]:
        return [VirtualTable(COLUMNS, empty="nothing has happened yet", id="events")]

    def show(self) -> None:
        events = self.deck.state.recent_events()
        rows = Rows.of(_row(len(events) - place, event) for place, event in enumerate(events))
        self.query_one(VirtualTable).show(rows)
        self.deck.show_notes(StatusItem(f"{len(events)} events", Tone.MUTED, priority=7))


def _row(number: int, event: Event) -> Row:
    time = datetime.fromtimestamp(event.utc_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    return Row(
        (event.utc_ns, number),
        (time, event.severity, event.source, event.text),
        _TONES[event.severity],
    )
