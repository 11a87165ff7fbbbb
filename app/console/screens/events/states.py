"""Values of the named states of screen 6."""

from __future__ import annotations

from app.console.protocol import Console
from app.tape.named_state import StateValues


def values(console: Console) -> StateValues:
    """Return the values before the user has turned to the screen."""
    events = console.frame.events
    return {
        "event.count": len(events),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }
