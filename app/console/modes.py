"""The screens that are turned to by number keys, made when they are turned to first."""

from __future__ import annotations

from app.console.screens.base import DeckScreen
from app.console.screens.events import EventsScreen
from app.console.screens.flows import FlowsScreen
from app.console.screens.overview import OverviewScreen
from app.console.screens.paths import PathsScreen
from app.console.screens.triggers import TriggersScreen

_SCREENS = {
    screen.MODE: screen
    for screen in (OverviewScreen, PathsScreen, FlowsScreen, TriggersScreen, EventsScreen)
}


def screen_of(mode: str) -> DeckScreen:
    """The screen of a mode."""
    if mode == "programs":
        # An editor and pydantic, which the others do without.
        from app.console.screens.programs import ProgramsScreen

        return ProgramsScreen()
    return _SCREENS[mode]()
