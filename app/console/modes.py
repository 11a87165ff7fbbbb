"""The screens that are turned to by number keys, made when they are turned to first."""

from __future__ import annotations

from app.console.screen import ConsoleScreen
from app.console.screens.events.screen import EventsScreen
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.triggers.screen import TriggersScreen

_SCREENS = {
    screen.MODE: screen
    for screen in (OverviewScreen, PathsScreen, FlowsScreen, TriggersScreen, EventsScreen)
}


def screen_of(mode: str) -> ConsoleScreen:
    """The screen of a mode."""
    if mode == "programs":
        # An editor and pydantic, which the others do without.
        from app.console.screens.programs.screen import ProgramsScreen

        return ProgramsScreen()
    return _SCREENS[mode]()
