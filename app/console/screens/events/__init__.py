"""Screen 6: events, newest first."""

from app.console.screens.events.columns import EVENTS
from app.console.screens.info import ScreenInfo
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "events", "6", "Events", "app.console.screens.events.screen:EventsScreen",
    tables=(EVENTS,),
    blocks=("warnings", "events"),
    first_states="app.console.screens.events.screen:first_states",
    signs=(
        "Of events",
        (
            ("▁ ▄ █", "info, warning, error"),
            ("◆", "Times of the row under the cursor"),
            ("▸ 12", "Twelve times; Enter lists the events"),
            ("✓", "Acknowledged"),
        ),
    ),
    states=(
        NamedState("event.count", StateKind.COUNT, "events"),
        NamedState("event.groups", StateKind.COUNT, "groups of events of one cause"),
        NamedState("event.errors", StateKind.COUNT, "events that are errors"),
        NamedState("event.last", StateKind.TEXT, "text of the newest event"),
    ),
)  # fmt: skip
