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
        Command("view.flows", "Flows", "3", footer="Flows"),
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
        Command("flow.detail", "Detail of the flow", "", "flows"),
        Command("flow.top", "Back to the top, and stay there", "", "flows"),
        Command("flow.capture", "Choose which flows are counted", "C", "flows", asks=True),
    )
}
"""Every command by its name."""


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
