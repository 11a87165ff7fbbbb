"""Keys of the console, from the keymap of the commands."""

from __future__ import annotations

from textual.binding import Binding, BindingsMap

from app.config.keymap import Keymap
from widgets.terminal.keybar import Weight

_WEIGHTS = {
    "help.keys": Weight.KEPT, "app.quit": Weight.KEPT, "view.pause": Weight.USUAL,
    "app.palette": Weight.SPARE,
}  # fmt: skip


def weight(action: str) -> Weight:
    """Return the weight of a binding's action in the footer."""
    command = action.removeprefix("app.command('").removesuffix("')")
    usual = Weight.SCREEN if command.startswith("view.") else Weight.OWN
    return _WEIGHTS.get(command, usual)


def is_step_in_time(action: str) -> bool:
    """Whether the action of a binding is a step backwards or forwards in time."""
    return action.startswith(("app.command('time.back", "app.command('time.forward"))


def bindings(keymap: Keymap, screen: str = "") -> BindingsMap:
    """Return the keys of a screen, or of all screens; the footer shows the first of a command."""
    made, named = [], set()
    for bound in keymap.of(screen):
        footer, asks = "", False
        if (command := bound.command) is not None:
            footer, asks = command.footer if command.name not in named else "", command.asks
            named.add(command.name)
        words = footer or bound.title
        # Textual passes only one of a variable number of parameters.
        name, given = ("press", ",".join(bound.keys)) if bound.keys else ("command", bound.lines)
        text = given if isinstance(given, str) else "\n".join(given)
        action = f"app.{name}({text!r})"
        made.append(Binding(bound.key, action, words, show=bool(footer), priority=asks))
    return BindingsMap(made)
