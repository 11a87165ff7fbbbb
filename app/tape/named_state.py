"""A named state: something that tapes wait for and expect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

StateValue: TypeAlias = "str | float | bool | None"
"""Value of a named state; None if it does not exist now."""
StateValues: TypeAlias = "dict[str, StateValue]"
"""Values by name."""


class StateKind(StrEnum):
    """Kind of the values, in a word."""

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
    """One named state. A name with a dot at its end stands for a family of states."""

    name: str
    kind: StateKind
    help: str
    choices: tuple[str, ...] = ()
    """Possible texts; empty for any."""
    meanings: tuple[str, ...] = ()
    """Meanings of the choices; empty if their words say it."""
