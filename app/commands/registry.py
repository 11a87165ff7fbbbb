"""Every command there is; those of a screen stand together, in the order in which help has them."""

from __future__ import annotations

from app.commands.model import Command, Kind, Parameter

FLOW_COLUMNS = (
    "rate", "packet_rate", "packets", "bytes", "age", "idle", "source", "destination", "protocol",
    "direction",
)  # fmt: skip
"""What flows can be sorted by, in the order of the sort key."""
TRIGGER_COLUMNS = ("state", "value", "selected", "policy")
"""What policies can be sorted by; else they stay in the order in which they were given."""
THEMES = ("dark", "light")

_FILE = Parameter("file", Kind.FILE)
_POLICY = Parameter("policy", Kind.POLICY)
_PROBE = Parameter("probe", Kind.PROBE)
_FILTER = Parameter("filter", Kind.FILTER, rest=True)

_EVERYWHERE = (
    Command("view.paths", "Paths", "2", footer="Paths"),
    Command("view.flows", "Flows", "3", footer="Flows"),
    Command("view.triggers", "Triggers", "4", footer="Triggers"),
    Command("view.programs", "Programs", "5", footer="Probes"),
    Command("view.events", "Events", "6", footer="Events"),
    Command("view.pause", "Pause the view, not counting", "space", footer="Pause"),
    Command("probe.info", "Programs: run time and memory", "i"),
    Command("help.keys", "Keys of this screen", "question_mark", footer="Keys"),
    Command("help.focus", "What has the focus, explained", "f1"),
    Command("help.tour", "The tour, from its beginning"),
    Command("tour.next", "On the tour: go on", "ctrl+n"),
    Command("tour.end", "End the tour"),
    Command("app.palette", "All commands", "ctrl+p", footer="Commands"),
    Command("app.redraw", "Draw the screen again", "ctrl+l"),
    Command("app.theme", "Light or dark", "t",
            parameters=(Parameter("theme", Kind.CHOICE, THEMES),)),
    Command("app.quit", "Quit", "q", footer="Quit"),
)  # fmt: skip
_FLOWS = (
    Command("flow.filter", "Filter what is shown", "slash", "flows", "Filter", (_FILTER,),
            asks=True),
    Command("flow.clear", "Close, or clear the filter", "escape", "flows"),
    Command("flow.sort", "Sort by the next column", "s", "flows", "Sort",
            (Parameter("column", Kind.COLUMN, FLOW_COLUMNS),)),
    Command("flow.reverse", "Reverse the order", "S", "flows"),
    Command("flow.trace", "Trace the path of the flow", "", "flows", writes=True),
    Command("flow.detail", "Detail of the flow", "d", "flows", "Detail"),
    Command("flow.top", "Back to the top, and stay there", "", "flows"),
    Command("flow.capture", "Choose which flows are counted", "C", "flows", "", (_FILTER,),
            writes=True, asks=True),
)  # fmt: skip
_PATHS = (
    Command("path.trace", "Trace a destination", "T", "paths", "Trace",
            (Parameter("destination", Kind.DESTINATION),), writes=True, asks=True),
    Command("path.untrace", "Stop tracing it", "x", "paths", "Stop",
            (Parameter("destination", Kind.DESTINATION),), writes=True),
    Command("path.next", "Next destination or flow", "n", "paths", "Next"),
    Command("path.previous", "Destination or flow before", "p", "paths"),
    Command("path.detail", "Detail of the hop", "", "paths"),
    Command("path.leave", "Close the detail", "escape", "paths"),
    Command("path.names", "Names or addresses", "a", "paths"),
)  # fmt: skip
_TRIGGERS = (
    Command("trigger.detail", "Detail", "", "triggers"),
    Command("trigger.toggle", "Activate the policy, or end it", "o", "triggers", "On/off",
            (_POLICY,), writes=True),
    Command("trigger.add", "Add a policy", "a", "triggers", "Add",
            (Parameter("policy", rest=True),), writes=True, asks=True),
    Command("trigger.change", "Change the policy", "e", "triggers", "", (_POLICY,), writes=True,
            asks=True),
    Command("trigger.remove", "Remove the policy", "x", "triggers", "", (_POLICY,), writes=True),
    Command("trigger.sort", "Sort by the next column", "s", "triggers", "Sort",
            (Parameter("column", Kind.COLUMN, TRIGGER_COLUMNS),)),
    Command("trigger.next", "Application's next table", "n", "triggers"),
    Command("trigger.previous", "Application's table before", "p", "triggers"),
    Command("trigger.leave", "Close the detail", "escape", "triggers"),
)  # fmt: skip
_PROGRAMS = (
    Command("program.edit", "Edit the source", "", "programs", "", (_PROBE,)),
    Command("program.leave", "Back to the list", "escape", "programs", "List"),
    Command("program.next_direction", "The probe's other direction", "f2", "programs"),
    Command("program.panel", "Next panel", "f3", "programs"),
    Command("program.next_error", "Next problem", "f4", "programs"),
    Command("program.compile", "Compile and verify", "f5", "programs", "Check"),
    Command("program.swap", "Swap in what is edited", "f8", "programs", "Swap", writes=True),
    Command("program.rollback", "Back to the generation before", "f9", "programs", "Roll back",
            (_PROBE,), writes=True),
    Command("program.save", "Write the source to a file", "ctrl+s", "programs", "", (_FILE,)),
    Command("program.external", "Open the source in $EDITOR", "ctrl+o", "programs"),
    Command("program.revert", "Back to the source that runs", "ctrl+r", "programs"),
    Command("program.problems", "Problems of the source", "p", "programs"),
    Command("program.log", "Verifier's log; again: whole", "l", "programs"),
    Command("program.diff", "Difference to what runs", "d", "programs"),
    Command("program.report", "What a swap keeps and loses", "r", "programs"),
    Command("program.metrics", "Metrics of the last window", "n", "programs"),
    Command("program.events", "Events of the probe", "v", "programs"),
    Command("program.cost", "Measure the time per packet", "m", "programs", "", (_PROBE,)),
    Command("probe.add", "Add a probe from a file", "a", "programs", "", (_FILE,), writes=True),
    Command("probe.remove", "Remove the probe", "x", "programs", "", (_PROBE,), writes=True),
    Command("probe.export", "End the window, export it", "e", "programs", "", (_PROBE,),
            writes=True),
)  # fmt: skip

REGISTRY: dict[str, Command] = {
    command.name: command for command in (*_EVERYWHERE, *_FLOWS, *_PATHS, *_TRIGGERS, *_PROGRAMS)
}
"""Every command by its name."""
