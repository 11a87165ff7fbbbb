"""Screen 5: programs of every probe, edited, checked, swapped in and rolled back."""

from app.console.screens.info import ScreenInfo
from app.console.screens.programs.columns import PROGRAMS

SCREEN = ScreenInfo(
    "programs",
    "5",
    "Programs",
    "app.console.screens.programs.screen:ProgramsScreen",
    tables=(PROGRAMS,),
)
