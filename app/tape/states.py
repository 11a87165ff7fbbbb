"""Named state: what tapes can wait for and expect, by name. The console says what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from app.commands.registry import SCREENS
from bpf.errors import did_you_mean

State: TypeAlias = "str | float | bool | None"
"""What a name stands for; None where there is no such thing now."""


class Kind(StrEnum):
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
class Named:
    """One name."""

    name: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    """What a text can be; empty for any."""


PROGRAM_STATES = (
    "none", "running", "edited", "checking", "ready", "failed", "changing", "ended",
)  # fmt: skip
TRIGGER_STATES = ("off", "armed", "active", "hold", "cooldown")
_T, _F, _C, _R, _S = Kind.TEXT, Kind.FLAG, Kind.COUNT, Kind.RATE, Kind.SHARE
STATES = {
    each.name: each
    for each in (
        Named("view", _T, "the screen in front", SCREENS),
        Named("paused", _F, "whether the view is frozen"),
        Named("busy", _F, "whether a command is not done yet"),
        Named("read_only", _F, "whether changes are refused"),
        Named("theme", _T, "the colours", ("dark", "light")),
        Named("width", _C, "columns of the screen"),
        Named("height", _C, "lines of the screen"),
        Named("message", _T, "the last message in the corner"),
        Named("windows", _C, "windows that were measured"),
        Named("generation", _C, "of the program that measured the last window"),
        Named("rate", _R, "of all flows together"),
        Named("lost", _C, "packets, or results of probes, lost since the start"),
        Named("flow.total", _C, "flows that are known"),
        Named("flow.count", _C, "flows that pass the filter"),
        Named("flow.filter", _T, "the filter of what is shown"),
        Named("flow.capture", _T, "the filter of what is counted"),
        Named("flow.sort", _T, "the column that flows are sorted by"),
        Named("flow.order", _T, "of that column", ("ascending", "descending")),
        Named("flow.source", _T, "of the flow under the cursor: 10.0.0.1:40001"),
        Named("flow.destination", _T, "of the flow under the cursor"),
        Named("flow.protocol", _T, "of the flow under the cursor: tcp"),
        Named("flow.rate", _R, "of the flow under the cursor"),
        Named("flow.detail", _F, "whether the flow's detail is open"),
        Named("path.count", _C, "destinations whose paths are traced"),
        Named("path.destination", _T, "the address whose path is looked at"),
        Named("path.hops", _C, "hops of that path that are listed"),
        Named("path.answering", _C, "hops of it that answered"),
        Named("path.rtt", Kind.TIME, "to its farthest router, over the last seconds"),
        Named("path.loss", _S, "on the way there, over the last minute"),
        Named("trigger.count", _C, "policies of the monitor"),
        Named("trigger.active", _C, "policies whose applications run"),
        Named("trigger.selected", _T, "the policy under the cursor"),
        Named("trigger.flows", _C, "distinct flows in the monitor's last window"),
        Named("program.count", _C, "probes"),
        Named("program.probe", _T, "the probe whose source is looked at"),
        Named("program.state", _T, "of that source", PROGRAM_STATES),
        Named("program.generation", _C, "of that probe"),
        Named("program.problems", _C, "errors and warnings in that source"),
        Named("event.count", _C, "events"),
        Named("event.errors", _C, "events that are errors"),
        Named("event.last", _T, "text of the newest event"),
        Named("prompt", _T, "the command that a value is asked for; empty: none"),
        Named("prompt.text", _T, "what stands in that line"),
        Named("macro.playing", _T, "the tape that plays; empty: none"),
        Named("macro.recording", _T, "the register that is recorded into; empty: none"),
    )
}
"""All that have a name of their own."""
FAMILIES = {
    each.name: each
    for each in (
        Named("trigger.state.", _T, "of the policy of a name", TRIGGER_STATES),
        Named("trigger.value.", _C, "of that policy's condition, in the last window"),
    )
}
"""Those that the name of something follows, by what comes before it."""


def known(name: str) -> Named | None:
    """What a name stands for; None where there is no such name."""
    family = next((f for begin, f in FAMILIES.items() if name.startswith(begin) and name != begin),
                  None)  # fmt: skip
    return STATES.get(name) or (replace(family, name=name) if family else None)


def nearest(name: str) -> str:
    """A hint at the name that may be meant."""
    hint = did_you_mean(name, [*STATES, *(f"{begin}NAME" for begin in FAMILIES)])
    # What there is would be a long list.
    return hint if hint.startswith("did you") else "probedeck macro states lists all"
