"""Values of the named states of app.tape.states, for tapes."""

from __future__ import annotations

from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS
from app.tape.named_state import StateValue, StateValues


def state_of(console: Console, name: str) -> StateValue:
    """Return the value of a named state; None if it does not exist now."""
    group, dot, _ = name.partition(".")
    values = _console(console) if not dot else {}
    for mode, info in SCREENS.items():
        if dot and any(state.name.startswith(f"{group}.") for state in info.states):
            screen = _screen_of(console, mode)
            values |= info.values(console)
            values |= screen.states() if screen is not None else {}
    return values.get(name)


def _screen_of(console: Console, mode: str) -> ConsoleScreen | None:
    """Return a mode's screen, if the user has turned to it."""
    try:
        screen = console.app.get_screen_stack(mode)[0]
    except (KeyError, IndexError):
        return None
    return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None


def _console(console: Console) -> StateValues:
    last, app = console.frame.last, console.app
    return {
        "view": app.current_mode,
        "paused": console.time.paused,
        "busy": console.tasks.busy,
        "read_only": bool(console.plane.read_only),
        "theme": "dark" if app.current_theme.dark else "light",
        "width": app.size.width,
        "height": app.size.height,
        "windows": last.window if last is not None else 0,
        "generation": last.generation if last is not None else None,
        "rate": float(console.frame.flows.rows["bit_rate"].sum()),
        "lost": console.frame.lost,
    }
