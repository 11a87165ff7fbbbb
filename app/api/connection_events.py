"""Events about a connection to a controller: the same words for one host and for a fleet."""

from __future__ import annotations

from collections.abc import Iterator

from app.api import wire
from probes.snapshot import Event

_SUBJECT = "connection"


def lost(url: str, why: str) -> Event:
    text = f"connection lost: {why.removeprefix(f'{url}: ')}"
    return Event.now("warning", url, text, _SUBJECT, "begin")


def again(url: str) -> Event:
    text = "connected again; what was published meanwhile is missing"
    return Event.now("info", url, text, _SUBJECT, "end")


def missed(url: str, lost: wire.Lost) -> Iterator[Event]:
    """Yield an event for each probe whose windows are missing, and one for missing events."""
    why = f": {lost.cause}" if lost.cause else " in time"
    for probe, windows in lost.windows.items():
        yield Event.now("warning", url, f"{windows} windows of {probe} did not get through{why}")
    if lost.events:
        yield Event.now("warning", url, f"{lost.events} events did not get through{why}")
