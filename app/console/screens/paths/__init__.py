"""Screen 2: traced paths, and the hops of one."""

from app.console.screens.info import ScreenInfo
from app.console.screens.paths.columns import DESTINATIONS, HOP_CHANGES, HOPS

SCREEN = ScreenInfo(
    "paths",
    "2",
    "Paths",
    "app.console.screens.paths.screen:PathsScreen",
    tables=(
        HOPS,
        HOP_CHANGES,
        DESTINATIONS,
    ),
    signs=(
        "On the time line",
        (
            ("◆", "The route changed"),
            ("\N{MULTIPLICATION SIGN}", "Every probe was lost"),
            ("a hanging bar", "Some probes were lost"),
            ("host +1", "One other router answers too"),
        ),
    ),
)
