"""A run of the console, on a terminal or without one, from its settings to its exit code."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.console.terminal.capabilities import prepare
from app.tape.options import NOTHING, Startup

if TYPE_CHECKING:
    from app.config.model import Settings
    from app.console.app import ConsoleApp
    from app.console.live.recorded import Moments
    from app.fleet.hosts import Fleet
    from app.run.options import OutputSpec
    from app.run.spec import RunSpec
    from probes.control.controller import Controller
    from probes.control_plane import ControlPlane

_FIRST_WINDOW = 0.25
"""Seconds of the first window: the screens soon show something."""


def run(
    spec: RunSpec, settings: Settings, startup: Startup = NOTHING, output: OutputSpec | None = None
) -> int:
    """Run a controller and its console; return the exit code. Raises ProbedeckError.

    The console plays `startup` first. A console without a terminal writes tables to `output`.
    """
    with ExitStack() as stack:

        def plane() -> ControlPlane:
            from app.run.start import new_controller

            controller, stream = new_controller()
            if output is not None:
                from app.run.table_writer import writing

                stack.enter_context(writing(output, spec.probes, controller, stream, spec.describe))
            stack.callback(controller.close)
            made.append(controller)
            return controller

        def begin() -> None:
            from app.run.start import start

            first = min(spec.options.flow.interval, _FIRST_WINDOW)
            start(made[0], spec, stack, first=first, console=app.commands.ask)

        def recording() -> Moments:
            from app.console.live.recorded import RecordedFrames

            return RecordedFrames(spec.options.recording.record)

        made: list[Controller] = []
        settings = _prepared(settings, startup)
        from app.console.app import ConsoleApp

        app = ConsoleApp(
            plane, begin, spec.interface, spec.options.duration,
            first="programs" if spec.options.only else "overview",
            names=not spec.options.no_names, tour=spec.tour, settings=settings,
            recording=recording if spec.options.recording.record else None,
        )  # fmt: skip
        return _run(app, startup)


def connect(plane: ControlPlane, url: str, settings: Settings, startup: Startup = NOTHING) -> int:
    """Run a console on another host's controller; close the connection with it."""
    with closing(plane):
        settings = _prepared(settings, startup)
        from app.console.app import ConsoleApp

        return _run(ConsoleApp(lambda: plane, lambda: None, url, settings=settings), startup)


def replay(
    directories: Sequence[str], at: str, settings: Settings, startup: Startup = NOTHING,
    title: str = "", run: str = "",
) -> int:  # fmt: skip
    """Run a console on a recording, from a typed time on; several are a fleet.

    The strip has the directory, or another title. `run` begins the id of the shown run. Raises
    UsageError without a recording.
    """
    settings = _prepared(settings, startup)
    from app.console.live.recorded_hosts import opened

    return _replay(opened(directories, run), at, title or ", ".join(directories), settings, startup)


def _replay(frames: Moments, at: str, title: str, settings: Settings, startup: Startup) -> int:
    with closing(frames):
        from app.console.app import ConsoleApp
        from app.fleet.planes import Planes

        def begin() -> None:
            time = app.time
            app.call_from_thread(partial(time.do_time_go, at) if at else time.do_time_live)

        is_fleet = isinstance(frames, Planes)
        app = ConsoleApp(
            lambda: frames.plane, begin, title, first="hosts" if is_fleet else "overview",
            names=False, settings=settings, fleet=is_fleet, recording=lambda: frames, replays=True,
        )  # fmt: skip
        return _run(app, startup)


def fleet(hosts: Fleet, settings: Settings, startup: Startup = NOTHING) -> int:
    """Run a console on the hosts of a fleet; close the connections with it."""
    settings = _prepared(settings, startup)
    if hosts.is_recorded:
        from app.console.live.recorded_hosts import RecordedHosts

        return _replay(RecordedHosts(hosts), "", "the fleet", settings, startup)
    with ExitStack() as stack:

        def plane() -> ControlPlane:
            from app.fleet.hub import Hub
            from app.fleet.plane import ChosenHosts
            from app.fleet.planes import ChosenPlane

            hub = stack.enter_context(Hub(hosts.hosts))
            chosen = ChosenHosts(hosts, hub)
            stack.callback(chosen.close)
            if hosts.policies:
                from app.fleet.policy_runner import FleetRunner

                stack.enter_context(FleetRunner(chosen, hub))
            return ChosenPlane(chosen)

        from app.console.app import ConsoleApp

        app = ConsoleApp(
            plane, lambda: None, "the fleet", first="hosts", settings=settings, fleet=True
        )
        return _run(app, startup)


def _prepared(settings: Settings, startup: Startup) -> Settings:
    """Resolve what the settings leave to the terminal, before the import of Textual."""
    # Garbage collection during imports finds nothing; the console enables it after the first paint.
    gc.disable()
    shown = startup.shown or startup.tape is None
    return replace(settings, ui=prepare(settings.ui, drawn=not shown))


def _run(app: ConsoleApp, startup: Startup) -> int:
    app.tapes.begin_with(startup)
    if startup.shown or startup.tape is None:
        code = app.run(mouse=app.terminal.ui.mouse)
    else:
        code = app.run(headless=True, size=(startup.tape.width, startup.tape.height))
    failure = app.failure or (app.plane.failure() if app.ready.is_set() else None)
    code = code if code is not None else app.return_code or 0
    if not code:
        failure = failure or app.tapes.unplayed()
    if startup.junit:
        from app.junit import write

        write(startup.junit, [app.tapes.suite(str(failure or ""))])
    if failure is not None:
        raise failure
    return code
