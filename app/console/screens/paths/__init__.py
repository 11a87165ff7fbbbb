"""Screen 2: traced paths, and the hops of one."""

from app.console.screens.info import ScreenInfo
from app.console.screens.paths.columns import DESTINATIONS, HOP_CHANGES, HOPS, UNTRACED
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "paths", "2", "Paths", "app.console.screens.paths.screen:PathsScreen",
    tables=(HOPS, HOP_CHANGES, DESTINATIONS, UNTRACED),
    blocks=("hops",),
    probes=("path",),
    first_states="app.console.screens.paths.screen:first_states",
    states=(
        NamedState("path.count", StateKind.COUNT, "destinations whose paths are traced"),
        NamedState("path.destination", StateKind.TEXT, "address of the chosen path"),
        NamedState("path.hops", StateKind.COUNT, "listed routers of that path"),
        NamedState("path.answering", StateKind.COUNT, "routers of that path that answered"),
        NamedState("path.rtt", StateKind.TIME, "round-trip time of the flow itself"),
        NamedState("path.loss", StateKind.SHARE, "loss to the destination, over the last minute"),
        NamedState("path.samples", StateKind.COUNT, "round trips of the flow in the last minute"),
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
)  # fmt: skip
