"""Screen 7, with a fleet: its hosts, and which of them the other screens show."""

from app.console.screens.hosts.columns import FLEET
from app.console.screens.info import ScreenInfo
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "hosts", "7", "Hosts", "app.console.screens.hosts.screen:HostsScreen", is_heavy=True,
    tables=(FLEET,),
    first_states="app.console.screens.hosts.screen:first_states",
    signs=("Of hosts", (("●", "Chosen: the other screens show it"),
                        ("▸", "Programs are of this one, where several are chosen"))),
    states=(
        NamedState("host.total", StateKind.COUNT, "hosts of the fleet"),
        NamedState("host.count", StateKind.COUNT, "hosts that pass the filter"),
        NamedState("host.up", StateKind.COUNT, "hosts whose numbers count: up, or slow"),
        NamedState("host.chosen", StateKind.TEXT, "names of the chosen hosts"),
        NamedState("host.missing", StateKind.COUNT, "chosen hosts whose numbers lack"),
        NamedState("host.filter", StateKind.TEXT, "filter of the table"),
        NamedState("host.selected", StateKind.TEXT, "host under the cursor"),
        NamedState("host.state.", StateKind.TEXT, "state of the host of that name"),
        NamedState("host.report.", StateKind.TEXT, "outcome of the last change there: done"),
    ),
)  # fmt: skip
