"""Marks of the user's: pinned maps, and acknowledged or muted events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from app.events.folding import EventGroup, fold
from probes.snapshot import Event

Pin = tuple[str, str, str]
"""Probe, direction, map."""


class Pins:
    """The pinned maps, oldest first; a layout keeps them."""

    def __init__(self) -> None:
        self.maps: tuple[Pin, ...] = ()

    def toggle(self, pin: Pin) -> bool:
        """Pin a map, or unpin it; return whether it is pinned now."""
        pinned = pin not in self.maps
        self.maps = (*(each for each in self.maps if each != pin), *([pin] if pinned else []))
        return pinned

    def keep(self) -> dict[str, str]:
        """Return the pins for a layout."""
        return {"pinned": json.dumps(self.maps)}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore values of another form."""
        with suppress(ValueError, TypeError):
            pins = [tuple(map(str, pin)) for pin in json.loads(kept.get("pinned", "[]"))]
            self.maps = tuple((pin[0], pin[1], pin[2]) for pin in pins if len(pin) == 3)


_Key = tuple[str, str]
"""`EventGroup.key`."""


class EventMarks:
    """The console's state about groups of events; a layout keeps it."""

    def __init__(self) -> None:
        self.muted: set[_Key] = set()
        self._acknowledged: dict[_Key, int] = {}
        """UTC nanoseconds of the newest acknowledged event."""
        self._unmuted: tuple[tuple[Event, ...], frozenset[_Key], tuple[Event, ...]] | None = None
        """Argument, muted keys and result of the last `unmuted`."""

    def is_muted(self, group: EventGroup) -> bool:
        return group.key in self.muted

    def is_acknowledged(self, group: EventGroup) -> bool:
        """Whether no event as severe as the group's worst has come since the user saw it."""
        return group.worst_ns <= self._acknowledged.get(group.key, -1)

    def unmuted(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """Return the events (newest first) of the groups that are not muted.

        The same tuple gives the same result, for which `fold` has a cache.
        """
        if not self.muted:
            return events
        last = self._unmuted
        if last is None or last[0] is not events or last[1] != self.muted:
            muted = {id(e) for group in fold(events) if self.is_muted(group) for e in group.events}
            left = tuple(event for event in events if id(event) not in muted)
            self._unmuted = last = events, frozenset(self.muted), left
        return last[2]

    def toggle_acknowledged(self, group: EventGroup) -> None:
        if self.is_acknowledged(group):
            del self._acknowledged[group.key]
        else:
            self._acknowledged[group.key] = group.last_ns

    def keep(self) -> dict[str, str]:
        """Return the marks for a layout."""
        acknowledged = [[*key, at] for key, at in sorted(self._acknowledged.items())]
        return {"muted": json.dumps(sorted(self.muted)), "acknowledged": json.dumps(acknowledged)}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore values of another form."""
        with suppress(ValueError, TypeError):
            muted = json.loads(kept.get("muted", "[]"))
            acknowledged = json.loads(kept.get("acknowledged", "[]"))
            self.muted = {(str(source), str(cause)) for source, cause in muted}
            self._acknowledged = {(str(s), str(cause)): int(at) for s, cause, at in acknowledged}
