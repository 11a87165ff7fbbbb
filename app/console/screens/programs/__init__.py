"""Screen 5: programs of every probe, edited, checked, swapped in and rolled back."""

from app.console.screens.info import ScreenInfo
from app.console.screens.programs.columns import MAPS, PROGRAMS
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "programs", "5", "Programs", "app.console.screens.programs.screen:ProgramsScreen",
    is_heavy=True,  # an editor and pydantic
    tables=(PROGRAMS, MAPS),
    blocks=("health", "pinned"),
    first_states="app.console.screens.programs.model:first_states",
    states=(
        NamedState("program.count", StateKind.COUNT, "probes"),
        NamedState("program.probe", StateKind.TEXT, "probe of the visible source"),
        NamedState("program.state", StateKind.TEXT, "state of that source", (
            "none", "running", "edited", "checking", "ready", "failed", "changing", "ended"), (
            "no source is open", "the source that runs", "differs from the source that runs",
            "the compiler works", "edited, and the verifier accepts it", "edited, with errors",
            "a swap is under way", "the probe was removed")),
        NamedState("program.generation", StateKind.COUNT, "generation of that probe"),
        NamedState("program.problems", StateKind.COUNT, "errors and warnings in that source"),
    ),
)  # fmt: skip
