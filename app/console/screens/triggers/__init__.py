"""Screen 4: policies of the monitor, and the applications that they wake."""

from app.console.screens.info import ScreenInfo
from app.console.screens.triggers.columns import APPLICATIONS, POLICIES

SCREEN = ScreenInfo(
    "triggers",
    "4",
    "Triggers",
    "app.console.screens.triggers.screen:TriggersScreen",
    tables=(
        POLICIES,
        APPLICATIONS,
    ),
    signs=(
        "Of policies",
        (
            ("▄", "Height of the threshold"),
            ("a ground", "The policy was active then"),
            ("12 k ?", "The verdict is not sure"),
            ("-3 s", "Time left in this state"),
            ("forced", "The user activated it"),
        ),
    ),
)
