"""Named state: what tapes can wait for and expect, by name. The console says what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from app.console.screens import SCREENS
from bpf.errors import did_you_mean

StateValue: TypeAlias = "str | float | bool | None"
"""What a name stands for; None where there is no such thing now."""


class StateKind(StrEnum):
    """What the values are, in a word."""

    TEXT = "text"
    FLAG = "true or false"
    COUNT = "a number"
    RATE = "bit/s"
    TIME = "a time"
    """Seconds."""
    SHARE = "a share"
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class NamedState:
    """One name."""

    name: str
    kind: StateKind
    help: str
    choices: tuple[str, ...] = ()
    """What a text can be; empty for any."""


PROGRAM_STATES = (
    "none", "running", "edited", "checking", "ready", "failed", "changing", "ended",
)  # fmt: skip
TRIGGER_STATES = ("off", "armed", "active", "hold", "cooldown")
_T, _F, _C, _R, _S = (
    StateKind.TEXT,
    StateKind.FLAG,
    StateKind.COUNT,
    StateKind.RATE,
    StateKind.SHARE,
)
STATES = {
    each.name: each
    for each in (
        NamedState("view", _T, "the screen in front", tuple(SCREENS)),
        NamedState("paused", _F, "whether the view is frozen"),
        NamedState("busy", _F, "whether a command is not done yet"),
        NamedState("read_only", _F, "whether changes are refused"),
        NamedState("theme", _T, "the colours", ("dark", "light")),
        NamedState("width", _C, "columns of the screen"),
        NamedState("height", _C, "lines of the screen"),
        NamedState("message", _T, "the last message in the corner"),
        NamedState("windows", _C, "windows that were measured"),
        NamedState("generation", _C, "of the program that measured the last window"),
        NamedState("rate", _R, "of all flows together"),
        NamedState("lost", _C, "packets, or results of probes, lost since the start"),
        NamedState("flow.total", _C, "flows that are known"),
        NamedState("flow.count", _C, "flows that pass the filter"),
        NamedState("flow.filter", _T, "the filter of what is shown"),
        NamedState("flow.capture", _T, "the filter of what is counted"),
        NamedState("flow.sort", _T, "the column that flows are sorted by"),
        NamedState("flow.order", _T, "of that column", ("ascending", "descending")),
        NamedState("flow.source", _T, "of the flow under the cursor: 10.0.0.1:40001"),
        NamedState("flow.destination", _T, "of the flow under the cursor"),
        NamedState("flow.protocol", _T, "of the flow under the cursor: tcp"),
        NamedState("flow.rate", _R, "of the flow under the cursor"),
        NamedState("flow.detail", _F, "whether the flow's detail is open"),
        NamedState("path.count", _C, "destinations whose paths are traced"),
        NamedState("path.destination", _T, "the address whose path is looked at"),
        NamedState("path.hops", _C, "hops of that path that are listed"),
        NamedState("path.answering", _C, "hops of it that answered"),
        NamedState("path.rtt", StateKind.TIME, "to its farthest router, over the last seconds"),
        NamedState("path.loss", _S, "on the way there, over the last minute"),
        NamedState("trigger.count", _C, "policies of the monitor"),
        NamedState("trigger.active", _C, "policies whose applications run"),
        NamedState("trigger.selected", _T, "the policy under the cursor"),
        NamedState("trigger.flows", _C, "distinct flows in the monitor's last window"),
        NamedState("program.count", _C, "probes"),
        NamedState("program.probe", _T, "the probe whose source is looked at"),
        NamedState("program.state", _T, "of that source", PROGRAM_STATES),
        NamedState("program.generation", _C, "of that probe"),
        NamedState("program.problems", _C, "errors and warnings in that source"),
        NamedState("event.count", _C, "events"),
        NamedState("event.errors", _C, "events that are errors"),
        NamedState("event.last", _T, "text of the newest event"),
        NamedState("prompt", _T, "the command that a value is asked for; empty: none"),
        NamedState("prompt.text", _T, "what stands in that line"),
        NamedState("macro.playing", _T, "the tape that plays; empty: none"),
        NamedState("macro.recording", _T, "the register that is recorded into; empty: none"),
    )
}
"""All that have a name of their own."""
FAMILIES = {
    each.name: each
    for each in (
        NamedState("trigger.state.", _T, "of the policy of a name", TRIGGER_STATES),
        NamedState("trigger.value.", _C, "of that policy's condition, in the last window"),
    )
}
"""Those that the name of something follows, by what comes before it."""


def known(name: str) -> NamedState | None:
    """What a name stands for; None where there is no such name."""
    family = next((f for begin, f in FAMILIES.items() if name.startswith(begin) and name != begin),
                  None)  # fmt: skip
    return STATES.get(name) or (replace(family, name=name) if family else None)


def nearest(name: str) -> str:
    """A hint at the name that may be meant."""
    hint = did_you_mean(name, [*STATES, *(f"{begin}NAME" for begin in FAMILIES)])
    # What there is would be a long list.
    return hint if hint.startswith("did you") else "probedeck tape states lists all"
