"""Screen 3: flows in views, sorted and filtered, with a detail of one row."""

from app.console.screens.flows.columns import CHANGES, FLOWS
from app.console.screens.flows.group_columns import GROUP_CHANGES, GROUPS
from app.console.screens.info import ScreenInfo
from app.tape.named_state import NamedState, StateKind

SCREEN = ScreenInfo(
    "flows", "3", "Flows", "app.console.screens.flows.screen:FlowsScreen",
    tables=(*GROUPS, FLOWS, CHANGES, GROUP_CHANGES),
    blocks=("traffic", "conversations", "hosts", "services"),
    probes=("flow",),
    first_states="app.console.screens.flows.screen:first_states",
    states=(
        NamedState("flow.total", StateKind.COUNT, "known flows"),
        NamedState("flow.count", StateKind.COUNT, "flows that pass the filter"),
        NamedState("flow.view", StateKind.TEXT, "view: directions, conversations, hosts, ..."),
        NamedState("flow.opened", StateKind.TEXT, "opened group; empty if none is"),
        NamedState("flow.group", StateKind.TEXT, "group under the cursor"),
        NamedState("flow.filter", StateKind.TEXT, "filter of the table"),
        NamedState("flow.capture", StateKind.TEXT, "filter of the counted flows"),
        NamedState("flow.sort", StateKind.TEXT, "column of the order"),
        NamedState("flow.order", StateKind.TEXT, "its direction", ("ascending", "descending")),
        NamedState("flow.source", StateKind.TEXT, "source of the row, or its local end"),
        NamedState("flow.destination", StateKind.TEXT, "destination of the row, or its remote end"),
        NamedState("flow.protocol", StateKind.TEXT, "protocol of the row: tcp"),
        NamedState("flow.rate", StateKind.RATE, "rate of the row under the cursor"),
        NamedState("flow.process", StateKind.TEXT, "process of the row; empty if unknown"),
        NamedState("flow.pid", StateKind.TEXT, "its number"),
        NamedState("flow.user", StateKind.TEXT, "user of the process"),
        NamedState("flow.unit", StateKind.TEXT, "systemd's unit of the process"),
        NamedState("flow.container", StateKind.TEXT, "container of the process"),
        NamedState("flow.pod", StateKind.TEXT, "pod of the process"),
        NamedState("flow.limit", StateKind.TEXT, "what limits the row's connection: receiver"),
        NamedState("flow.owned", StateKind.SHARE, "bytes with an owner, of the last window"),
        NamedState("flow.explanation", StateKind.TEXT, "first sentence of the page that explains"),
        NamedState("flow.detail", StateKind.FLAG, "whether the detail is open"),
    ),
)  # fmt: skip
