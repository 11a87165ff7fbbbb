"""The one registry of commands: keys, palette and help all go through their names."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

PRINTABLE = {"slash": "/", "question_mark": "?", "space": " "}
"""Characters of keys that have a longer name with Textual."""
_SPOKEN = {**PRINTABLE, "space": "space", "escape": "esc"}


@dataclass(frozen=True, slots=True)
class Command:
    """Something that an operator can have done.

    It is done by the method `do_NAME`, dots as underscores, of the screen or of the app.
    """

    name: str
    """Dotted, such as `flow.sort`."""
    title: str
    """What it does, in a few words."""
    keys: str = ""
    """Keys by comma, in Textual's names; empty for none."""
    screen: str = ""
    """The screen that has it; empty for those that are everywhere."""
    footer: str = ""
    """Its word in the footer; empty where it is not shown there."""

    writes: bool = False
    """Whether it changes what runs, which a read-only console refuses."""
    asks: bool = False
    """Whether it opens a line to type into. Its key then acts at once, so that what is typed ahead
    goes into that line and is not taken for commands."""

    @property
    def method(self) -> str:
        return "do_" + self.name.replace(".", "_")

    @property
    def keys_text(self) -> str:
        """Its keys as an operator calls them."""
        return ", ".join(_SPOKEN.get(key, key) for key in self.keys.split(","))


REGISTRY: dict[str, Command] = {
    entry.name: entry
    for entry in (
        Command("view.paths", "Paths", "2", footer="Paths"),
        Command("view.flows", "Flows", "3", footer="Flows"),
        Command("view.triggers", "Triggers", "4", footer="Triggers"),
        Command("view.programs", "Programs", "5", footer="Probes"),
        Command("view.events", "Events", "6", footer="Events"),
        Command("view.pause", "Pause the view, not counting", "space", footer="Pause"),
        Command("probe.info", "Programs: run time and memory", "i"),
        Command("help.keys", "Keys of this screen", "question_mark", footer="Keys"),
        Command("app.palette", "All commands", "ctrl+p", footer="Commands"),
        Command("app.redraw", "Draw the screen again", "ctrl+l"),
        Command("app.theme", "Light or dark", "t"),
        Command("app.quit", "Quit", "q", footer="Quit"),
        Command(
            "flow.filter", "Filter what is shown", "slash", "flows", footer="Filter", asks=True
        ),
        Command("flow.clear", "Close, or clear the filter", "escape", "flows"),
        Command("flow.sort", "Sort by the next column", "s", "flows", footer="Sort"),
        Command("flow.reverse", "Reverse the order", "S", "flows"),
        Command("flow.trace", "Trace the path of the flow", "", "flows", writes=True),
        Command("flow.detail", "Detail of the flow", "d", "flows", footer="Detail"),
        Command("flow.top", "Back to the top, and stay there", "", "flows"),
        Command(
            "flow.capture", "Choose which flows are counted", "C", "flows", writes=True, asks=True
        ),
        Command("path.trace", "Trace a destination", "T", "paths", "Trace", writes=True, asks=True),
        Command("path.untrace", "Stop tracing it", "x", "paths", footer="Stop", writes=True),
        Command("path.next", "Next destination or flow", "n", "paths", footer="Next"),
        Command("path.previous", "Destination or flow before", "p", "paths"),
        Command("path.detail", "Detail of the hop", "", "paths"),
        Command("path.leave", "Close the detail", "escape", "paths"),
        Command("path.names", "Names or addresses", "a", "paths"),
        Command("trigger.detail", "Detail", "", "triggers"),
        Command("trigger.toggle", "Activate the policy, or end it", "o", "triggers", "On/off",
                writes=True),
        Command("trigger.add", "Add a policy", "a", "triggers", "Add", writes=True, asks=True),
        Command("trigger.change", "Change the policy", "e", "triggers", writes=True, asks=True),
        Command("trigger.remove", "Remove the policy", "x", "triggers", writes=True),
        Command("trigger.sort", "Sort by the next column", "s", "triggers", "Sort"),
        Command("trigger.next", "Application's next table", "n", "triggers"),
        Command("trigger.previous", "Application's table before", "p", "triggers"),
        Command("trigger.leave", "Close the detail", "escape", "triggers"),
        Command("program.edit", "Edit the source", "", "programs"),
        Command("program.leave", "Back to the list", "escape", "programs", footer="List"),
        Command("program.next_direction", "The probe's other direction", "f2", "programs"),
        Command("program.panel", "Next panel", "f3", "programs"),
        Command("program.next_error", "Next problem", "f4", "programs"),
        Command("program.compile", "Compile and verify", "f5", "programs", footer="Check"),
        Command("program.swap", "Swap in what is edited", "f8", "programs", "Swap", writes=True),
        Command(
            "program.rollback", "Back to the generation before", "f9", "programs", "Roll back",
            writes=True,
        ),
        Command("program.save", "Write the source to a file", "ctrl+s", "programs"),
        Command("program.external", "Open the source in $EDITOR", "ctrl+o", "programs"),
        Command("program.revert", "Back to the source that runs", "ctrl+r", "programs"),
        Command("program.problems", "Problems of the source", "p", "programs"),
        Command("program.log", "Verifier's log; again: whole", "l", "programs"),
        Command("program.diff", "Difference to what runs", "d", "programs"),
        Command("program.report", "What a swap keeps and loses", "r", "programs"),
        Command("program.metrics", "Metrics of the last window", "n", "programs"),
        Command("program.events", "Events of the probe", "v", "programs"),
        Command("program.cost", "Measure the time per packet", "m", "programs"),
        Command("probe.add", "Add a probe from a file", "a", "programs", writes=True),
        Command("probe.remove", "Remove the probe", "x", "programs", writes=True),
        Command("probe.export", "End the window, export it", "e", "programs", writes=True),
    )
}  # fmt: skip
"""Every command by its name."""


def is_view(action: str) -> bool:
    """Whether a binding's action is to turn to a screen."""
    return action.startswith("app.command('view.") and not action.endswith(".pause')")


def bindings(screen: str = "") -> list[BindingType]:
    """Bindings of a screen's commands, or of those that are everywhere."""
    return [
        Binding(
            entry.keys,
            f"app.command('{entry.name}')",
            entry.footer or entry.title,
            id=entry.name,
            show=bool(entry.footer),
            priority=entry.asks,
        )
        for entry in REGISTRY.values()
        if entry.screen == screen and entry.keys
    ]
