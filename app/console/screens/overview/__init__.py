"""Screen 1: whether every probe measures, the traffic, the worst hops, the active policies."""

from app.console.screens.info import ScreenInfo

SCREEN = ScreenInfo(
    "overview", "1", "Overview", "app.console.screens.overview.screen:OverviewScreen",
)  # fmt: skip
