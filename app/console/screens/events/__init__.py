"""Screen 6: events, newest first."""

from app.console.screens.events.columns import EVENTS
from app.console.screens.info import ScreenInfo

SCREEN = ScreenInfo(
    "events",
    "6",
    "Events",
    "app.console.screens.events.screen:EventsScreen",
    tables=(EVENTS,),
)
