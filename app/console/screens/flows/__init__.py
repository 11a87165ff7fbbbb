"""Screen 3: flows, sorted and filtered, with a detail of one."""

from app.console.screens.flows.columns import CHANGES, FLOWS
from app.console.screens.info import ScreenInfo

SCREEN = ScreenInfo(
    "flows",
    "3",
    "Flows",
    "app.console.screens.flows.screen:FlowsScreen",
    tables=(
        FLOWS,
        CHANGES,
    ),
)
