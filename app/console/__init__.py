"""The console: screens, commands and keys, over a controller that runs beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.console.terminal import prepare

if TYPE_CHECKING:
    from app.session import Watch
    from app.settings.model import Settings
    from probes.plane import ControlPlane


def run(watch: Watch, settings: Settings) -> int:
    """Open the console on what is watched; returns the exit code. Raises DeckError subclasses."""
    settings = replace(settings, ui=prepare(settings.ui))
    from app.console import app

    return app.run(watch, settings)


def connect(plane: ControlPlane, url: str, settings: Settings) -> int:
    """Open the console on another host's controller, and close the connection with it."""
    settings = replace(settings, ui=prepare(settings.ui))
    from app.console import app

    return app.connect(plane, url, settings)
