"""Commands of the registry as keys of the console."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from app.commands import REGISTRY


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
