"""Groups of events that the user has acknowledged or muted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from app.events.folding import EventGroup, fold
from probes.snapshot import Event

_Key = tuple[str, str]
"""`EventGroup.key`."""


class EventMarks:
    """The console's state about groups of events; a layout keeps it."""

    def __init__(self) -> None:
        self._muted: set[_Key] = set()
        self._acknowledged: dict[_Key, int] = {}
        """UTC nanoseconds of the newest acknowledged event."""

    def is_muted(self, group: EventGroup) -> bool:
        return group.key in self._muted

    def is_acknowledged(self, group: EventGroup) -> bool:
        """Whether no event as severe as the group's worst has come since the user saw it."""
        return group.worst_ns <= self._acknowledged.get(group.key, -1)

    def unmuted(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """Return the events (newest first) of the groups that are not muted."""
        if not self._muted:
            return events
        muted = {id(e) for group in fold(events) if self.is_muted(group) for e in group.events}
        return tuple(event for event in events if id(event) not in muted)

    def toggle_muted(self, group: EventGroup) -> None:
        self._muted ^= {group.key}

    def toggle_acknowledged(self, group: EventGroup) -> None:
        if self.is_acknowledged(group):
            del self._acknowledged[group.key]
        else:
            self._acknowledged[group.key] = group.last_ns

    def keep(self) -> dict[str, str]:
        """Return the marks for a layout."""
        acknowledged = [[*key, at] for key, at in sorted(self._acknowledged.items())]
        return {"muted": json.dumps(sorted(self._muted)), "acknowledged": json.dumps(acknowledged)}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore values of another form."""
        with suppress(ValueError, TypeError):
            muted = json.loads(kept.get("muted", "[]"))
            acknowledged = json.loads(kept.get("acknowledged", "[]"))
            self._muted = {(str(source), str(cause)) for source, cause in muted}
            self._acknowledged = {(str(s), str(cause)): int(at) for s, cause, at in acknowledged}
