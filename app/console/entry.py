"""A run of the console from its beginning to its exit code, on a terminal or on none."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from app.config.model import Settings
from app.console.app import ConsoleApp
from app.run.output_spec import OutputSpec
from app.run.spec import RunSpec
from app.tape.options import NOTHING, Startup

if TYPE_CHECKING:
    from probes.control.controller import Controller
    from probes.control_plane import ControlPlane

_FIRST_WINDOW = 0.25
"""Seconds after which there is something to be seen."""


def run(
    spec: RunSpec, settings: Settings, script: Startup = NOTHING, output: OutputSpec | None = None
) -> int:
    """Open the console on what is watched; returns the exit code. Raises ProbedeckError subclasses.

    `script` is played first. Without a terminal, tables are written to `output` meanwhile.
    """
    with ExitStack() as stack:

        def plane() -> ControlPlane:
            from probes.control.controller import Controller

            controller = Controller()
            if output is not None:
                from app.run.table_writer import writing

                stack.enter_context(writing(output, spec.probes, controller))
            stack.callback(controller.close)
            made.append(controller)
            return controller

        def begin() -> None:
            from app.run.start import start

            first = min(spec.interval, _FIRST_WINDOW)
            start(made[0], spec, stack, first=first, console=app.ask)

        made: list[Controller] = []
        app = ConsoleApp(
            plane, begin, spec.interface, spec.duration,
            first="overview" if spec.flows else "programs", names=spec.names, tour=spec.tour,
            settings=settings,
        )  # fmt: skip
        return _run(app, script)


def connect(plane: ControlPlane, url: str, settings: Settings, script: Startup = NOTHING) -> int:
    """Open the console on another host's controller, and close the connection with it."""
    with closing(plane):
        app = ConsoleApp(lambda: plane, lambda: None, url, settings=settings)
        return _run(app, script)


def _run(app: ConsoleApp, script: Startup) -> int:
    app.tapes.begin_with(script)
    if script.shown or script.tape is None:
        code = app.run(mouse=app.terminal.ui.mouse)
    else:
        code = app.run(headless=True, size=(script.tape.width, script.tape.height))
    failure = app.failure or (app.plane.failure() if app.ready.is_set() else None)
    if failure is not None:
        raise failure
    code = code if code is not None else app.return_code or 0
    if not code and (left := app.tapes.unplayed()) is not None:
        raise left
    return code
