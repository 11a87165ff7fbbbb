"""Descriptions of screens, for other parts of the console."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from app.console.tables.spec import TableSpec
from app.tape.named_state import NamedState, StateValues


@dataclass(frozen=True, slots=True)
class ScreenInfo:
    """One screen. It needs neither numpy nor Textual until `load`."""

    name: str
    """Its name in commands, settings and tapes: `view.NAME` turns to it."""
    key: str
    """The usual key of that command."""
    title: str
    """Title of that command, and word in the footer."""
    path: str
    """Module and class, `app.console.screens.flows.screen:FlowsScreen`."""
    is_heavy: bool = False
    """Whether the console imports the class only when the user turns to the screen."""
    tables: tuple[TableSpec[Any], ...] = ()
    """Tables whose columns settings and commands change."""
    states: tuple[NamedState, ...] = ()
    """Named states for tapes; the screen's `states` has their values."""
    first_states: str = ""
    """Module and function of the values before the user has turned to the screen."""
    blocks: tuple[str, ...] = ()
    """Blocks of the overview that lead to the screen."""
    probes: tuple[str, ...] = ()
    """Probes whose events the screen is about."""
    signs: tuple[str, tuple[tuple[str, str], ...]] | None = None
    """A title, and the signs of the screen with their meanings, for the help on keys."""

    def load(self) -> Any:
        """Import the screen's class, a ConsoleScreen."""
        return _imported(self.path)

    def __call__(self) -> Any:
        """Make the screen, as a mode of Textual's App."""
        return self.load()()

    def values(self, console: object) -> StateValues:
        """Return the values of named states before the user has turned to the screen."""
        found: StateValues = _imported(self.first_states)(console) if self.first_states else {}
        return found


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
