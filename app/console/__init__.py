"""The console: screens, commands and keys, over a controller that runs beside it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from app.console.terminal.capabilities import prepare
from app.tape.options import NOTHING, Startup

if TYPE_CHECKING:
    from app.config.model import Settings
    from app.run.output_spec import OutputSpec
    from app.run.spec import RunSpec
    from probes.control_plane import ControlPlane


def run(
    spec: RunSpec, settings: Settings, script: Startup = NOTHING, output: OutputSpec | None = None
) -> int:
    """Open the console on what is watched; returns the exit code. Raises ProbedeckError subclasses.

    `script` is played first. Without a terminal, tables are written to `output` meanwhile.
    """
    settings = replace(settings, ui=prepare(settings.ui))
    # Until the first paint: it would look in vain at all that is being imported.
    gc.disable()
    from app.console import entry as running

    return running.run(spec, settings, script, output)


def connect(plane: ControlPlane, url: str, settings: Settings, script: Startup = NOTHING) -> int:
    """Open the console on another host's controller, and close the connection with it."""
    settings = replace(settings, ui=prepare(settings.ui))
    # Until the first paint: it would look in vain at all that is being imported.
    gc.disable()
    from app.console import entry as running

    return running.connect(plane, url, settings, script)
