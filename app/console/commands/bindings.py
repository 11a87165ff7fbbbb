"""Commands of the registry as keys of the console."""

from __future__ import annotations

from textual.binding import Binding, BindingsMap

from app.config.keymap import BoundKey, Keymap


def is_view(action: str) -> bool:
    """Whether a binding's action is to turn to a screen."""
    return action.startswith("app.command('view.") and not action.endswith(".pause')")


def bindings(keymap: Keymap, screen: str = "") -> BindingsMap:
    """The keys of a screen, or of all; the first one of a command stands in the footer."""
    made, named = [], set()
    for bound in keymap.of(screen):
        command = bound.command
        footer = command.footer if command is not None and command.name not in named else ""
        if command is not None:
            named.add(command.name)
        words = footer or bound.title
        asks = command is not None and command.asks
        made.append(Binding(bound.key, _action(bound), words, show=bool(footer), priority=asks))
    return BindingsMap(made)


def _action(bound: BoundKey) -> str:
    # Textual passes on no more than one parameter of a variable number.
    if bound.keys:
        return f"app.press({','.join(bound.keys)!r})"
    return "app.command({!r})".format("\n".join(bound.lines))
