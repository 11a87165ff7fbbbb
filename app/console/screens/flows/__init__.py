"""Screen 3: flows, sorted and filtered, with a detail of one."""

from app.console.screens.flows.columns import CHANGES, FLOWS
from app.console.screens.info import ScreenInfo
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "flows", "3", "Flows", "app.console.screens.flows.screen:FlowsScreen",
    tables=(FLOWS, CHANGES),
    blocks=("traffic", "flows"),
    probes=("flow",),
    first_states="app.console.screens.flows.screen:first_states",
    states=(
        NamedState("flow.total", StateKind.COUNT, "known flows"),
        NamedState("flow.count", StateKind.COUNT, "flows that pass the filter"),
        NamedState("flow.filter", StateKind.TEXT, "filter of the table"),
        NamedState("flow.capture", StateKind.TEXT, "filter of the counted flows"),
        NamedState("flow.sort", StateKind.TEXT, "column of the order"),
        NamedState("flow.order", StateKind.TEXT, "its direction", ("ascending", "descending")),
        NamedState("flow.source", StateKind.TEXT, "source of the flow under the cursor"),
        NamedState("flow.destination", StateKind.TEXT, "destination of the flow under the cursor"),
        NamedState("flow.protocol", StateKind.TEXT, "protocol of the flow under the cursor: tcp"),
        NamedState("flow.rate", StateKind.RATE, "rate of the flow under the cursor"),
        NamedState("flow.detail", StateKind.FLAG, "whether the flow's detail is open"),
    ),
)  # fmt: skip
