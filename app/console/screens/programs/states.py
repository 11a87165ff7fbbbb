"""Values of the named states of screen 5."""

from __future__ import annotations

from app.console.protocol import Console
from app.console.screens.programs.model import Programs, Slot
from app.tape.named_state import StateValues


def values(console: Console) -> StateValues:
    """Return the values before the user has turned to the screen."""
    return {"program.count": 0, "program.state": "none"}


def of_program(programs: Programs, slot: Slot | None, doing: str) -> StateValues:
    """Return the values about the chosen source; `doing` is the state of a change or a check."""
    values: StateValues = {"program.count": len(programs.infos), "program.state": "none"}
    if slot is None or slot.probe not in programs.infos:
        return values
    info, verdict = programs.infos[slot.probe], programs.verdict(slot.probe)
    state = "ended" if info.failure else "running"
    if programs.modified(slot.probe):
        state = "edited"
        if verdict is not None:
            state = "ready" if verdict.check is not None else "failed"
    return values | {
        "program.probe": slot.probe,
        "program.state": doing or state,
        "program.generation": info.generation,
        "program.problems": len(verdict.diagnostics) if verdict is not None else None,
    }
