"""The named states of the console. The states of a screen stand in its folder."""

from __future__ import annotations

from dataclasses import replace

from app.console.screens import SCREENS
from app.tape.named_state import NamedState, StateKind
from bpf.errors import did_you_mean

_T, _F, _C = StateKind.TEXT, StateKind.FLAG, StateKind.COUNT


def states() -> dict[str, NamedState]:
    own = (
        NamedState("view", _T, "screen in front", tuple(SCREENS)),
        NamedState("paused", _F, "whether the view is frozen"),
        NamedState("busy", _F, "whether a command still runs"),
        NamedState("read_only", _F, "whether changes are refused"),
        NamedState("theme", _T, "colors", ("dark", "light")),
        NamedState("width", _C, "columns of the screen"),
        NamedState("height", _C, "lines of the screen"),
        NamedState("message", _T, "last message in the corner"),
        NamedState("windows", _C, "measured windows"),
        NamedState("generation", _C, "generation of the program that measured the last window"),
        NamedState("rate", StateKind.RATE, "rate of all flows together"),
        NamedState("lost", _C, "packets, or results of probes, lost since the start"),
        NamedState("prompt", _T, "command that asks for a value; empty: none"),
        NamedState("prompt.text", _T, "text of that line"),
        NamedState("macro.playing", _T, "tape that plays; empty: none"),
        NamedState("macro.recording", _T, "register of the recording; empty: none"),
    )
    of_screens = (state for screen in SCREENS.values() for state in screen.states)
    return {state.name: state for state in (*own, *of_screens)}


def known(name: str) -> NamedState | None:
    for state in states().values():
        if state.name.endswith(".") and name.startswith(state.name) and name != state.name:
            return replace(state, name=name)
    return None if name.endswith(".") else states().get(name)


def nearest(name: str) -> str:
    names = [f"{each}NAME" if each.endswith(".") else each for each in states()]
    return did_you_mean(name, names, "probedeck tape states lists all")
