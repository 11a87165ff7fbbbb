"""Screen 4: policies of the monitor, and the applications that they wake."""

from app.console.screens.info import ScreenInfo
from app.console.screens.triggers.columns import APPLICATIONS, POLICIES
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "triggers", "4", "Triggers", "app.console.screens.triggers.screen:TriggersScreen",
    tables=(POLICIES, APPLICATIONS),
    blocks=("policies",),
    probes=("monitor",),
    first_states="app.console.screens.triggers.model:first_states",
    states=(
        NamedState("trigger.count", StateKind.COUNT, "policies of the monitor"),
        NamedState("trigger.active", StateKind.COUNT, "policies whose applications run"),
        NamedState("trigger.selected", StateKind.TEXT, "policy under the cursor"),
        NamedState("trigger.flows", StateKind.COUNT, "distinct flows in the monitor's last window"),
        NamedState("trigger.state.", StateKind.TEXT, "state of the policy NAME",
                   ("off", "armed", "active", "hold", "cooldown")),
        NamedState("trigger.value.", StateKind.COUNT, "value of that policy, of the last window"),
    ),
    signs=(
        "Of policies",
        (
            ("▄ │", "The threshold, in bars and in gauges"),
            ("█ ▁", "Active or not, in the last ten minutes"),
            ("a ground", "The policy was active then"),
            ("12 k ?", "The verdict is not sure"),
            ("-3 s", "Time left in this state"),
            ("forced", "The user activated it"),
        ),
    ),
)  # fmt: skip
